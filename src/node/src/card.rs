//! A card as the daemon knows it: NVML's facts, who handed it over, and how its MPS is.

use std::collections::BTreeMap;

use mpsgate_api::{CardMemory, CardState, MpsStatus};
use mpsgate_model::door::Counts;
use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{Answer, ComputeMode, GpuUuid, GrantKey, Mib, OneOf, Qualification, Subject};
use mpsgate_policy::{Conclusion, Condition, Disturbance, SharedMemory, Sight};

/// Processes that a sentence names.
const NAMED: usize = 6;
/// Of a card, what others may take of it while it is asked: a desktop does, as windows come and go.
const MUCH: Mib = Mib(256);

/// One card of the node.
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
    pub compute_mode: Option<ComputeMode>,
    /// Who handed it to mpsgate, if anybody.
    pub managed: Option<ManagedBy>,
    /// Whether grants are possible, as its card task sees it.
    pub health: Health,
    /// NVML does not show it any more.
    pub lost: Option<Trouble>,
    /// An operator's command has closed it, whatever its card task thinks: it is stopped, or being
    /// restarted or taken back.
    pub closed: Option<Trouble>,
    /// What containers get of its MPS.
    pub ends: Ends,
    /// Clients that its server takes.
    pub max_clients: u32,
    /// One server for all uids.
    pub multiuser: bool,
    /// Whose server is known to take clients.
    pub server_uid: Option<u32>,
    /// Its MPS cannot have a server: the card is simulated.
    pub serverless: bool,
    /// What a client of the next server gets that has no limit of its own, as the control daemon
    /// was told.
    pub cap: Mib,
    /// How its servers share memory with their clients, where one was seen since its control daemon
    /// runs.
    pub shared_memory: Option<SharedMemory>,
    /// Its control daemon, as last seen.
    pub mps: Option<MpsStatus>,
    /// What became of clients at its containers' doors, as its gate said last.
    pub gate: Option<Counts>,
    /// Which gate said so.
    pub gate_process: Option<ProcessId>,
    /// What its processes use, as the watchdog last saw it.
    pub watched: Watched,
    /// Why the driver does not hold the cgroup of the last grant to it, where it does not.
    pub unlimited: Option<Trouble>,
    /// What it was asked, and what follows from that.
    pub qualified: Qualified,
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

/// What a card was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Qualified {
    /// Its answers.
    pub found: Option<Qualification>,
    /// Why they cannot be read, where there are some.
    pub unreadable: Option<String>,
    /// What follows from them with the driver of today.
    pub conclusion: Conclusion,
    /// Why it takes no grant, where that follows.
    pub refusal: Option<Trouble>,
    /// It is being asked now.
    pub asking: Option<Asking>,
    /// Kubelet is told of it once it was asked, or nobody came for that.
    pub is_awaited: bool,
}

/// A card that is being asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asking {
    /// How the ids of the containers begin that ask it.
    pub id: String,
    /// Of what it is asked.
    pub subject: Subject,
    /// What everybody else is told.
    pub trouble: Trouble,
    /// What it has answered so far, as it counts.
    pub answers: Vec<Answer>,
    /// What else was seen of it so far.
    pub sight: Sight,
    /// `sight` as it was at the last answer: what was seen since may be the cause of the next one.
    pub before: Sight,
    /// How often its gate has told of its clients.
    pub told: u64,
    /// Bytes of it that processes without a grant had at the least.
    pub others: Option<u64>,
}

impl Asking {
    /// Of a card that has said nothing yet.
    pub fn new(id: &str, subject: Subject, trouble: Trouble) -> Self {
        Self {
            id: id.to_owned(),
            subject,
            trouble,
            answers: Vec::new(),
            sight: Sight::default(),
            before: Sight::default(),
            told: 0,
            others: None,
        }
    }
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

/// What is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The end of a sentence that begins with the card: `is in MIG mode`.
    pub why: String,
    /// What to do.
    pub hint: String,
}

impl Trouble {
    /// Of a sentence's end and a command.
    pub fn new(why: impl Into<String>, hint: impl Into<String>) -> Self {
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
    pub fn trouble(&self) -> Option<&Trouble> {
        match self {
            Self::Ready | Self::Starting => None,
            Self::Unfit(trouble) | Self::Unhealthy(trouble) => Some(trouble),
        }
    }
}

impl Card {
    /// Whether grants are possible.
    pub fn condition(&self) -> Condition<'_> {
        match self.lost.as_ref().or(self.closed.as_ref()) {
            Some(Trouble { why, hint }) => Condition::Unhealthy { why, hint },
            None => self.health.condition(),
        }
    }

    /// What keeps it from serving clients, where something is known to.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.lost.as_ref().or(self.closed.as_ref()).or_else(|| self.health.trouble())
    }

    /// For `status`, of a managed card.
    pub fn state(&self) -> OneOf<CardState> {
        match (self.trouble(), &self.health) {
            (Some(trouble), _) => OneOf::Other(trouble.why.clone()),
            (None, Health::Starting) => CardState::Starting.into(),
            (None, _) => CardState::Ready.into(),
        }
    }

    /// Takes what its card task thinks of it.
    pub fn set_health(&mut self, health: Health) {
        if let Condition::Unfit { why, .. } | Condition::Unhealthy { why, .. } = health.condition()
        {
            self.saw(Disturbance::NotReady, format!("it {why}"));
        }
        self.health = health;
    }

    /// Takes note of what may keep it from answering as its driver would, while it is asked.
    pub fn saw(&mut self, what: Disturbance, words: impl Into<String>) {
        if let Some(asking) = &mut self.qualified.asking {
            asking.sight.saw(what, words);
        }
    }

    /// Takes what its gate says of its clients.
    pub fn count_clients(&mut self, counts: Counts, gate: Option<ProcessId>) {
        let is_other = self.gate_process.is_some() && self.gate_process != gate;
        // What the first gate of this mpsgated tells is of before.
        let before = match self.gate.take() {
            Some(before) if !is_other => before,
            Some(_) => Counts::default(),
            None => counts.clone(),
        };
        if is_other {
            self.saw(Disturbance::Gate, "its gate was started anew");
        }
        for (reason, count) in &counts.ended {
            let new = count.saturating_sub(before.ended.get(reason).copied().unwrap_or_default());
            if new > 0 {
                let words = format!("its gate ended clients ({} {new})", reason.as_str());
                self.saw(Disturbance::Ended(*reason), words);
            }
        }
        if let Some(asking) = &mut self.qualified.asking {
            asking.told += 1;
        }
        (self.gate, self.gate_process) = (Some(counts), gate);
    }

    /// Takes who uses it without a grant, and how much they have where NVML tells all.
    pub fn note_others(&mut self, outsiders: &[u32], others: Option<u64>) {
        if !outsiders.is_empty() {
            let pids: Vec<String> = outsiders.iter().take(NAMED).map(u32::to_string).collect();
            let words = format!("processes without a grant used it: pid {}", pids.join(", "));
            self.saw(Disturbance::Outsider, words);
        }
        let (Some(asking), Some(now)) = (&mut self.qualified.asking, others) else { return };
        let least = asking.others.map_or(now, |least| least.min(now));
        asking.others = Some(least);
        let more = now.saturating_sub(least) >> 20;
        if more > MUCH.0 {
            let words = format!("processes without a grant took {} more of it", Mib(more));
            self.saw(Disturbance::Memory, words);
        }
    }

    /// Closes it until the operator starts its MPS again, or opens it.
    pub fn set_stopped(&mut self, stopped: bool) {
        self.closed = stopped.then(|| {
            let hint = format!("mpsgate mps restart {}", self.uuid);
            Trouble::new("was stopped by the operator", hint)
        });
    }

    /// Whether a client of `uid` finds a server that takes it.
    pub fn has_server_for(&self, uid: u32) -> bool {
        self.serverless
            || self.server_uid.is_some_and(|serves| self.serves_any_uid() || serves == uid)
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
