//! A card as the daemon knows it: NVML's facts, who handed it over, and what serves its containers.
//!
//! ```text
//!              handed over                            ┌──── Without MPS (schedule share)
//!   not managed ─────────► Idle ── brought up? ───────┤
//!        ▲                  ▲   no ▼    ▲ died,       └──── Mps: answers, FAULT, does not answer
//!        │ taken back       │     Down ─┘ ended                    │
//!        └──────────────────┴── stopped by the operator ◄──────────┘
//!
//!   beside it, whatever the state: lost (NVML), closed (an operator's command), asked (qualify)
//! ```
//!
//! What happens to a card is a [`CardEvent`]; [`Node::apply`](crate::Node::apply) takes it, and
//! says in effects what is to be done. Nothing else changes a card. `tests/golden/card.txt` shows
//! each transition.

mod apply;
mod card_asked;
mod card_events;
mod card_state;

use std::collections::BTreeMap;

use mpsgate_api::{CardMemory, CardState, MpsStatus, ServerStatus};
use mpsgate_model::door_file::Counts;
use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{ComputeMode, GpuUuid, GrantKey, Mib, OneOf};
use mpsgate_policy::{Condition, SharedMemory};

pub use self::card_asked::{Asking, Qualified};
pub use self::card_events::{CardEvent, Closing, Control, GateSeen, Seen, View};
use self::card_state::State;
pub use crate::effect::CardNews;
pub use crate::trouble::Trouble;

/// One card of the node. Outside this crate nobody has one to change.
#[derive(Debug, Clone)]
pub struct Card {
    /// NVML's UUID.
    pub uuid: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// Minor of its node; numbers its directory and unit, because an index changes when cards go.
    pub minor: u32,
    /// Product name.
    pub name: String,
    /// All memory.
    pub total: Mib,
    /// Memory that may be granted.
    pub memory: Mib,
    /// Memory in use on the device, as last read.
    pub used: Mib,
    /// NVML's compute mode, as last read.
    compute_mode: Option<ComputeMode>,
    /// Who handed it to mpsgate, if anybody.
    managed: Option<ManagedBy>,
    /// What serves its containers.
    state: State,
    /// NVML does not show it any more.
    lost: Option<Trouble>,
    /// An operator's command has closed it, whatever its card task thinks: it is stopped, or being
    /// restarted or taken back.
    closed: Option<Trouble>,
    /// What containers get of its MPS.
    ends: Ends,
    /// Clients that its server takes.
    max_clients: u32,
    /// One server for all uids.
    multiuser: bool,
    /// Its MPS cannot have a server: the card is simulated.
    serverless: bool,
    /// How its servers share memory with their clients, where one was seen since its control daemon
    /// runs.
    shared_memory: Option<SharedMemory>,
    /// What became of clients at its containers' doors, as its gate said last.
    gate: Option<Counts>,
    /// Which gate said so.
    gate_process: Option<ProcessId>,
    /// What its processes use, as the watchdog last saw it.
    watched: Watched,
    /// Why the driver does not hold the cgroup of the last grant to it, where it does not.
    unlimited: Option<Trouble>,
    /// What it was asked, and what follows from that.
    pub(crate) qualified: Qualified,
}

/// The containers' ways to a card's MPS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Ends {
    /// None: it has no MPS.
    #[default]
    None,
    /// A door for each, in the directory of its kind below the card's own.
    Doors(String),
}

impl Ends {
    /// The directory of the container or process whose grant has this key.
    pub fn of(&self, key: &GrantKey) -> String {
        match self {
            Self::None => String::new(),
            Self::Doors(card) => format!("{card}/{}/{}", key.door().directory(), key.instance),
        }
    }
}

/// What is needed to bring a card up.
#[derive(Debug, Clone)]
pub struct CardId {
    /// NVML's UUID.
    pub uuid: GpuUuid,
    /// Minor of its node.
    pub minor: u32,
    /// Memory that may be granted.
    pub memory: Mib,
    /// What its MPS is to be told for clients without a limit of their own.
    pub default_limit: Mib,
}

/// What the watchdog last saw of a card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watched {
    /// Whether a container that takes more than its grant is ended: its memory is seen, and the
    /// settings want it.
    pub enforced: bool,
    /// Why the memory of its processes is not seen, or not all of it.
    pub blind: Option<String>,
    /// Used by each container in sum.
    pub used: BTreeMap<GrantKey, Mib>,
    /// What the memory in use is made of, where NVML tells all of it.
    pub parts: Option<CardMemory>,
    /// Looks so far, this one included, but for those that came at once.
    pub looks: u64,
}

/// Who handed a card over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagedBy {
    /// `gpus.manage`: only an edit of the file takes it back.
    Settings,
    /// `mpsgate enable`.
    Operator,
}

/// Whether a managed card takes grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Ready,
    /// Its control daemon is being started for the first time.
    Starting,
    /// It cannot be shared under MPS.
    Unfit(Trouble),
    /// It does not now.
    Unhealthy(Trouble),
}

impl Health {
    pub(crate) fn condition(&self) -> Condition<'_> {
        match self {
            Self::Ready => Condition::Ready,
            Self::Starting => Condition::Unhealthy {
                why: "is still being prepared",
                hint: "try again in a moment; mpsgate status shows when it is ready",
            },
            Self::Unfit(Trouble { why, hint }) => Condition::Unfit { why, hint },
            Self::Unhealthy(Trouble { why, hint }) => Condition::Unhealthy { why, hint },
        }
    }

    /// What is wrong, where something is.
    pub fn trouble(&self) -> Option<&Trouble> {
        match self {
            Self::Ready | Self::Starting => None,
            Self::Unfit(trouble) | Self::Unhealthy(trouble) => Some(trouble),
        }
    }
}

impl Card {
    /// One that NVML has just shown for the first time.
    pub(crate) fn new(uuid: &GpuUuid, managed: Option<ManagedBy>) -> Self {
        Self {
            uuid: uuid.clone(),
            index: 0,
            minor: 0,
            name: String::new(),
            total: Mib(0),
            memory: Mib(0),
            used: Mib(0),
            compute_mode: None,
            managed,
            state: State::Idle,
            lost: None,
            closed: None,
            ends: Ends::None,
            max_clients: 0,
            multiuser: false,
            serverless: false,
            shared_memory: None,
            gate: None,
            gate_process: None,
            watched: Watched::default(),
            unlimited: None,
            qualified: Qualified::default(),
        }
    }

    /// NVML's compute mode, as last read.
    pub fn compute_mode(&self) -> Option<ComputeMode> {
        self.compute_mode
    }

    /// Who handed it to mpsgate, if anybody.
    pub fn managed(&self) -> Option<ManagedBy> {
        self.managed
    }

    /// Whether somebody has handed it to mpsgate.
    pub fn is_managed(&self) -> bool {
        self.managed.is_some()
    }

    /// Whether grants are possible, as its card task sees it.
    pub fn health(&self) -> &Health {
        self.state.health()
    }

    /// Whether NVML does not show it any more.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Whether an operator's command has closed it: its card task is not to be started.
    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Its control daemon, for `status`.
    pub fn mps(&self) -> Option<MpsStatus> {
        self.state.status()
    }

    /// The pid of its control daemon, where one is known to run.
    pub fn control_pid(&self) -> Option<u32> {
        self.state.mps().map(|mps| mps.pid)
    }

    /// Whether its control daemon runs and does not answer.
    pub fn is_wedged(&self) -> bool {
        self.state.mps().is_some_and(card_state::Mps::is_wedged)
    }

    /// Its servers, as its control daemon named them last.
    pub fn servers(&self) -> &[ServerStatus] {
        self.state.mps().map(|mps| mps.servers.as_slice()).unwrap_or_default()
    }

    /// What a client of the next server gets that has no limit of its own, as the control daemon
    /// was told; 0 without one.
    pub fn cap(&self) -> Mib {
        self.state.mps().and_then(|mps| mps.default_limit).unwrap_or_default()
    }

    /// What containers get of its MPS.
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Clients that its server takes.
    pub fn max_clients(&self) -> u32 {
        self.max_clients
    }

    /// Whether its MPS cannot have a server: the card is simulated.
    pub fn is_serverless(&self) -> bool {
        self.serverless
    }

    /// How its servers were seen to share memory with their clients.
    pub fn shared_memory(&self) -> Option<SharedMemory> {
        self.shared_memory
    }

    /// What became of clients at its containers' doors, as its gate said last.
    pub fn gate(&self) -> Option<&Counts> {
        self.gate.as_ref()
    }

    /// What its processes use, as the watchdog last saw it.
    pub fn watched(&self) -> &Watched {
        &self.watched
    }

    /// Why the driver does not hold the cgroup of the last grant to it, where it does not.
    pub fn unlimited(&self) -> Option<&Trouble> {
        self.unlimited.as_ref()
    }

    /// What it was asked, and what follows from that.
    pub fn qualified(&self) -> &Qualified {
        &self.qualified
    }

    /// Whether grants are possible.
    pub fn condition(&self) -> Condition<'_> {
        match self.lost.as_ref().or(self.closed.as_ref()) {
            Some(Trouble { why, hint }) => Condition::Unhealthy { why, hint },
            None => self.health().condition(),
        }
    }

    /// What keeps it from serving clients, where something is known to.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.lost.as_ref().or(self.closed.as_ref()).or_else(|| self.health().trouble())
    }

    /// For `status`, of a managed card.
    pub fn state(&self) -> OneOf<CardState> {
        match (self.trouble(), self.health()) {
            (Some(trouble), _) => OneOf::Other(trouble.why.clone()),
            (None, Health::Starting) => CardState::Starting.into(),
            (None, _) => CardState::Ready.into(),
        }
    }

    /// Whether a client of `uid` finds a server that takes it.
    pub fn has_server_for(&self, uid: u32) -> bool {
        let serves = self.state.mps().and_then(|mps| mps.server_uid);
        self.serverless || serves.is_some_and(|serves| self.serves_any_uid() || serves == uid)
    }

    /// Whether clients of several uids may use it at once: its control daemon serves them, and
    /// nobody has seen that it does not. Who asks finds out anew.
    pub fn serves_any_uid(&self) -> bool {
        let Qualified { conclusion, asking, .. } = &self.qualified;
        self.multiuser && (conclusion.one_uid.is_none() || asking.is_some())
    }

    /// For messages.
    pub fn label(&self) -> String {
        format!("GPU {} ({})", self.index, self.uuid)
    }
}

/// Where a card's gate says what is wrong with it.
pub fn where_to_look(minor: u32) -> String {
    format!(
        "systemctl status mpsgate-gate@{minor}; journalctl -u mpsgate-gate@{minor} -n 50; under \
         Kubernetes kubectl logs -c gate of mpsgated's pod; without either \
         /run/mpsgate/mps/{minor}/log/gate.log"
    )
}
