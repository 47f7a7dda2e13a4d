//! Cards that kubelet is not told of yet, because they are to be asked first what holds on them.
//!
//! Kubelet fails a pod for good whose devices are not well. So a card waits before it is known to
//! kubelet, and never afterwards. It waits for a bounded time: that somebody asks is not sure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use mpsgate_model::GpuUuid;
use mpsgate_node::Node;

/// Which cards wait, and since when.
#[derive(Debug)]
pub(super) struct Unasked {
    limit: Duration,
    since: BTreeMap<GpuUuid, Instant>,
    /// Kubelet was told of them.
    known: BTreeSet<GpuUuid>,
}

impl Unasked {
    /// A card waits for up to `limit`, and while it is being asked.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: BTreeMap::new(), known: BTreeSet::new() }
    }

    /// The cards that kubelet is not told of now; it is told of all others.
    pub(super) fn awaited(&mut self, node: &Node, now: Instant) -> BTreeSet<GpuUuid> {
        let managed = || node.cards().iter().filter(|card| card.is_managed());
        let names: BTreeSet<&GpuUuid> = managed().map(|card| &card.uuid).collect();
        self.since.retain(|card, _| names.contains(card));
        self.known.retain(|card| names.contains(card));
        let mut awaited = BTreeSet::new();
        for card in managed() {
            let since = *self.since.entry(card.uuid.clone()).or_insert(now);
            let in_time = now.saturating_duration_since(since) < self.limit;
            let waits = node.is_unasked(card) && (in_time || card.qualified().asking.is_some());
            if waits && !self.known.contains(&card.uuid) && !self.limit.is_zero() {
                awaited.insert(card.uuid.clone());
            } else {
                self.known.insert(card.uuid.clone());
            }
        }
        awaited
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_model::Qualification;
    use mpsgate_node::card::{CardEvent, ManagedBy};

    use super::*;
    use crate::fixture::{ALL, HOLDER, call, happens, node, uuid};

    const LIMIT: Duration = Duration::from_secs(120);

    fn waits(cards: &mut Unasked, node: &Node, now: Instant) -> bool {
        cards.awaited(node, now).contains(&uuid(0))
    }

    #[test]
    fn a_card_waits_until_it_was_asked_and_never_again() {
        let (mut node, start) = (node(), Instant::now());
        let mut cards = Unasked::new(LIMIT);
        assert!(waits(&mut cards, &node, start));
        let subject = node.subject(node.card(&uuid(0)).unwrap());
        node.set_answers(&uuid(0), Ok(Some(Qualification::new(subject, Vec::new()))));
        assert!(!waits(&mut cards, &node, start));
        node.set_answers(&uuid(0), Ok(None));
        assert!(!waits(&mut cards, &node, start), "kubelet knows it");
        // Given back and handed over again it is a new one.
        happens(&mut node, 0, CardEvent::TakenBack);
        assert!(!waits(&mut cards, &node, start));
        happens(&mut node, 0, CardEvent::HandedOver(ManagedBy::Settings));
        assert!(waits(&mut cards, &node, start));
    }

    #[test]
    fn a_card_that_nobody_asks_waits_for_a_bounded_time() {
        let (mut node, start) = (node(), Instant::now());
        let mut cards = Unasked::new(LIMIT);
        assert!(waits(&mut cards, &node, start));
        assert!(waits(&mut cards, &node, start + LIMIT - Duration::from_secs(1)));
        node.begin_asking("0", "mpsgate-qualify-1", "soon").unwrap();
        assert!(waits(&mut cards, &node, start + LIMIT), "it is being asked");
        node.end_asking("mpsgate-qualify-1").unwrap();
        assert!(!waits(&mut cards, &node, start + LIMIT));
    }

    #[test]
    fn what_is_in_use_simulated_or_asked_by_nobody_does_not_wait() {
        let (mut node, start) = (node(), Instant::now());
        assert!(!waits(&mut Unasked::new(Duration::ZERO), &node, start));
        node.driver.simulated = true;
        assert!(!waits(&mut Unasked::new(LIMIT), &node, start));
        node.driver.simulated = false;
        assert!(waits(&mut Unasked::new(LIMIT), &node, start));
        node.reserve(&call("local", 3), None, HOLDER, &ALL, 0, &mut Vec::new()).unwrap();
        assert!(!waits(&mut Unasked::new(LIMIT), &node, start));
    }
}
