//! Calls, replies, and the version that both carry.

use std::collections::BTreeMap;

use mpsgate_model::ledger::CgroupId;
use mpsgate_model::{Cdi, Code, Grant, GrantKey, PodContainer, Refusal, Request};
use serde::{Deserialize, Serialize};

use crate::{ApiServerStatus, FrameError, ResourceStatus};

/// Version of the messages. A node has two versions at work during an upgrade, so each side
/// understands its neighbours.
pub const VERSION: u16 = 1;

/// Whether this side understands a peer of version `other`: at most one apart.
#[must_use]
pub fn compatible(other: u16) -> bool {
    other.abs_diff(VERSION) <= 1
}

/// What every caller sends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Envelope {
    /// The caller's [`VERSION`].
    pub version: u16,
    /// What it wants.
    pub call: Call,
}

/// Whose words a request is: told by root-owned facts, never by annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// An engine whose user is root anyway: docker, podman, ctr, runc by hand.
    Local,
    /// A kubelet's engine: pod authors write annotations.
    Kubernetes,
}

/// What a caller wants.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Hold memory for a container that is being created (the shim).
    Reserve(Reserve),
    /// Turn the reservation into a grant (the hook).
    Activate(Activate),
    /// End a grant or reservation (the hook at poststop).
    Release(Release),
    /// End the GPU work of a container that is about to be killed (the shim).
    Terminate(Terminate),
    /// Log and count what the shim refused or stripped on its own.
    Report(Report),
    /// Everything that the daemon knows.
    Status,
    /// Hand a GPU to mpsgate: UUID or index.
    Enable {
        /// UUID or index.
        gpu: String,
    },
    /// Take a GPU back: UUID or index.
    Disable {
        /// UUID or index.
        gpu: String,
    },
    /// End a card's MPS, or end it and start it again: everything that runs on the card dies.
    Mps(Mps),
    /// Read the settings file again.
    Reload,
}

/// Hold memory for a container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reserve {
    /// Which instance of which container.
    pub key: GrantKey,
    /// What it asks for.
    pub request: Request,
    /// Host uid of its CUDA processes.
    pub uid: u32,
    /// Whose words the request is.
    pub engine: Engine,
    /// Whose container it is, where a kubelet's engine says so.
    pub pod: Option<PodContainer>,
    /// Hold it for the caller's parent: the caller ends before the container is made (Podman's
    /// `precreate` hook).
    pub for_parent: bool,
}

/// Turn a reservation into a grant. The container's pidfd goes with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Activate {
    /// Which instance of which container.
    pub key: GrantKey,
    /// The container's init in the caller's pid namespace.
    pub pid: u32,
    /// Its cgroup.
    pub cgroup: Option<CgroupId>,
    /// What was reserved: to take it anew where the reservation has expired.
    pub grant: Option<Box<Grant>>,
}

/// End a grant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Release {
    /// Which instance of which container.
    pub key: GrantKey,
}

/// End the GPU work of a container that is about to be killed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Terminate {
    /// Which instance of which container.
    pub key: GrantKey,
}

/// End a card's MPS, for good or for a moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mps {
    /// UUID or index.
    pub gpu: String,
    /// What to do.
    pub action: MpsAction,
    /// Whether the operator has said so with the list of who dies in view. Without it nothing is
    /// done, and the answer is that list.
    pub confirmed: bool,
}

/// What to do with a card's MPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MpsAction {
    /// End it and keep the card closed, over restarts too, until a `Restart`.
    Stop,
    /// End it and start it anew.
    Restart,
}

impl MpsAction {
    /// The operator's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Restart => "restart",
        }
    }
}

/// What the shim did on its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The container.
    pub container_id: String,
    /// The refusal's code.
    pub code: String,
    /// `refused`, `stripped`, `warned`, or `noted`, which is logged and not counted.
    pub action: String,
    /// The sentence.
    pub sentence: String,
    /// What to do about it, where something is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Whose container it is, where a kubelet's engine says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodContainer>,
}

/// In place of a [`Status`], for who never asks for it.
pub type NoStatus = serde::de::IgnoredAny;

/// The daemon's answer. Who never asks for a [`Status`] does without the code that reads one: 50 kB
/// of each program in a container's start.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<S = Status> {
    /// Not final: what the daemon waits for.
    Progress {
        /// For people.
        doing: String,
    },
    /// To `reserve`.
    Reserved {
        /// What was given.
        grant: Box<Grant>,
        /// What the node's CDI specifications say that the card needs. Not part of the grant: the
        /// ledger would hold NVIDIA's list of driver files once per container.
        cdi: Box<Cdi>,
    },
    /// To an `mps` that was not confirmed. Nothing was done.
    WouldEnd {
        /// A [`WouldEnd`] as JSON: the shim reads replies, too, and would carry the code for a list
        /// that it never sees.
        list: String,
    },
    /// To `reload`: one line for each setting that changed; none where nothing did.
    Reloaded {
        /// What was taken, and what waits for what.
        lines: Vec<String>,
    },
    /// To every other call that was carried out.
    Done {
        /// What changed, for people; empty where nothing did.
        text: String,
    },
    /// To `status`.
    Status(Box<S>),
    /// A refusal, in any place.
    Refused(WireRefusal),
    /// The caller's version is too far away.
    Version {
        /// The daemon's.
        daemon: u16,
    },
}

/// A [`Refusal`] on the wire; a code of another version survives as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireRefusal {
    /// Stable code.
    pub code: String,
    /// One sentence.
    pub sentence: String,
    /// What to do.
    pub hint: String,
}

impl From<Refusal> for WireRefusal {
    fn from(refusal: Refusal) -> Self {
        Self {
            code: refusal.code.as_str().to_owned(),
            sentence: refusal.sentence,
            hint: refusal.hint,
        }
    }
}

impl From<WireRefusal> for Refusal {
    fn from(wire: WireRefusal) -> Self {
        match Code::parse(&wire.code) {
            Some(code) => Self::new(code, wire.sentence, wire.hint),
            None => Self::new(
                Code::DaemonVersion,
                format!("{} [{}]", wire.sentence, wire.code),
                wire.hint,
            ),
        }
    }
}

/// Everything that the daemon knows. Times are milliseconds since 1970, memory is MiB.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// NVML is the simulation: no GPU is behind what follows.
    pub simulated: bool,
    /// The driver's version, where NVML answers.
    pub driver: Option<String>,
    /// Why NVML does not answer.
    pub nvml_error: Option<String>,
    /// Whether a kubelet runs on this node.
    pub kubelet: bool,
    /// All cards, managed or not.
    pub cards: Vec<CardStatus>,
    /// All reservations and grants.
    pub grants: Vec<GrantStatus>,
    /// Refused containers since the daemon started, by code.
    pub refusals: BTreeMap<String, u64>,
    /// Containers that were started since then, stripped of what has this code or let through with
    /// it by the settings.
    pub notes: BTreeMap<String, u64>,
    /// CUDA clients whose GPU work was ended before their container was killed, since then.
    pub clients_terminated: u64,
    /// Containers with a grant that were killed without, because their card's MPS was busy or not
    /// healthy.
    pub kills_unprepared: u64,
    /// What the daemon did to containers and processes, or would have done, since it started; the
    /// latest [`ACTIONS_KEPT`], oldest first.
    pub actions: Vec<Action>,
    /// Address at which the metrics are to be served; absent where they are off.
    pub metrics_listen: Option<String>,
    /// Why they are not served there.
    pub metrics_error: Option<String>,
    /// What the device plugin has to do with kubelet; empty where it does not serve.
    pub device_plugin: Vec<ResourceStatus>,
    /// How it stands with the API server; `None` where the settings name none.
    pub api_server: Option<ApiServerStatus>,
    /// How the cards are shared: `mps` or `share`.
    pub schedule: String,
    /// What is wanted instead: one of these, or `off` where the cards that the settings name are
    /// another system's.
    pub schedule_wanted: Option<String>,
    /// Containers that have to end before another schedule holds.
    pub schedule_waits_for: Vec<String>,
}

/// How many [`Action`]s a daemon remembers.
pub const ACTIONS_KEPT: usize = 64;

/// The answer to who ended this container, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The container; absent where it was about a process of no container with a grant.
    pub container_id: Option<String>,
    /// The card's UUID.
    pub card: String,
    /// The card's index.
    pub card_index: u32,
    /// `killed`, `reported`, or `failed` where it was to be killed and lives.
    pub what: String,
    /// One sentence.
    pub why: String,
}

/// One card.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CardStatus {
    /// NVML's UUID.
    pub uuid: String,
    /// NVML's index.
    pub index: u32,
    /// Minor of its device node.
    pub minor: u32,
    /// Product name.
    pub name: String,
    /// Whether it is handed to mpsgate.
    pub managed: bool,
    /// Memory of the card (device view).
    pub total_mib: u64,
    /// Memory that may be granted: whole GiB after the reserve.
    pub memory_mib: u64,
    /// Granted or reserved (recorded view).
    pub granted_mib: u64,
    /// Promised to pods that do not run now.
    pub promised_mib: u64,
    /// Left.
    pub free_mib: u64,
    /// Used on the device (device view).
    pub used_mib: Option<u64>,
    /// NVML's compute mode.
    pub compute_mode: String,
    /// Grants and reservations on it, and the most that its MPS server takes.
    pub clients: u32,
    /// See `clients`.
    pub max_clients: u32,
    /// `ready`, `unmanaged`, or why nothing can be granted.
    pub state: String,
    /// What to do where the state is neither.
    pub hint: Option<String>,
    /// The MPS control daemon (server view); absent on unmanaged cards.
    pub mps: Option<MpsStatus>,
    /// Why the memory of its processes is not seen, so that no container's sum can be held to its
    /// grant.
    pub unwatched: Option<String>,
    /// Why the driver does not hold the cgroups of its containers to their grants, and what would
    /// help.
    pub unlimited: Option<String>,
}

/// One card's MPS control daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MpsStatus {
    /// `running`, `dead`, `wedged`, `fault` or `starting`.
    pub state: String,
    /// Its pid.
    pub pid: Option<u32>,
    /// Default limit of a client, as set and read back.
    pub default_limit_mib: Option<u64>,
    /// Its servers: none before the first client, and none where the GPU is simulated.
    pub servers: Vec<ServerStatus>,
    /// What it has open, as last counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptors: Option<DescriptorStatus>,
}

/// The descriptors of a control daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorStatus {
    /// How many it has open.
    pub used: u64,
    /// How many it may have.
    pub limit: u64,
    /// So many that it must be restarted before they end.
    pub restart_needed: bool,
}

/// One MPS server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its pid.
    pub pid: u32,
    /// Whose clients it serves.
    pub uid: Option<u32>,
    /// `ACTIVE`, `INITIALIZING`, `FAULT`, or unknown to this driver.
    pub status: Option<String>,
}

/// Who dies with a card's MPS.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WouldEnd {
    /// What was asked for.
    pub action: MpsAction,
    /// The card's UUID.
    pub card: String,
    /// The card's index.
    pub card_index: u32,
    /// Reservations and grants on it, as the ledger records them.
    pub grants: Vec<GrantStatus>,
    /// Its MPS servers and their clients, as the control daemon names them.
    pub servers: Vec<ServerClients>,
    /// Why servers and clients could not be listed, where they could not: there may be more.
    pub unknown: Option<String>,
}

/// One MPS server and who uses it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerClients {
    /// Its pid.
    pub pid: u32,
    /// Whose clients it serves.
    pub uid: Option<u32>,
    /// Its clients.
    pub clients: Vec<ClientProcess>,
}

/// One CUDA process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientProcess {
    /// Its pid, as the host counts.
    pub pid: u32,
    /// The container whose grant it uses; `None` where it is in no container with a grant on the
    /// card.
    pub container_id: Option<String>,
    /// Its command line, cut short.
    pub command: String,
}

/// One reservation or grant, on one card: a container that has several is there once for each.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantStatus {
    /// The container's id.
    pub container_id: String,
    /// The runtime's root.
    pub runtime_root: String,
    /// The instance of the container.
    pub instance: String,
    /// `reserved`, `active`, or `broken`: active, and without the card since its control daemon
    /// died.
    pub state: String,
    /// What to do where it is broken.
    pub hint: Option<String>,
    /// The card's UUID.
    pub card: String,
    /// The card's index.
    pub card_index: u32,
    /// GPU memory on this card.
    pub memory_mib: u64,
    /// Share of the card's SMs.
    pub compute_percent: Option<u8>,
    /// Host uid of its CUDA processes.
    pub uid: u32,
    /// The container's init, or the creator of a reservation.
    pub pid: u32,
    /// Its cgroup.
    pub cgroup: Option<String>,
    /// What its processes use on the card in sum (device view); absent where that is not seen.
    pub used_mib: Option<u64>,
    /// The worst case: what a process of it gets that unsets its own limit. The MPS server's cap,
    /// which follows the card's largest live grant (server view); absent where the control daemon
    /// has not told it.
    pub cap_mib: Option<u64>,
    /// How firmly the limit holds.
    pub guarantee: String,
    /// When it was reserved.
    pub since_ms: u64,
    /// When the card's MPS control daemon died under it.
    pub broken_ms: Option<u64>,
}

/// Reads an envelope; the version first, so that a far one is told from garbage.
///
/// # Errors
/// `Ok(Err(version))` for a version too far away, `Err` for what is no envelope.
pub fn parse_envelope(bytes: &[u8]) -> Result<Result<Envelope, u16>, FrameError> {
    #[derive(Deserialize)]
    struct Version {
        version: u16,
    }
    let Version { version } = serde_json::from_slice(bytes).map_err(FrameError::Content)?;
    if !compatible(version) {
        return Ok(Err(version));
    }
    serde_json::from_slice(bytes).map(Ok).map_err(FrameError::Content)
}

#[cfg(test)]
mod tests;
