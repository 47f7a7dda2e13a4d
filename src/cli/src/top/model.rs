//! What is shown: the last answer of the daemon, what the answers before it said, and how it is
//! sorted.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};

use mpsgate_api::{GrantStatus, Status};

/// Samples that are kept of each card and container: more than any terminal has columns.
const SAMPLES: usize = 512;

/// By what containers are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Used,
    Share,
    Limit,
    Age,
    Gpu,
    Container,
}

impl Sort {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Share => "share of limit",
            Self::Limit => "limit",
            Self::Age => "age",
            Self::Gpu => "GPU",
            Self::Container => "container",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Used => Self::Share,
            Self::Share => Self::Limit,
            Self::Limit => Self::Age,
            Self::Age => Self::Gpu,
            Self::Gpu => Self::Container,
            Self::Container => Self::Used,
        }
    }
}

/// What somebody wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Sort,
    Reverse,
    Pause,
    /// Lines down; up where negative.
    Scroll(isize),
    ToStart,
    ToEnd,
}

/// What one of several things used, look by look.
pub(crate) type Samples = VecDeque<Option<u64>>;

#[derive(Debug)]
pub(crate) struct Model {
    status: Status,
    /// By UUID.
    cards: HashMap<String, Samples>,
    /// By container and instance.
    grants: HashMap<(String, String), Samples>,
    pub(crate) sort: Sort,
    pub(crate) reverse: bool,
    pub(crate) paused: bool,
    /// Containers above the first line that is shown.
    pub(crate) offset: usize,
    /// Why there is no newer answer.
    pub(crate) trouble: Option<String>,
}

impl Model {
    pub(crate) fn new(status: Status) -> Self {
        let mut model = Self {
            status: status.clone(),
            cards: HashMap::new(),
            grants: HashMap::new(),
            sort: Sort::Used,
            reverse: false,
            paused: false,
            offset: 0,
            trouble: None,
        };
        model.take(status);
        model
    }

    /// An answer of the daemon, which is not looked at while the picture stands still.
    pub(crate) fn take(&mut self, status: Status) {
        self.trouble = None;
        if self.paused {
            return;
        }
        let mut cards = std::mem::take(&mut self.cards);
        self.cards = status
            .cards
            .iter()
            .map(|card| grow(&mut cards, card.uuid.clone(), card.used_mib))
            .collect();
        let mut grants = std::mem::take(&mut self.grants);
        self.grants = status
            .grants
            .iter()
            .map(|grant| grow(&mut grants, key(grant), grant.used_mib))
            .collect();
        self.offset = self.offset.min(status.grants.len().saturating_sub(1));
        self.status = status;
    }

    /// The daemon did not answer; what is shown is old.
    pub(crate) fn fail(&mut self, trouble: String) {
        self.trouble = Some(trouble);
    }

    pub(crate) fn wish(&mut self, wish: Wish) {
        let last = self.status.grants.len().saturating_sub(1);
        match wish {
            Wish::Sort => self.sort = self.sort.next(),
            Wish::Reverse => self.reverse = !self.reverse,
            Wish::Pause => self.paused = !self.paused,
            Wish::Scroll(lines) => self.offset = self.offset.saturating_add_signed(lines).min(last),
            Wish::ToStart => self.offset = 0,
            Wish::ToEnd => self.offset = last,
        }
    }

    pub(crate) fn status(&self) -> &Status {
        &self.status
    }

    pub(crate) fn card_history(
        &self,
        uuid: &str,
    ) -> impl DoubleEndedIterator<Item = Option<u64>> + use<'_> {
        self.cards.get(uuid).into_iter().flatten().copied()
    }

    pub(crate) fn grant_history(
        &self,
        grant: &GrantStatus,
    ) -> impl DoubleEndedIterator<Item = Option<u64>> + use<'_> {
        self.grants.get(&key(grant)).into_iter().flatten().copied()
    }

    /// Grants in the order that was asked for: the most, the oldest, the first of the alphabet
    /// first.
    pub(crate) fn sorted(&self) -> Vec<&GrantStatus> {
        let mut grants: Vec<_> = self.status.grants.iter().collect();
        grants.sort_by(|a, b| {
            let order = self.compare(a, b);
            if self.reverse { order.reverse() } else { order }
        });
        grants
    }

    fn compare(&self, a: &GrantStatus, b: &GrantStatus) -> Ordering {
        let first = match self.sort {
            Sort::Used => b.used_mib.cmp(&a.used_mib),
            Sort::Share => share(b).cmp(&share(a)),
            Sort::Limit => b.memory_mib.cmp(&a.memory_mib),
            Sort::Age => a.since_ms.cmp(&b.since_ms),
            Sort::Gpu => a.card_index.cmp(&b.card_index),
            Sort::Container => Ordering::Equal,
        };
        // Rows of one value stand still from look to look.
        first.then_with(|| key(a).cmp(&key(b)))
    }
}

/// What it uses of its limit, in millionths.
fn share(grant: &GrantStatus) -> Option<u128> {
    Some(u128::from(grant.used_mib?) * 1_000_000 / u128::from(grant.memory_mib.max(1)))
}

fn key(grant: &GrantStatus) -> (String, String) {
    (grant.container_id.clone(), grant.instance.clone())
}

/// The samples of `key` with one more.
fn grow<K: std::hash::Hash + Eq>(
    all: &mut HashMap<K, Samples>,
    key: K,
    sample: Option<u64>,
) -> (K, Samples) {
    let mut samples = all.remove(&key).unwrap_or_default();
    if samples.len() == SAMPLES {
        samples.pop_front();
    }
    samples.push_back(sample);
    (key, samples)
}
