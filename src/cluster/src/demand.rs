//! What a pod takes of a card, as Kubernetes counts: init containers one after the other, the rest
//! together.

use mpsgate_model::{Kind, Layout, Mib};

use super::{Container, PodRequest};

/// What containers take of one card at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Load {
    pub(super) memory: Mib,
    /// Percent of its compute.
    pub(super) core: u32,
    /// Containers that hold memory.
    pub(super) clients: u32,
}

impl Load {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            memory: Mib(self.memory.0.saturating_add(other.memory.0)),
            core: self.core.saturating_add(other.core),
            clients: self.clients.saturating_add(other.clients),
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            memory: self.memory.max(other.memory),
            core: self.core.max(other.core),
            clients: self.clients.max(other.clients),
        }
    }

    /// The most that containers take at once; they come in the pod's order.
    pub(super) fn peak(containers: impl Iterator<Item = (Kind, Self)> + Clone) -> Self {
        let (mut lasting, mut peak) = (Self::default(), Self::default());
        let mains = containers.clone().filter(|(kind, _)| *kind == Kind::Main);
        for (kind, load) in containers.filter(|(kind, _)| *kind != Kind::Main).chain(mains) {
            match kind {
                Kind::Init => peak = peak.max(lasting.plus(load)),
                Kind::Sidecar | Kind::Main => lasting = lasting.plus(load),
            }
        }
        peak.max(lasting)
    }
}

/// The uids of the processes on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum Uids {
    #[default]
    None,
    One(u32),
    Several,
}

impl Uids {
    pub(super) fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, uids) | (uids, Self::None) => uids,
            (Self::One(a), Self::One(b)) if a == b => self,
            _ => Self::Several,
        }
    }
}

/// What a pod takes of one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    /// The card's index.
    pub(super) card: u32,
    pub(super) load: Load,
    /// What each of its containers there has, where all have the same, else 0.
    pub(super) each: Mib,
    pub(super) uids: Uids,
}

/// What is known of a pod. Most of 100,000 of them ask one container's memory of one card: kept
/// small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    pub(super) uses: Box<[Use]>,
    /// What it asks for, where its cards are not known.
    pub(super) unplaced: Option<Box<PodRequest>>,
    pub(super) finished: bool,
    /// Of one that is not bound: until when it counts.
    pub(super) reserved_until_ms: Option<u64>,
}

impl Container {
    pub(super) fn uid(&self) -> u32 {
        self.uid.unwrap_or_default()
    }

    pub(super) fn load(&self, memory: Mib) -> Load {
        Load { memory, core: self.core_percent, clients: 1 }
    }
}

/// What a pod takes of each card of its layout. A container that its request does not name counts
/// as a main one.
pub(super) fn uses(request: &PodRequest, layout: &Layout) -> Box<[Use]> {
    let mut cards: Vec<u32> = layout.0.values().flat_map(|on| on.keys().copied()).collect();
    cards.sort_unstable();
    cards.dedup();
    let on = |card: u32| {
        let known = request.containers.iter().filter_map(move |container| {
            let memory = *layout.0.get(&container.name)?.get(&card)?;
            Some((container.kind, container.load(memory), Uids::One(container.uid())))
        });
        let asked = |name: &str| request.containers.iter().any(|one| one.name == name);
        let others = layout.0.iter().filter(move |(name, _)| !asked(name));
        let others = others.filter_map(move |(_, on)| {
            let load = Load { memory: *on.get(&card)?, core: 0, clients: 1 };
            Some((Kind::Main, load, Uids::None))
        });
        known.chain(others)
    };
    let used = cards.into_iter().map(|card| {
        let each = on(card).map(|(_, load, _)| load.memory);
        Use {
            card,
            load: Load::peak(on(card).map(|(kind, load, _)| (kind, load))),
            each: same(each).unwrap_or_default(),
            uids: on(card).fold(Uids::None, |all, (_, _, uids)| all.with(uids)),
        }
    });
    used.filter(|used| used.load.memory.0 > 0).collect()
}

fn same(mut sizes: impl Iterator<Item = Mib>) -> Option<Mib> {
    let first = sizes.next()?;
    sizes.all(|size| size == first).then_some(first)
}
