//! What the daemon tells of itself, its cards and their grants.

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
    /// How it stands with claims; absent where they are not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<ClaimsStatus>,
    /// What does not fit between Slurm and the cards, a sentence each; absent where jobs get no
    /// grants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<Vec<String>>,
    /// How it stands with the API server; `None` where the settings name none.
    pub api_server: Option<ApiServerStatus>,
    /// How the cards are shared: `mps` or `share`.
    pub schedule: OneOf<Word>,
    /// Settings that stand in the place of what cards have answered, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<String>,
    /// What is wanted instead: one of these, or `off` where the cards that the settings name are
    /// another system's.
    pub schedule_wanted: Option<OneOf<Word>>,
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
    /// The container or plain process, by its name; absent where it was about a process without a
    /// grant.
    pub container_id: Option<String>,
    /// The card's UUID.
    pub card: String,
    /// The card's index.
    pub card_index: u32,
    /// What was done.
    pub what: OneOf<Done>,
    /// One sentence.
    pub why: String,
}

/// What an [`Action`] was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// The container was ended.
    Killed,
    /// It was said, and nothing else was done.
    Reported,
    /// It was to be ended, and lives.
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
    /// Left.
    pub free_mib: u64,
    /// Used on the device (device view).
    pub used_mib: Option<u64>,
    /// NVML's compute mode.
    pub compute_mode: OneOf<ComputeMode>,
    /// Grants and reservations on it, and the most that its MPS server takes.
    pub clients: u32,
    /// See `clients`.
    pub max_clients: u32,
    /// How it is, or a sentence: why nothing can be granted.
    pub state: OneOf<CardState>,
    /// What to do where the state is a sentence.
    pub hint: Option<String>,
    /// The MPS control daemon (server view); absent on unmanaged cards.
    pub mps: Option<MpsStatus>,
    /// What became of clients at its containers' doors; absent where it has no gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateStatus>,
    /// What the memory in use on a managed card is made of (device view), as last looked at; absent
    /// where NVML does not tell all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<CardMemory>,
    /// Why the memory of its processes is not seen, so that no container's sum can be held to its
    /// grant.
    pub unwatched: Option<String>,
    /// Why the driver does not hold the cgroups of its containers to their grants, and what would
    /// help.
    pub unlimited: Option<String>,
    /// What `mpsgate qualify` has shown of it; absent where it was never asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qualification: Option<Qualification>,
    /// What does not hold on it, by these answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// Why it should be asked (again).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qualify: Option<String>,
}

/// A card's state where one word says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardState {
    /// It takes grants.
    Ready,
    /// It is not handed to mpsgate.
    Unmanaged,
    /// Its control daemon is being started for the first time.
    Starting,
    /// It is being asked what holds on it.
    Qualifying,
}

words!(CardState:
    Ready = "ready", Unmanaged = "unmanaged", Starting = "starting", Qualifying = "qualifying",
);

/// What the memory in use on a card is made of: in bytes, and over a day in KiB × ms.
/// `containers + servers + others + nobody` is `used + counted_twice`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardMemory {
    /// All of it.
    pub used: u64,
    /// Of processes of containers with a grant on the card.
    pub containers: u64,
    /// Of its MPS servers.
    pub servers: u64,
    /// Of processes in no container with a grant.
    pub others: u64,
    /// Of no process that NVML lists, or of one that has ended and that nobody can name.
    pub nobody: u64,
    /// By how much the processes' memory is more than what is in use: memory that one imports from
    /// another stands with both.
    pub counted_twice: u64,
}

impl CardMemory {
    /// The parts, by whose they are.
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
    /// How it is.
    pub state: OneOf<ControlState>,
    /// Its pid.
    pub pid: Option<u32>,
    /// Default limit of a client, as set and read back.
    pub default_limit_mib: Option<u64>,
    /// Its servers: none before the first client, and none where the GPU is simulated.
    pub servers: Vec<ServerStatus>,
}

/// How a control daemon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlState {
    /// It is started anew.
    Starting,
    /// It answers, and no server is at fault.
    Running,
    /// There is none.
    Dead,
    /// It lives and does not answer.
    Wedged,
    /// A server had a fatal GPU error and refuses clients.
    Fault,
}

words!(ControlState:
    Starting = "starting", Running = "running", Dead = "dead", Wedged = "wedged", Fault = "fault",
);

/// What became of the clients at a card's doors since its gate began, as it said last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateStatus {
    /// Handed over to their server.
    pub handed_over: u64,
    /// That wait now.
    pub waiting: u64,
    /// Ended, by reason.
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
    /// Whose clients it serves.
    pub uid: Option<u32>,
    /// As the control daemon reports it; the one of 535 cannot.
    pub status: Option<OneOf<ServerState>>,
}

/// How an MPS server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// Contexts are being made.
    Initializing,
    /// It takes clients.
    Active,
    /// It had a fatal GPU error and refuses clients.
    Fault,
}

words!(ServerState: Initializing = "INITIALIZING", Active = "ACTIVE", Fault = "FAULT");

/// One reservation or grant, on one card: a container that has several is there once for each.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GrantStatus {
    /// How it is shown and taken: the container's id, or of a plain process whose it is and its
    /// name, `alice/train`.
    pub container_id: String,
    /// The runtime's root.
    pub runtime_root: String,
    /// The instance of the container.
    pub instance: String,
    /// How it is.
    pub state: OneOf<GrantState>,
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
    /// The worst case: what a process of it gets that unsets its own limit and is taken for a
    /// neighbour's. The card's largest live grant; absent where the control daemon has told of no
    /// limit.
    pub cap_mib: Option<u64>,
    /// How firmly the limit holds.
    pub guarantee: OneOf<Guarantee>,
    /// What shows that it holds so firmly; empty where nothing is promised. An older daemon tells
    /// nothing.
    #[serde(default)]
    pub proof: String,
    /// When it was reserved.
    pub since_ms: u64,
    /// When the card's MPS control daemon died under it.
    pub broken_ms: Option<u64>,
}

/// How a grant is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantState {
    /// Its container is being made.
    Reserved,
    /// Its container runs.
    Active,
    /// Its container runs, without the card since its control daemon died.
    Broken,
}

words!(GrantState: Reserved = "reserved", Active = "active", Broken = "broken");
