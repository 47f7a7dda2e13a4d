//! The daemon's report about itself, its cards and their grants.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use mpsgate_model::{ComputeMode, Guarantee, OneOf, Qualification, words};
use mpsgate_policy::schedule::Word;

use crate::{ApiServerStatus, ClaimsStatus, ResourceStatus};

/// Everything that the daemon knows. Times are milliseconds since 1970, memory is MiB.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// Whether NVML is the simulation: then no GPU is behind what follows.
    pub simulated: bool,
    /// The driver's version, if NVML answers.
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
    /// Containers that the settings let start since the daemon started, by the code of what was
    /// stripped or let through.
    pub notes: BTreeMap<String, u64>,
    /// CUDA clients whose GPU work the daemon ended before their container was killed, since it
    /// started.
    pub clients_terminated: u64,
    /// Containers with a grant that were killed without that, because their card's MPS was busy or
    /// not healthy.
    pub kills_unprepared: u64,
    /// What the daemon did to containers and processes, or would have done, since it started; the
    /// latest [`ACTIONS_KEPT`], oldest first.
    pub actions: Vec<Action>,
    /// Address at which the metrics are to be served; absent if they are off.
    pub metrics_listen: Option<String>,
    /// Why they are not served there.
    pub metrics_error: Option<String>,
    /// The resources that the device plugin serves to kubelet; empty if it does not serve.
    pub device_plugin: Vec<ResourceStatus>,
    /// The state of claims; absent if they are not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<ClaimsStatus>,
    /// Where Slurm and the cards do not fit, a sentence each; absent if jobs get no grants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<Vec<String>>,
    /// The state of the API server; `None` if the settings name none.
    pub api_server: Option<ApiServerStatus>,
    /// How the cards are shared: `mps` or `share`.
    pub schedule: OneOf<Word>,
    /// Settings that take the place of cards' answers, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<String>,
    /// The sharing mode that is wanted instead, or `off` if the cards that the settings name belong
    /// to another system.
    pub schedule_wanted: Option<OneOf<Word>>,
    /// Containers that have to end before the sharing mode changes.
    pub schedule_waits_for: Vec<String>,
}

/// The number of [`Action`]s that a daemon remembers.
pub const ACTIONS_KEPT: usize = 64;

/// A record of who ended this container, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The container or plain process, by its name; absent if the action was about a process
    /// without a grant.
    pub container_id: Option<String>,
    /// The card's UUID.
    pub card: String,
    /// The card's index.
    pub card_index: u32,
    /// The action.
    pub what: OneOf<Done>,
    /// One sentence.
    pub why: String,
}

/// The kind of an [`Action`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// The container was ended.
    Killed,
    /// It was only reported.
    Reported,
    /// The container was to be ended, but still runs.
    Failed,
}

words!(Done: Killed = "killed", Reported = "reported", Failed = "failed");

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
    /// The memory that is left, in MiB.
    pub free_mib: u64,
    /// Used on the device (device view).
    pub used_mib: Option<u64>,
    /// NVML's compute mode.
    pub compute_mode: OneOf<ComputeMode>,
    /// The number of its grants and reservations.
    pub clients: u32,
    /// The most that its MPS server takes.
    pub max_clients: u32,
    /// Its state, or a sentence: why nothing can be granted.
    pub state: OneOf<CardState>,
    /// The remedy, if the state is a sentence.
    pub hint: Option<String>,
    /// The MPS control daemon (server view); absent on unmanaged cards.
    pub mps: Option<MpsStatus>,
    /// Counts of the clients at its containers' doors; absent if it has no gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateStatus>,
    /// The parts of the memory in use on a managed card (device view), as last read; absent if NVML
    /// does not report all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<CardMemory>,
    /// Why the memory of its processes is not seen, so that the watchdog cannot enforce a grant.
    pub unwatched: Option<String>,
    /// Why the driver does not limit the cgroups of its containers to their grants, and what would
    /// help.
    pub unlimited: Option<String>,
    /// What `mpsgate qualify` has shown of it; absent if it was never asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qualification: Option<Qualification>,
    /// What it does not guarantee, by these answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// Why it should be asked (again).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qualify: Option<String>,
}

/// A card's state, if one word describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardState {
    /// It takes grants.
    Ready,
    /// It is not handed to mpsgate.
    Unmanaged,
    /// Its control daemon is starting for the first time.
    Starting,
    /// It is being asked what holds on it.
    Qualifying,
}

words!(CardState:
    Ready = "ready", Unmanaged = "unmanaged", Starting = "starting", Qualifying = "qualifying",
);

/// The parts of the memory in use on a card: in bytes, and over a day in KiB × ms. `containers +
/// servers + others + nobody` is `used + counted_twice`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardMemory {
    /// All memory in use.
    pub used: u64,
    /// Memory of processes of containers with a grant on the card.
    pub containers: u64,
    /// Memory of its MPS servers.
    pub servers: u64,
    /// Memory of processes in no container with a grant.
    pub others: u64,
    /// Memory of no process that NVML lists, or of one that has ended and cannot be named.
    pub nobody: u64,
    /// By how much the processes' memory exceeds the memory in use: memory that a process imports
    /// from another counts for both.
    pub counted_twice: u64,
}

impl CardMemory {
    /// The parts, by owner.
    #[must_use]
    pub fn by_owner(&self) -> [(&'static str, u64); 4] {
        [
            ("containers", self.containers),
            ("servers", self.servers),
            ("others", self.others),
            ("nobody", self.nobody),
        ]
    }
}

/// One card's MPS control daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MpsStatus {
    /// Its state.
    pub state: OneOf<ControlState>,
    /// Its pid.
    pub pid: Option<u32>,
    /// Default limit of a client, as set and read back.
    pub default_limit_mib: Option<u64>,
    /// Its servers: none before the first client, and none if the GPU is simulated.
    pub servers: Vec<ServerStatus>,
}

/// The state of a control daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlState {
    /// It is being started anew.
    Starting,
    /// It answers, and no server is at fault.
    Running,
    /// No control daemon runs.
    Dead,
    /// It lives and does not answer.
    Wedged,
    /// A server had a fatal GPU error and refuses clients.
    Fault,
}

words!(ControlState:
    Starting = "starting", Running = "running", Dead = "dead", Wedged = "wedged", Fault = "fault",
);

/// Counts of the clients at a card's doors since its gate began, as the gate reported last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateStatus {
    /// Clients that were handed over to their server.
    pub handed_over: u64,
    /// Clients that wait now.
    pub waiting: u64,
    /// Clients that were ended, by reason.
    pub ended: BTreeMap<String, u64>,
}

impl fmt::Display for GateStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clients handed over {}, waiting {}", self.handed_over, self.waiting)?;
        let mut before = ", ended: ";
        for (why, count) in &self.ended {
            write!(f, "{before}{why} {count}")?;
            before = ", ";
        }
        Ok(())
    }
}

/// One MPS server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its pid.
    pub pid: u32,
    /// The uid of its clients.
    pub uid: Option<u32>,
    /// Its state, as the control daemon reports it; that of 535 cannot.
    pub status: Option<OneOf<ServerState>>,
}

/// The state of an MPS server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// It is making contexts.
    Initializing,
    /// It takes clients.
    Active,
    /// It had a fatal GPU error and refuses clients.
    Fault,
}

words!(ServerState: Initializing = "INITIALIZING", Active = "ACTIVE", Fault = "FAULT");

/// One reservation or grant, on one card. A container with several cards has one for each.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantStatus {
    /// The name by which people see and type it: the container's id, or the user and the name of a
    /// plain process, `alice/train`.
    pub container_id: String,
    /// The runtime's root.
    pub runtime_root: String,
    /// The instance of the container.
    pub instance: String,
    /// Its state.
    pub state: OneOf<GrantState>,
    /// The remedy, if it is broken.
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
    /// The memory of its processes on the card in sum (device view); absent if that is not seen.
    pub used_mib: Option<u64>,
    /// The worst case: the memory that a process of it gets if it unsets its own limit and is taken
    /// for a neighbour's. This is the card's largest live grant; absent if the control daemon has
    /// reported no limit.
    pub cap_mib: Option<u64>,
    /// The guarantee level.
    pub guarantee: OneOf<Guarantee>,
    /// What proves that level; empty if nothing is promised, or from an older daemon.
    #[serde(default)]
    pub proof: String,
    /// When it was reserved.
    pub since_ms: u64,
    /// When the card's MPS control daemon died under it.
    pub broken_ms: Option<u64>,
}

/// The state of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantState {
    /// Its container is being made.
    Reserved,
    /// Its container runs.
    Active,
    /// Its container runs, but has lost the card, because its control daemon died.
    Broken,
}

words!(GrantState: Reserved = "reserved", Active = "active", Broken = "broken");
