//! The cards of one node that a pod gets.
//!
//! What takes part is an item: a container's memory on one card, one item for most pods and M for a
//! container over M cards. The large ones choose first, init containers last, as they may use what
//! the others will. Each takes the card that the node would take, too
//! ([`crate::placement::order`]). Where the last ones find none, the choices are taken back, up to
//! a limit: only pods of several items come so far.

use std::num::NonZeroU32;

use mpsgate_model::{Kind, Layout, Mib};

use super::demand::{Load, Uids};
use super::reason::{Cause, Obstacle, Tally};
use super::sums::Sum;
use super::{Container, Node, PodRequest};
use mpsgate_policy::placement::order;
use mpsgate_policy::schedule::Word;

/// Choices that are tried for one pod on one node.
const TRIES: usize = 200;
/// Looks at a card in all these tries, each of which ranks every card: as many as 200 tries among
/// 32 cards. A report of thousands of cards makes no search longer.
const LOOKS: usize = 6_400;
const WHOLE: u32 = 100;

/// A node as one question sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) node: &'a Node,
    /// Of its cards, in their order.
    pub(super) sums: &'a [Sum],
    pub(super) spread: bool,
}

impl<'a> View<'a> {
    fn cards(self) -> impl Iterator<Item = (usize, &'a Sum)> {
        self.sums.iter().enumerate()
    }
}

/// A container's memory on one card.
#[derive(Debug, Clone, Copy)]
struct Item<'a> {
    /// Its position in the pod.
    order: usize,
    container: &'a Container,
    memory: Mib,
    /// The card that it has.
    on: Option<usize>,
}

impl Item<'_> {
    fn load(&self) -> (Kind, Load) {
        (self.container.kind, self.container.load(self.memory))
    }
}

/// The cards of a pod.
#[derive(Debug)]
pub(super) struct Found<'a>(Vec<Item<'a>>);

impl Found<'_> {
    pub(super) fn layout(&self, view: View<'_>) -> Layout {
        let mut layout = Layout::default();
        for item in &self.0 {
            let Some(card) = item.on.and_then(|on| view.sums.get(on)) else { continue };
            let on = layout.0.entry(item.container.name.clone()).or_default();
            on.insert(card.index, item.memory);
        }
        layout
    }

    /// How full, or empty, the pod's cards and the node come to be.
    pub(super) fn score(&self, view: View<'_>) -> Option<u8> {
        let (mut used, mut total, mut all_used, mut all) = (0u64, 0u64, 0u64, 0u64);
        for (position, sum) in view.cards() {
            let here = self.0.iter().any(|item| item.on == Some(position));
            let mine = if here { peak(&self.0, position, None).memory } else { Mib(0) };
            let taken = sum.used.0.saturating_add(mine.0).min(sum.memory.0);
            all_used = all_used.saturating_add(taken);
            all = all.saturating_add(sum.memory.0);
            if mine.0 > 0 {
                used = used.saturating_add(taken);
                total = total.saturating_add(sum.memory.0);
            }
        }
        let full = |used: u64, total: u64| used.saturating_mul(1000).checked_div(total);
        let full = (full(used, total)? * CARD + full(all_used, all)? * (10 - CARD)) / 10;
        let score = if view.spread { 1000 - full.min(1000) } else { full };
        u8::try_from((score + 50) / 100).ok()
    }
}

/// Tenths of the score that the cards make; the node makes the rest.
const CARD: u64 = 7;

/// The cards that a pod gets; no item where it asks for nothing.
pub(super) fn place<'a>(view: View<'_>, request: &'a PodRequest) -> Result<Found<'a>, Obstacle> {
    if view.node.schedule == Word::Off {
        return Err(Obstacle::NotOurs);
    }
    if view.node.cards.is_empty() {
        return Err(Obstacle::NoCards);
    }
    let mut items = items(view, request)?;
    if let [item] = items.as_mut_slice() {
        // Nearly every pod.
        item.on = Some(best(view, item)?);
        return Ok(Found(items));
    }
    let may_fit = may_fit(view, &items);
    items.sort_by_key(|item| (item.container.kind == Kind::Init, std::cmp::Reverse(item.memory)));
    if may_fit && at_once(view, &mut items) {
        return Ok(Found(items));
    }
    if let Some(item) = items.iter().find(|item| !has_card(view, item)) {
        return Err(none(view, item));
    }
    let mut tries = TRIES.min(LOOKS / view.sums.len().max(1));
    if may_fit && search(view, &mut items, 0, &mut tries) {
        return Ok(Found(items));
    }
    Err(together(view, &items, request))
}

/// Whether all healthy cards together have the memory, and take the clients, that a pod has at one
/// time. Without that no choice of cards does, and none is tried. The items are in the pod's order.
fn may_fit(view: View<'_>, items: &[Item<'_>]) -> bool {
    let all = Load::peak(items.iter().map(Item::load));
    // No number: one of the cards takes any number of clients.
    let (mut left, mut clients) = (Mib(0), Some(0u32));
    for (_, sum) in view.cards().filter(|(_, sum)| sum.healthy) {
        left = Mib(left.0.saturating_add(sum.left().0));
        let free = sum.max_clients.map(|most| most.saturating_sub(sum.clients));
        clients = clients.zip(free).map(|(all, free)| all.saturating_add(free));
    }
    all.memory <= left && clients.is_none_or(|most| all.clients <= most)
}

fn items<'a>(view: View<'_>, request: &'a PodRequest) -> Result<Vec<Item<'a>>, Obstacle> {
    let cards = NonZeroU32::new(request.cards).unwrap_or(NonZeroU32::MIN);
    let many = usize::try_from(cards.get()).unwrap_or(usize::MAX);
    if many > 1 && view.node.schedule == Word::Mps {
        return Err(Obstacle::SeveralCards(cards));
    }
    if many > view.node.cards.len() {
        return Err(Obstacle::FewCards { asked: cards, cards: view.node.cards.len() });
    }
    let mut items = Vec::with_capacity(request.containers.len() * many);
    for (order, container) in request.containers.iter().enumerate() {
        let unit = container.unit.max(Mib(1));
        let memory = match many {
            1 => container.memory,
            _ => container.memory.split(cards, unit).ok_or(Obstacle::Uneven {
                memory: container.memory,
                cards,
                unit,
            })?,
        };
        if memory.0 == 0 && container.core_percent > 0 {
            return Err(Obstacle::CoreAlone {
                container: container.name.clone(),
                core: container.core_percent,
            });
        }
        if memory.0 > 0 {
            items.extend((0..many).map(|_| Item { order, container, memory, on: None }));
        }
    }
    Ok(items)
}

/// The best card for an item by itself.
fn best(view: View<'_>, item: &Item<'_>) -> Result<usize, Obstacle> {
    let (_, load) = item.load();
    let uid = Uids::One(item.container.uid());
    let mut best = None;
    for (position, sum) in view.cards() {
        if obstacle(view.node, sum, load, uid).is_some() {
            continue;
        }
        let equal = sum.sizes.contains(&item.memory);
        let rank = order(view.spread, equal, sum.left(), sum.index);
        if best.as_ref().is_none_or(|(least, _)| rank < *least) {
            best = Some((rank, position));
        }
    }
    best.map(|(_, position)| position).ok_or_else(|| none(view, item))
}

/// Whether there is a card for an item by itself.
fn has_card(view: View<'_>, item: &Item<'_>) -> bool {
    let (_, load) = item.load();
    let uid = Uids::One(item.container.uid());
    view.sums.iter().any(|sum| obstacle(view.node, sum, load, uid).is_none())
}

/// Why no card takes an item.
fn none(view: View<'_>, item: &Item<'_>) -> Obstacle {
    let (_, load) = item.load();
    let uid = Uids::One(item.container.uid());
    let mut tally = Tally::default();
    for (_, sum) in view.cards() {
        if let Some(cause) = obstacle(view.node, sum, load, uid) {
            tally.add(cause, sum);
        }
    }
    Obstacle::NoCard {
        container: item.container.name.clone(),
        memory: item.memory,
        core: item.container.core_percent,
        uid: item.container.uid(),
        tally,
    }
}

/// Why a card does not take a pod's containers beside what is on it.
fn obstacle(node: &Node, sum: &Sum, load: Load, uids: Uids) -> Option<Cause> {
    let one_uid = node.schedule == Word::Mps && sum.one_uid;
    let served = sum.uids.with(uids);
    if sum.memory < load.memory {
        Some(Cause::Small)
    } else if !sum.healthy {
        Some(Cause::Unhealthy)
    } else if sum.left() < load.memory {
        Some(Cause::Memory)
    } else if sum.max_clients.is_some_and(|most| sum.clients.saturating_add(load.clients) > most) {
        Some(Cause::Clients)
    } else if node.max_pods.is_some_and(|most| sum.pods >= most) {
        Some(Cause::Pods)
    } else if load.core > 0 && sum.core.saturating_add(load.core) > WHOLE {
        Some(Cause::Core)
    } else if one_uid && matches!(served, Uids::Several) {
        Some(Cause::Uid)
    } else {
        None
    }
}

/// What the items on a card take at once; with `next` as if it were there, too.
fn peak(items: &[Item<'_>], position: usize, next: Option<usize>) -> Load {
    let on = items.iter().enumerate();
    let on = on.filter(|(n, item)| item.on == Some(position) || Some(*n) == next);
    let on = on.map(|(_, item)| item);
    if on.clone().all(|item| item.container.kind != Kind::Sidecar) {
        // In any order.
        return Load::peak(on.map(Item::load));
    }
    let mut on: Vec<&Item<'_>> = on.collect();
    on.sort_by_key(|item| item.order);
    Load::peak(on.iter().map(|item| item.load()))
}

/// How well a card suits the `next` of the items beside those that have theirs: the least is taken.
/// `None` where it does not take it.
fn rank(
    view: View<'_>,
    items: &[Item<'_>],
    next: usize,
    (position, sum): (usize, &Sum),
) -> Option<impl Ord + use<>> {
    let item = items.get(next)?;
    // Most of the cards that do not do, told by what is at hand.
    if sum.left() < item.memory {
        return None;
    }
    let mut others = items.iter().filter(|other| other.on == Some(position)).peekable();
    let (mut before, mut load) = (Mib(0), item.load().1);
    let mut uids = Uids::One(item.container.uid());
    if others.peek().is_some() {
        for other in others {
            if other.order == item.order {
                return None;
            }
            uids = uids.with(Uids::One(other.container.uid()));
        }
        before = peak(items, position, None).memory;
        load = peak(items, position, Some(next));
    }
    if obstacle(view.node, sum, load, uids).is_some() {
        return None;
    }
    let more = load.memory.saturating_sub(before);
    let left = sum.left().saturating_sub(before);
    let equal = sum.sizes.contains(&item.memory);
    Some((more, order(view.spread, equal, left, sum.index)))
}

/// Gives each item the card that suits it best, as nearly always all of them get one so: the first
/// choices of [`search`], which lists no others. Where one gets none, all are without a card again.
fn at_once(view: View<'_>, items: &mut [Item<'_>]) -> bool {
    for next in 0..items.len() {
        let mut best = None;
        for (position, sum) in view.cards() {
            let Some(rank) = rank(view, items, next, (position, sum)) else { continue };
            if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                best = Some((rank, position));
            }
        }
        let Some((_, position)) = best else {
            items.iter_mut().for_each(|item| item.on = None);
            return false;
        };
        if let Some(item) = items.get_mut(next) {
            item.on = Some(position);
        }
    }
    true
}

/// Gives the items from `next` on their cards; whether all have one.
fn search(view: View<'_>, items: &mut [Item<'_>], next: usize, tries: &mut usize) -> bool {
    if next == items.len() {
        return true;
    }
    let open = view.cards().filter_map(|card| Some((rank(view, items, next, card)?, card.0)));
    let mut open: Vec<_> = open.collect();
    open.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (_, position) in open {
        if *tries == 0 {
            return false;
        }
        *tries -= 1;
        if let Some(item) = items.get_mut(next) {
            item.on = Some(position);
        }
        if search(view, items, next + 1, tries) {
            return true;
        }
        if let Some(item) = items.get_mut(next) {
            item.on = None;
        }
    }
    false
}

/// The containers fit one by one, and not beside each other.
fn together(view: View<'_>, items: &[Item<'_>], request: &PodRequest) -> Obstacle {
    let left = view.cards().filter(|(_, sum)| sum.healthy);
    Obstacle::Together {
        parts: items.iter().map(|item| item.memory).collect(),
        containers: request.containers.len(),
        left: left.map(|(_, sum)| sum.left()).collect(),
    }
}
