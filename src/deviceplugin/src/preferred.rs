//! Advises kubelet which of the free devices to take: those of one card. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use mpsgate_model::GpuUuid;

use crate::DeviceId;

/// The devices of one card.
#[derive(Default)]
struct Offer {
    /// How many of its devices must be taken.
    must: usize,
    /// The other free ones.
    free: BTreeSet<DeviceId>,
}

/// Chooses `size` of `available`, all of `must` among them: from one card if one has enough, the
/// fullest such card, or the emptiest if the node spreads; else from as few cards as possible. On a
/// card it takes the lowest numbers, because unhealthy ones begin at the top
/// ([`list`](crate::list)). It returns fewer if there are not so many, and foreign ids only if they
/// are in `must`.
#[must_use]
pub fn prefer(available: &[String], must: &[String], size: usize, spread: bool) -> Vec<String> {
    let must: BTreeSet<&str> = must.iter().map(String::as_str).collect();
    let mut offers: BTreeMap<GpuUuid, Offer> = BTreeMap::new();
    for id in must.iter().filter_map(|id| DeviceId::parse(id).ok()) {
        offers.entry(id.card).or_default().must += 1;
    }
    let free = available.iter().filter(|id| !must.contains(id.as_str()));
    for id in free.filter_map(|id| DeviceId::parse(id).ok()) {
        offers.entry(id.card.clone()).or_default().free.insert(id);
    }
    let mut chosen: Vec<String> = must.iter().map(|id| (*id).to_owned()).collect();
    let mut missing = size.saturating_sub(chosen.len());
    let tied = offers.values().map(|offer| offer.must).sum::<usize>();
    let gives_all = |offer: &Offer| offer.must == tied && offer.free.len() >= missing;
    let one = offers.iter().filter(|(_, offer)| gives_all(offer));
    let one = if spread {
        one.min_by_key(|(_, offer)| Reverse(offer.free.len()))
    } else {
        one.min_by_key(|(_, offer)| offer.free.len())
    };
    let order: Vec<&Offer> = match one {
        Some((_, offer)) => vec![offer],
        None => {
            let mut all: Vec<&Offer> = offers.values().collect();
            all.sort_by_key(|offer| Reverse((offer.must, offer.free.len())));
            all
        }
    };
    for offer in order {
        chosen.extend(offer.free.iter().take(missing).map(ToString::to_string));
        missing = missing.saturating_sub(offer.free.len());
    }
    chosen
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_model::example_gpu;
    use proptest::prelude::*;

    use super::*;

    fn id(card: usize, number: u32) -> String {
        DeviceId { card: example_gpu(card), number }.to_string()
    }

    fn ids(cards: &[(usize, std::ops::Range<u32>)]) -> Vec<String> {
        cards.iter().flat_map(|(card, numbers)| numbers.clone().map(|n| id(*card, n))).collect()
    }

    #[test]
    fn the_fullest_card_that_gives_all_is_packed() {
        let free = ids(&[(0, 0..9), (1, 2..6), (2, 5..7)]);
        assert_eq!(prefer(&free, &[], 3, false), ids(&[(1, 2..5)]));
        assert_eq!(prefer(&free, &[], 2, false), ids(&[(2, 5..7)]));
        assert_eq!(prefer(&free, &[], 5, false), ids(&[(0, 0..5)]));
    }

    #[test]
    fn a_node_that_spreads_takes_the_emptiest() {
        let free = ids(&[(0, 0..4), (1, 2..8), (2, 0..6)]);
        assert_eq!(prefer(&free, &[], 3, true), ids(&[(1, 2..5)]));
        assert_eq!(prefer(&free, &[], 7, true).len(), 7);
    }

    #[test]
    fn numbers_are_taken_from_the_bottom_and_counted_not_spelt() {
        let free = [id(0, 10), id(0, 9), id(0, 100)];
        assert_eq!(prefer(&free, &[], 2, false), [id(0, 9), id(0, 10)]);
    }

    #[test]
    fn what_must_be_there_is_there_and_draws_the_rest_to_its_card() {
        let free = ids(&[(0, 0..3), (1, 0..9)]);
        let must = ids(&[(1, 7..8)]);
        assert_eq!(prefer(&free, &must, 3, false), [id(1, 7), id(1, 0), id(1, 1)]);
        // Kubelet no longer lists an init container's devices as free, but they are still its own.
        assert_eq!(prefer(&free, &[id(2, 0)], 2, false), [id(2, 0), id(1, 0)]);
        let over_two = [id(0, 0), id(1, 0)];
        assert_eq!(prefer(&free, &over_two, 3, false), [id(0, 0), id(1, 0), id(1, 1)]);
        assert_eq!(prefer(&free, &["odd".to_owned()], 1, false), ["odd"]);
    }

    #[test]
    fn several_cards_where_no_single_one_does_and_as_few_as_can_be() {
        let free = ids(&[(0, 0..2), (1, 0..5), (2, 0..4)]);
        let chosen = prefer(&free, &[], 8, false);
        assert_eq!(chosen, ids(&[(1, 0..5), (2, 0..3)]));
        assert_eq!(prefer(&free, &[], 100, false).len(), 11);
        assert_eq!(prefer(&[], &[], 2, false), Vec::<String>::new());
        assert_eq!(prefer(&["odd".to_owned()], &[], 1, true), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn no_device_twice_none_invented_and_as_many_as_there_are(
            free in proptest::collection::vec((0..4_usize, 0..20_u32), 0..40),
            must in proptest::collection::vec((0..4_usize, 0..20_u32), 0..4),
            size in 0..40_usize,
            spread: bool,
        ) {
            let texts = |ids: Vec<(usize, u32)>| -> Vec<String> {
                ids.into_iter().map(|(card, n)| id(card, n)).collect()
            };
            let (free, must) = (texts(free), texts(must));
            let chosen = prefer(&free, &must, size, spread);
            let set: BTreeSet<&String> = chosen.iter().collect();
            let all: BTreeSet<&String> = free.iter().chain(&must).collect();
            let must: BTreeSet<&String> = must.iter().collect();
            prop_assert_eq!(set.len(), chosen.len());
            prop_assert!(set.is_subset(&all) && must.is_subset(&set));
            prop_assert_eq!(chosen.len(), size.min(all.len()).max(must.len()));
        }
    }
}
