//! The daemon's state and every decision on it: cards, ledger, trust. Synchronous and behind one
//! lock; its side effects are the ledger's file, the removal of exec records, and events for the
//! recorder.
//!
//! ```text
//!            reserve                activate                 init and cgroup ended, poststop
//!   (none) ──────────► Reserved ──────────────► Active ────────────────────────► (none)
//!                         │ holder ended              ▲
//!                         ▼                           │ activate with the grant, if it still fits
//!                       (none) ───────────────────────┘
//! ```
//!
//! Operations change the ledger in memory; `write` brings its file up to date, once for as many as
//! have come together. What takes memory is answered only after that, and taken back where it
//! fails. What gives memory back counts at once: should the daemon restart before it is written, it
//! finds the entry's process gone and releases it again.

pub(crate) mod card;
pub(crate) mod counters;
pub(crate) mod grants;
pub(crate) mod handlers;
mod held;
mod note;
mod place;
pub(crate) mod refusals;
pub(crate) mod report;
pub(crate) mod served;
pub(crate) mod sharing;
pub(crate) mod status;
pub(crate) mod tell;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod trust;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;

use mpsgate_api::Action;
use mpsgate_config::Switch;
use mpsgate_kubernetes::Recorder;
use mpsgate_model::ledger::{Ledger, ProcessId};
use mpsgate_model::ledger_file::LedgerFile;
use mpsgate_model::{Code, GpuUuid, GrantKey, Mib, Refusal};

use self::card::{Card, CardId, Trouble};
use self::counters::{Events, Kills};
use self::handlers::Handlers;
use self::refusals::{Evaluated, Heard};
use self::served::Served;
use self::sharing::Scheduling;

/// The state.
#[derive(Debug)]
pub(crate) struct Node {
    ledger: Ledger,
    file: LedgerFile,
    /// Changes of the ledger, and how many of them are in the file.
    changes: u64,
    written: u64,
    /// The last write failed.
    failing: bool,
    /// Where the shim records what `exec` needs.
    records: PathBuf,
    /// All cards by index.
    pub(crate) cards: Vec<Card>,
    /// Cards that `mpsgate enable` handed over, there or not.
    pub(crate) handed_over: BTreeSet<GpuUuid>,
    /// Cards whose MPS the operator stopped, there or not.
    pub(crate) stopped: BTreeSet<GpuUuid>,
    /// NVML as last seen.
    pub(crate) driver: Driver,
    /// Whether a kubelet runs here.
    pub(crate) kubelet: bool,
    /// Whether mpsgated is about to end.
    pub(crate) ending: bool,
    /// `trust.local`.
    pub(crate) trust_local: Switch,
    /// What was done to containers and processes, oldest first; bounded.
    pub(crate) actions: VecDeque<Action>,
    /// Containers that were refused, or changed.
    pub(crate) evaluated: Evaluated,
    /// What was reported of containers, so that it is told and counted once.
    pub(crate) heard: Heard,
    /// Containers that were killed.
    pub(crate) kills: Kills,
    /// What else is counted, for the metrics.
    pub(crate) events: Events,
    /// Where these are served.
    pub(crate) endpoint: Endpoint,
    /// Grants that the driver holds their cgroups to, as last seen.
    pub(crate) held: BTreeSet<GrantKey>,
    /// Resources that are served to kubelet, by name.
    pub(crate) served: BTreeMap<String, Served>,
    /// Whether grants are spread over the cards, and not packed.
    pub(crate) spread: bool,
    /// Where events of Kubernetes go.
    pub(crate) recorder: Option<Recorder>,
    /// How its cards are shared.
    pub(crate) schedule: Scheduling,
    /// Where the engine's handlers lead; `None` before the first look, and where no kubelet is.
    pub(crate) handlers: Option<Handlers>,
}

/// NVML as last seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Driver {
    /// The cards are invented.
    pub(crate) simulated: bool,
    /// The driver's version.
    pub(crate) version: Option<String>,
    /// Why there are no cards, or none that can be trusted.
    pub(crate) trouble: Option<Trouble>,
}

/// What is wrong before the first look at NVML.
pub(crate) const NOT_YET: &str = "NVML has not answered yet";

/// Where the metrics are served, for `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// `None` where the settings want none.
    pub(crate) at: Option<SocketAddr>,
    /// Why they are not served there.
    pub(crate) error: Option<String>,
}

/// What a process is asked: whether it lives. A parameter, so that tests need no processes.
pub(crate) type Alive<'a> = &'a dyn Fn(&ProcessId) -> bool;

impl Node {
    pub(crate) fn new(ledger: Ledger, file: LedgerFile, records: PathBuf) -> Self {
        Self {
            ledger,
            file,
            changes: 0,
            written: 0,
            failing: false,
            records,
            cards: Vec::new(),
            handed_over: BTreeSet::new(),
            stopped: BTreeSet::new(),
            driver: Driver::default(),
            kubelet: false,
            trust_local: Switch::Auto,
            actions: VecDeque::new(),
            evaluated: Evaluated::default(),
            heard: Heard::default(),
            kills: Kills::default(),
            events: Events::new(),
            endpoint: Endpoint::default(),
            held: BTreeSet::new(),
            served: BTreeMap::new(),
            ending: false,
            spread: false,
            recorder: None,
            schedule: Scheduling::default(),
            handlers: None,
        }
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn card(&self, uuid: &GpuUuid) -> Option<&Card> {
        self.cards.iter().find(|card| card.uuid == *uuid)
    }

    /// What the largest card of ours can give. `None` while none is known: NVML may be away.
    pub(crate) fn largest_gib(&self) -> Option<u64> {
        let managed = self.cards.iter().filter(|card| card.managed.is_some());
        managed.map(|card| card.memory.0 / 1024).max()
    }

    /// Whether NVML has told which cards there are: kubelet must not take a list for the node's
    /// that is only empty because nobody was asked yet.
    pub(crate) fn knows_its_cards(&self) -> bool {
        self.cards.iter().any(|card| card.managed.is_some())
            || (self.driver.trouble.is_none() && self.driver.version.is_some())
    }

    pub(crate) fn card_mut(&mut self, uuid: &GpuUuid) -> Option<&mut Card> {
        self.cards.iter_mut().find(|card| card.uuid == *uuid)
    }

    /// The card of a UUID or index as a person types it.
    pub(crate) fn find_card(&self, gpu: &str) -> Result<&Card, Refusal> {
        let found = self.cards.iter().find(|card| {
            card.uuid.as_str().eq_ignore_ascii_case(gpu) || card.index.to_string() == gpu
        });
        found.ok_or_else(|| match &self.driver.trouble {
            Some(trouble) => nvml_refusal(trouble),
            None => {
                let all: Vec<String> = self.cards.iter().map(Card::label).collect();
                let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
                Refusal::new(
                    Code::UnknownGpu,
                    format!("there is no GPU {gpu:?}; this node has: {all}"),
                    "name one of them by index or UUID; mpsgate status lists them",
                )
            }
        })
    }

    /// What the card's MPS should allow a client without a limit of its own: its largest grant, or
    /// all that there is to give where nobody has one.
    pub(crate) fn wanted_cap(&self, uuid: &GpuUuid) -> Mib {
        let largest = self.ledger.on_card(uuid).map(|entry| entry.grant.memory).max();
        largest.unwrap_or_else(|| self.card(uuid).map(|card| card.memory).unwrap_or_default())
    }

    /// What is needed to bring a card up.
    pub(crate) fn card_id(&self, card: &Card) -> CardId {
        let cap = self.wanted_cap(&card.uuid);
        CardId { uuid: card.uuid.clone(), minor: card.minor, memory: card.memory, cap }
    }

    /// Changes of the ledger so far, for [`Self::is_written`].
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether the first `changes` changes are in the file.
    pub(crate) fn is_written(&self, changes: u64) -> bool {
        self.written >= changes
    }

    /// Whether the last write failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing
    }

    /// Brings the file up to date.
    ///
    /// # Errors
    /// A refusal for what asked for memory. The file is then as it was.
    pub(crate) fn write(&mut self) -> Result<(), Refusal> {
        if self.is_written(self.changes) {
            return Ok(());
        }
        let stored = self.file.store(&self.ledger).map_err(|error| {
            let why = format!("the grant could not be recorded: {}", crate::error::chain(&error));
            Refusal::new(Code::Ledger, why, error.hint())
        });
        match &stored {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    log::info!("ledger written again");
                }
                self.written = self.changes;
            }
            // One line for each episode.
            Err(refusal) => {
                if !std::mem::replace(&mut self.failing, true) {
                    let (reason, hint) = (refusal.sentence.as_str(), refusal.hint.as_str());
                    log::error!(reason, hint; "ledger not written");
                }
            }
        }
        stored
    }
}

pub(crate) fn nvml_refusal(trouble: &Trouble) -> Refusal {
    Refusal::new(
        Code::GpuUnhealthy,
        format!("the NVIDIA driver does not answer: {}", trouble.why),
        trouble.hint.clone(),
    )
}
