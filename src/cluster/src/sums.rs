//! What is on each card of one node.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use mpsgate_model::{CardReport, Kind, Mib};

use super::demand::{Entry, Load, Uids};
use super::{Container, Node, PodRequest};
use mpsgate_policy::promise::{Unplaced, expected_on};

/// A card and what is on it: all that a question reads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Sum {
    pub(super) index: u32,
    pub(super) memory: Mib,
    pub(super) healthy: bool,
    pub(super) one_uid: bool,
    pub(super) max_clients: Option<u32>,
    /// By pods and by others.
    pub(super) used: Mib,
    /// Percent of its compute.
    pub(super) core: u32,
    /// Containers that hold memory.
    pub(super) clients: u32,
    pub(super) pods: u32,
    pub(super) uids: Uids,
    /// The sizes of its holders.
    pub(super) sizes: BTreeSet<Mib>,
}

impl Sum {
    /// Memory that nobody has; none where the card shrank.
    pub(super) fn left(&self) -> Mib {
        self.memory.saturating_sub(self.used)
    }
}

/// A pod on a card.
#[derive(Debug, Clone, Copy)]
pub(super) struct On<'a> {
    pub(super) uid: &'a str,
    pub(super) load: Load,
    /// What each of its containers there has, where all have the same, else 0.
    each: Mib,
    uids: Uids,
}

/// A card without any pod. Without any client a server makes room for one of another uid.
pub(super) fn local(card: &CardReport) -> Sum {
    let uids = if card.local.0 > 0 { served(card) } else { Uids::None };
    Sum {
        index: card.index,
        memory: card.memory,
        healthy: card.healthy,
        one_uid: card.one_uid,
        max_clients: card.max_clients,
        used: card.local,
        core: 0,
        clients: 0,
        pods: 0,
        uids,
        sizes: BTreeSet::new(),
    }
}

fn served(card: &CardReport) -> Uids {
    card.uid.map_or(Uids::None, Uids::One)
}

/// The sum of a card and of the pods on it.
pub(super) fn of(card: &CardReport, pods: &[On<'_>]) -> Sum {
    let mut sum = local(card);
    for on in pods {
        sum.used = Mib(sum.used.0.saturating_add(on.load.memory.0));
        sum.core = sum.core.saturating_add(on.load.core);
        sum.clients = sum.clients.saturating_add(on.load.clients);
        sum.pods = sum.pods.saturating_add(1);
        sum.uids = sum.uids.with(on.uids);
        sum.sizes.insert(on.each);
    }
    sum
}

/// The pods on each card of a node, in the order of its cards. `gone`: pods that count with
/// nothing, whoever holds it.
pub(super) fn by_card<'a>(
    node: &'a Node,
    entries: impl Iterator<Item = (&'a str, &'a Entry)>,
    gone: impl Fn(&str) -> bool,
) -> Vec<Vec<On<'a>>> {
    let mut cards: Vec<Vec<On<'a>>> = node.cards.iter().map(|_| Vec::new()).collect();
    let mut unplaced = Vec::new();
    for (uid, entry) in entries.filter(|(uid, entry)| !entry.finished && !gone(uid)) {
        for used in &entry.uses {
            let position = node.cards.binary_search_by_key(&used.card, |card| card.index);
            if let Some(on) = position.ok().and_then(|position| cards.get_mut(position)) {
                on.push(On { uid, load: used.load, each: used.each, uids: used.uids });
            }
        }
        if let Some(request) = entry.unplaced.as_deref() {
            unplaced.push((uid, request));
        }
    }
    for (card, on) in node.cards.iter().zip(&mut cards) {
        for (uid, memory) in card.held.iter().filter(|(uid, _)| !gone(uid)) {
            hold(on, card, uid, *memory);
        }
    }
    if !unplaced.is_empty() {
        expect(node, &mut cards, &unplaced);
    }
    cards
}

/// Counts what a node says that a pod holds: with what was promised to it, the larger of both.
/// Whoever holds memory of a card runs as the uid that is served there, whatever the pod says of
/// it.
fn hold<'a>(on: &mut Vec<On<'a>>, card: &CardReport, uid: &'a str, memory: Mib) {
    if memory.0 == 0 {
        return;
    }
    match on.iter_mut().find(|on| on.uid == uid) {
        Some(on) => {
            on.load.memory = on.load.memory.max(memory);
            if card.uid.is_some() {
                on.uids = served(card);
            }
        }
        None => {
            let load = Load { memory, core: 0, clients: 1 };
            on.push(On { uid, load, each: memory, uids: served(card) });
        }
    }
}

/// A part of a pod that was bound without a word about its cards.
struct Part<'a> {
    uid: &'a str,
    unplaced: Unplaced<usize>,
    load: Load,
    uids: Uids,
}

/// Counts pods whose cards are not known: what they hold, and the rest where the node would give
/// it.
fn expect<'a>(node: &Node, cards: &mut [Vec<On<'a>>], unplaced: &[(&'a str, &'a PodRequest)]) {
    let mut parts = Vec::new();
    for (uid, request) in unplaced {
        let mut left: Vec<Mib> = cards
            .iter()
            .map(|on| on.iter().find(|on| on.uid == *uid).map_or(Mib(0), |on| on.load.memory))
            .collect();
        for part in parts_of(uid, request) {
            let holding = holding(&mut left, &part.unplaced);
            for position in &holding {
                let Some(on) = cards.get_mut(*position) else { continue };
                for on in on.iter_mut().filter(|on| on.uid == *uid) {
                    on.load.core = on.load.core.saturating_add(part.load.core);
                    on.uids = on.uids.with(part.uids);
                }
            }
            if holding.is_empty() {
                parts.push(part);
            }
        }
    }
    let free: Vec<(usize, Mib)> = node
        .cards
        .iter()
        .zip(cards.iter())
        .enumerate()
        .map(|(position, (card, on))| (position, of(card, on).left()))
        .collect();
    let asked: Vec<Unplaced<usize>> = parts.iter().map(|part| part.unplaced.clone()).collect();
    for (part, positions) in parts.iter().zip(expected_on(&free, &asked)) {
        for position in positions {
            let Some(on) = cards.get_mut(position) else { continue };
            match on.iter_mut().find(|on| on.uid == part.uid) {
                Some(on) => {
                    on.load = on.load.plus(part.load);
                    on.uids = on.uids.with(part.uids);
                }
                None => on.push(On {
                    uid: part.uid,
                    load: part.load,
                    each: part.load.memory,
                    uids: part.uids,
                }),
            }
        }
    }
}

/// The cards on which a part runs already, and takes them from what is left of the pod's hold; none
/// where it does not.
fn holding(left: &mut [Mib], asked: &Unplaced<usize>) -> Vec<usize> {
    let has = |(position, left): (usize, &Mib)| (*left >= asked.memory).then_some(position);
    let on: Vec<usize> = left.iter().enumerate().filter_map(has).take(asked.cards).collect();
    if on.len() < asked.cards {
        return Vec::new();
    }
    for position in &on {
        if let Some(left) = left.get_mut(*position) {
            *left = left.saturating_sub(asked.memory);
        }
    }
    on
}

/// What a pod asks for: each container that lasts, and what the init containers need beyond these.
fn parts_of<'a>(uid: &'a str, request: &'a PodRequest) -> Vec<Part<'a>> {
    let lasting = request.containers.iter().filter(|one| one.kind != Kind::Init);
    let mut parts: Vec<Part<'_>> = lasting.map(|container| part(uid, request, container)).collect();
    let all = |one: &Container| (one.kind, one.load(one.memory));
    let peak = Load::peak(request.containers.iter().map(all)).memory;
    let lasting = request.containers.iter().filter(|one| one.kind != Kind::Init).map(all);
    let beyond = peak.saturating_sub(Load::peak(lasting).memory);
    if beyond.0 > 0 {
        parts.push(Part {
            uid,
            unplaced: Unplaced { memory: beyond, cards: 1, chosen: Vec::new() },
            load: Load { memory: beyond, core: 0, clients: 1 },
            uids: Uids::None,
        });
    }
    // What it holds is laid on the large ones first.
    parts.sort_by_key(|part| std::cmp::Reverse(part.unplaced.memory));
    parts
}

fn part<'a>(uid: &'a str, request: &PodRequest, container: &Container) -> Part<'a> {
    let cards = NonZeroU32::new(request.cards).unwrap_or(NonZeroU32::MIN);
    let (memory, cards) = match container.memory.split(cards, container.unit.max(Mib(1))) {
        Some(each) => (each, usize::try_from(cards.get()).unwrap_or(usize::MAX)),
        None => (container.memory, 1),
    };
    Part {
        uid,
        unplaced: Unplaced { memory, cards, chosen: Vec::new() },
        load: container.load(memory),
        uids: Uids::One(container.uid()),
    }
}
