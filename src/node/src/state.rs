//! The daemon's state and every decision on it: cards, ledger, trust. Synchronous and behind one
//! lock; it changes nothing else: what is to be done is an [`Effect`](crate::Effect), and what it
//! must know of processes is asked of a [`Machine`](crate::Machine).
//!
//! ```text
//!            reserve                activate                 init and cgroup ended, poststop
//!   (none) ──────────► Reserved ──────────────► Active ────────────────────────► (none)
//!                         │ holder ended              ▲
//!                         ▼                           │ activate with the grant, if it still fits
//!                       (none) ───────────────────────┘
//! ```
//!
//! Operations change the ledger in memory; its file is brought up to date once for as many as have
//! come together. What takes memory is answered only after that, and taken back where it fails.
//! What gives memory back counts at once: should the daemon restart before it is written, it finds
//! the entry's process gone and releases it again.

mod asker;
mod card_change;
mod card_questions;
mod cgroups;
mod default_limit;
mod grant_cards;
mod grant_size;
mod grants;
mod held;
mod kept_claims;
mod named;
mod node_status;
mod note;
pub mod sharing;
mod trust;

use std::collections::{BTreeSet, VecDeque};

use mpsgate_api::Action;
use mpsgate_config::Switch;
use mpsgate_model::ledger::Ledger;
use mpsgate_model::{Code, GpuUuid, GrantKey, Refusal};
use mpsgate_policy::{Condition, Quota};

pub use self::default_limit::AtDoor;
pub use self::grant_size::Resizing;
pub use self::grants::Reserved;
pub use self::kept_claims::not_prepared;
use self::sharing::Scheduling;
pub use self::trust::Confirmed;
use crate::card::{Card, CardId, Trouble};
use crate::refusal_counts::{CodeCounts, Heard};

/// The state.
#[derive(Debug)]
pub struct Node {
    ledger: Ledger,
    /// Changes of the ledger, and how many of them are in the file.
    changes: u64,
    written: u64,
    /// The last write failed.
    failing: bool,
    /// All cards by index.
    pub(crate) cards: Vec<Card>,
    /// Cards that `mpsgate enable` handed over, there or not.
    pub handed_over: BTreeSet<GpuUuid>,
    /// Cards whose MPS the operator stopped, there or not.
    pub stopped: BTreeSet<GpuUuid>,
    /// NVML as last seen.
    pub driver: Driver,
    /// Whether a kubelet runs here.
    pub kubelet: bool,
    /// `trust.local`.
    pub trust_local: Switch,
    /// `run.max_mib` and `run.max_grants`.
    pub quota: Quota,
    /// What was done to containers and processes, oldest first; bounded.
    actions: VecDeque<Action>,
    /// Containers that were refused, or changed.
    counts: CodeCounts,
    /// What was reported of containers, so that it is told and counted once.
    heard: Heard,
    /// Containers that were killed.
    pub kills: Kills,
    /// Grants that the driver holds their cgroups to, as last seen.
    held: BTreeSet<GrantKey>,
    /// Whether grants are spread over the cards, and not packed.
    pub spread: bool,
    /// How its cards are shared.
    pub schedule: Scheduling,
}

/// NVML as last seen.
#[derive(Debug, Clone, Default)]
pub struct Driver {
    /// The cards are invented.
    pub simulated: bool,
    /// The driver's version.
    pub version: Option<String>,
    /// The control program that the settings name, as the answers of cards name it.
    pub control: String,
    /// Why there are no cards, or none that can be trusted.
    pub trouble: Option<Trouble>,
}

/// What is wrong before the first look at NVML.
pub const NOT_YET: &str = "NVML has not answered yet";

/// Kills of containers with a grant, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kills {
    /// CUDA clients whose GPU work was ended first.
    pub terminated: u64,
    /// Containers that were killed without.
    pub unprepared: u64,
}

impl Node {
    /// With the grants that there are, and no card yet.
    pub fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            changes: 0,
            written: 0,
            failing: false,
            cards: Vec::new(),
            handed_over: BTreeSet::new(),
            stopped: BTreeSet::new(),
            driver: Driver::default(),
            kubelet: false,
            trust_local: Switch::Auto,
            quota: Quota::default(),
            actions: VecDeque::new(),
            counts: CodeCounts::default(),
            heard: Heard::default(),
            kills: Kills::default(),
            held: BTreeSet::new(),
            spread: false,
            schedule: Scheduling::default(),
        }
    }

    /// What is promised, reserved and granted.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// All cards by index.
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// The card of a UUID.
    pub fn card(&self, uuid: &GpuUuid) -> Option<&Card> {
        self.cards.iter().find(|card| card.uuid == *uuid)
    }

    /// What the largest card of ours can give. `None` while none is known: NVML may be away.
    pub fn largest_gib(&self) -> Option<u64> {
        let managed = self.cards.iter().filter(|card| card.is_managed());
        managed.map(|card| card.memory.0 / 1024).max()
    }

    /// Whether NVML has told which cards there are: kubelet must not take a list for the node's
    /// that is only empty because nobody was asked yet.
    pub fn knows_its_cards(&self) -> bool {
        self.cards.iter().any(|card| card.is_managed())
            || (self.driver.trouble.is_none() && self.driver.version.is_some())
    }

    /// The same, for a change.
    pub(crate) fn card_mut(&mut self, uuid: &GpuUuid) -> Option<&mut Card> {
        self.cards.iter_mut().find(|card| card.uuid == *uuid)
    }

    /// The card of a UUID or index as a person types it.
    pub fn find_card(&self, gpu: &str) -> Result<&Card, Refusal> {
        let found = self.cards.iter().find(|card| {
            card.uuid.as_str().eq_ignore_ascii_case(gpu) || card.index.to_string() == gpu
        });
        if let Some(card) = found {
            return Ok(card);
        }
        self.driver_answers()?;
        let all: Vec<String> = self.cards.iter().map(Card::label).collect();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        Err(Refusal::new(
            Code::UnknownGpu,
            format!("there is no GPU {gpu:?}; this node has: {all}"),
            "name one of them by index or UUID; mpsgate status lists them",
        ))
    }

    /// What is granted while the driver does not answer is not known to be there.
    fn driver_answers(&self) -> Result<(), Refusal> {
        let trouble = self.driver.trouble.as_ref();
        trouble.map_or(Ok(()), |it| Err(it.refusal("the NVIDIA driver does not answer:")))
    }

    /// Why a card takes no requests.
    pub fn trouble(&self, card: &Card) -> Option<String> {
        match self.condition(card) {
            Condition::Ready => None,
            Condition::Unfit { why, hint }
            | Condition::Unhealthy { why, hint }
            | Condition::NotReady { why, hint } => Some(format!("{why}; {hint}")),
        }
    }

    /// What is needed to bring a card up.
    pub fn card_id(&self, card: &Card) -> CardId {
        CardId {
            uuid: card.uuid.clone(),
            minor: card.minor,
            memory: card.memory,
            default_limit: self.default_limit(&card.uuid),
        }
    }

    /// Changes of the ledger so far, for [`Self::is_written`].
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether the first `changes` changes are in the file.
    pub fn is_written(&self, changes: u64) -> bool {
        self.written >= changes
    }

    /// Whether the last write failed.
    pub fn is_failing(&self) -> bool {
        self.failing
    }

    /// Takes note of an attempt to write the first `changes` changes. Whether it began or ended an
    /// episode of failures.
    pub fn note_write(&mut self, changes: u64, is_written: bool) -> bool {
        if is_written {
            self.written = self.written.max(changes);
        }
        std::mem::replace(&mut self.failing, !is_written) == is_written
    }
}
