//! A card as the daemon knows it: NVML's facts, who handed it over, and how its MPS is.

use std::collections::BTreeMap;

use mpsgate_api::MpsStatus;
use mpsgate_model::{GpuUuid, GrantKey, Mib};
use mpsgate_policy::{Condition, SharedMemory};

/// One card of the node.
#[derive(Debug, Clone)]
pub(crate) struct Card {
    /// NVML's UUID.
    pub(crate) uuid: GpuUuid,
    /// NVML's index.
    pub(crate) index: u32,
    /// Minor of its node; numbers its directory and unit, because an index changes when cards go.
    pub(crate) minor: u32,
    /// Product name.
    pub(crate) name: String,
    /// All memory.
    pub(crate) total: Mib,
    /// Memory that may be granted.
    pub(crate) memory: Mib,
    /// Memory in use on the device, as last read.
    pub(crate) used: Mib,
    /// NVML's compute mode, as last read.
    pub(crate) compute_mode: String,
    /// Who handed it to mpsgate, if anybody.
    pub(crate) managed: Option<ManagedBy>,
    /// Whether grants are possible, as its card task sees it.
    pub(crate) health: Health,
    /// NVML does not show it any more.
    pub(crate) lost: Option<Trouble>,
    /// An operator's command has closed it, whatever its card task thinks: it is stopped, or being
    /// restarted or taken back.
    pub(crate) closed: Option<Trouble>,
    /// What containers get of its MPS.
    pub(crate) client_dir: String,
    /// Clients that its server takes.
    pub(crate) max_clients: u32,
    /// One server for all uids.
    pub(crate) multiuser: bool,
    /// Whose server is known to take clients.
    pub(crate) server_uid: Option<u32>,
    /// Its MPS cannot have a server: the card is simulated.
    pub(crate) serverless: bool,
    /// What a client gets that unsets its own limit: as set on control daemon and server.
    pub(crate) cap: Mib,
    /// How its servers share memory with their clients, where one was seen since its control daemon
    /// runs.
    pub(crate) shared_memory: Option<SharedMemory>,
    /// Its control daemon, as last seen.
    pub(crate) mps: Option<MpsStatus>,
    /// What its processes use, as the watchdog last saw it.
    pub(crate) watched: Watched,
    /// Why the driver does not hold the cgroup of the last grant to it, where it does not.
    pub(crate) unlimited: Option<Trouble>,
}

/// What is needed to bring a card up.
#[derive(Debug, Clone)]
pub(crate) struct CardId {
    pub(crate) uuid: GpuUuid,
    pub(crate) minor: u32,
    pub(crate) memory: Mib,
    /// What clients without a limit of their own are to get.
    pub(crate) cap: Mib,
}

/// What the watchdog last saw of a card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Watched {
    /// Whether a container that takes more than its grant is ended: its memory is seen, and the
    /// settings want it.
    pub(crate) enforced: bool,
    /// Why the memory of its processes is not seen, or not all of it.
    pub(crate) blind: Option<String>,
    /// Used by each container in sum.
    pub(crate) used: BTreeMap<GrantKey, Mib>,
}

/// Who handed a card over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ManagedBy {
    /// `gpus.manage`: only an edit of the file takes it back.
    Settings,
    /// `mpsgate enable`.
    Operator,
}

/// Whether a managed card takes grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Health {
    /// It does.
    Ready,
    /// Its control daemon is being started for the first time.
    Starting,
    /// It cannot be shared under MPS.
    Unfit(Trouble),
    /// It does not now.
    Unhealthy(Trouble),
}

/// What is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// The end of a sentence that begins with the card: `is in MIG mode`.
    pub(crate) why: String,
    /// What to do.
    pub(crate) hint: String,
}

impl Trouble {
    pub(crate) fn new(why: impl Into<String>, hint: impl Into<String>) -> Self {
        // One line: it becomes part of a sentence, of a table and of the runtime's log.
        Self { why: why.into().replace('\n', " | "), hint: hint.into() }
    }
}

impl Health {
    fn condition(&self) -> Condition<'_> {
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
    pub(crate) fn trouble(&self) -> Option<&Trouble> {
        match self {
            Self::Ready | Self::Starting => None,
            Self::Unfit(trouble) | Self::Unhealthy(trouble) => Some(trouble),
        }
    }

    /// For `status`.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Ready => "ready",
            Self::Starting => "starting",
            Self::Unfit(trouble) | Self::Unhealthy(trouble) => &trouble.why,
        }
    }
}

impl Card {
    /// Whether grants are possible.
    pub(crate) fn condition(&self) -> Condition<'_> {
        match self.lost.as_ref().or(self.closed.as_ref()) {
            Some(Trouble { why, hint }) => Condition::Unhealthy { why, hint },
            None => self.health.condition(),
        }
    }

    /// What keeps it from serving clients, where something is known to.
    pub(crate) fn trouble(&self) -> Option<&Trouble> {
        self.lost.as_ref().or(self.closed.as_ref()).or_else(|| self.health.trouble())
    }

    /// For `status`, of a managed card.
    pub(crate) fn state(&self) -> &str {
        self.trouble().map_or_else(|| self.health.text(), |trouble| &trouble.why)
    }

    /// Closes it until the operator starts its MPS again, or opens it.
    pub(crate) fn set_stopped(&mut self, stopped: bool) {
        self.closed = stopped.then(|| {
            let hint = format!("mpsgate mps restart {}", self.uuid);
            Trouble::new("was stopped by the operator", hint)
        });
    }

    /// Whether a client of `uid` finds a server that takes it.
    pub(crate) fn has_server_for(&self, uid: u32) -> bool {
        self.serverless || self.server_uid.is_some_and(|serves| self.multiuser || serves == uid)
    }

    /// For messages.
    pub(crate) fn label(&self) -> String {
        format!("GPU {} ({})", self.index, self.uuid)
    }
}
