//! What happens to a card, in the words of who has seen it; and what is logged of that.

use std::time::Duration;

use mpsgate_api::{ControlState, ServerStatus};
use mpsgate_config::Schedule;
use mpsgate_model::door_file::Counts;
use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{ComputeMode, Mib, WedgeCause};
use mpsgate_policy::SharedMemory;

use super::{Ends, ManagedBy, Trouble, Watched};

/// What happened to a card.
#[derive(Debug, Clone)]
pub enum CardEvent {
    /// NVML shows it.
    Seen(Box<Seen>),
    /// NVML does not show it any more, and what it says of that, if anything.
    Vanished(Option<Trouble>),
    /// It was handed over to mpsgate, and is to be prepared.
    HandedOver(ManagedBy),
    /// It is not mpsgate's any more.
    TakenBack,
    /// It stays mpsgate's, and these are who wants that from now on.
    Kept(ManagedBy),
    /// An operator's command begins that ends its MPS.
    Closed(Closing),
    /// That command has ended, or failed.
    Reopened,
    /// The operator wants its MPS stopped, also after a restart of mpsgated.
    StopWanted,
    /// The operator does not want that any more.
    StartWanted,
    /// Its MPS was ended, and nobody is to start it.
    Stopped,
    /// It is shared without MPS, and has this compute mode.
    Shared(ComputeMode),
    /// It cannot be shared in this way.
    Unfit(Schedule, Trouble),
    /// It could not be prepared for this way.
    Failed(Schedule, Trouble),
    /// Its control daemon was started or found, and answers.
    Answers(Box<Control>),
    /// A control daemon of this pid was found that does not answer.
    Silent(u32),
    /// Its control daemon was asked how it is, or is known not to answer.
    Viewed(View),
    /// Its control daemon was looked at: what is wrong with its files, and whether its gate runs.
    Looked(Option<Trouble>, GateSeen),
    /// Its gate says that it cannot serve, and why.
    GateUnserved(String),
    /// Its gate tells what became of clients.
    GateCounts(Counts, Option<ProcessId>),
    /// The log of its control daemon names this client as the cause of a fatal fault.
    Blamed(String),
    /// The log of its control daemon tells of a new server.
    ServerBegan,
    /// Its server may be ended for one that serves another uid.
    ServerWanted,
    /// No server came, which is right: the card is simulated.
    Serverless,
    /// Its control daemon was told this default limit.
    LimitSet(Mib),
    /// It is in the compute mode that MPS needs; whether somebody had changed that.
    ModeRetaken(bool),
    /// It is in another one, which cannot be changed.
    ModeForeign(Trouble),
    /// The CUDA clients on it have lost it, at this time in ms: their MPS daemon or server ended.
    ClientsLost(u64),
    /// Its control daemon has ended, and is started again after this time.
    Died(Duration),
    /// Its control daemon has ended, and these servers of it hold the card.
    Orphaned(Vec<u32>),
    /// Its control daemon was ended to be started again.
    Ended,
    /// The settings let its server take so many clients.
    MostClients(u32),
    /// The watchdog has looked; whether that came at once, out of its turn.
    Watched(Box<Watched>, bool),
    /// The watchdog could not look, and why.
    NotWatched(String, bool),
    /// These processes use it without a grant, with so many bytes where NVML tells all.
    Others(Vec<u32>, Option<u64>),
    /// Its gate or NVML told nothing of it for so long.
    Untold(Duration),
    /// The driver holds a cgroup to its grant of the card, or does not, and why.
    CgroupLimit(Option<Trouble>),
}

/// What NVML shows of a card.
#[derive(Debug, Clone)]
pub struct Seen {
    /// NVML's index.
    pub index: u32,
    /// Minor of its node.
    pub minor: u32,
    /// Product name.
    pub name: String,
    /// All memory.
    pub total: Mib,
    /// Memory that may be granted.
    pub memory: Mib,
    /// Memory in use.
    pub used: Mib,
    /// Its compute mode.
    pub compute_mode: ComputeMode,
    /// Whether the settings hand it over.
    pub is_named: bool,
}

/// What an operator's command does with a card that it has closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// It takes it back.
    TakeBack,
    /// It restarts its MPS.
    Restart,
}

/// A control daemon that answers.
#[derive(Debug, Clone)]
pub struct Control {
    /// Its pid.
    pub pid: u32,
    /// Whether it was there before.
    pub adopted: bool,
    /// One server for all uids.
    pub multiuser: bool,
    /// Clients that its server takes.
    pub max_clients: u32,
    /// What containers get of it.
    pub ends: Ends,
    /// Its default limit.
    pub limit: Mib,
    /// How it is.
    pub view: View,
}

/// A control daemon as last seen.
#[derive(Debug, Clone)]
pub struct View {
    /// How it is.
    pub state: ControlState,
    /// Its servers; those of one that does not answer are as they were.
    pub servers: Vec<ServerStatus>,
    /// How they share memory with their clients, where that is to be seen.
    pub shared_memory: Option<SharedMemory>,
    /// Why it does not answer, where that was found out.
    pub cause: Option<WedgeCause>,
    /// Why it could not be asked, where it is not simply silent.
    pub trouble: Option<Trouble>,
}

impl View {
    /// Of one that is in this state.
    pub fn new(state: ControlState, servers: Vec<ServerStatus>) -> Self {
        Self { state, servers, shared_memory: None, cause: None, trouble: None }
    }

    /// That it does not answer.
    pub fn wedged(cause: Option<WedgeCause>) -> Self {
        Self { cause, ..Self::new(ControlState::Wedged, Vec::new()) }
    }
}

/// A card's gate, as a look found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateSeen {
    /// It was there.
    Serves,
    /// It was not, and was started.
    Started,
    /// It was not, and could not be started.
    Missing(Trouble),
}
