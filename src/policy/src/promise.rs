//! On which cards each promise to a pod is expected, where no scheduler has said it.

use std::cmp::Reverse;

use mpsgate_model::{GpuUuid, Mib};

/// What a pod may still take, on cards that are still to be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unplaced<Card = GpuUuid> {
    /// GPU memory on each card.
    pub memory: Mib,
    /// On how many cards.
    pub cards: usize,
    /// Those that a scheduler chose; empty where none did.
    pub chosen: Vec<Card>,
}

/// The cards of each of `asked`, in their order: among the chosen, else among all, those with the
/// least left that still have enough. `free` is what nobody holds of each card. Empty where there
/// are not as many: it can hold nothing back.
#[must_use]
pub fn expected_on<Card: Clone + PartialEq>(
    free: &[(Card, Mib)],
    asked: &[Unplaced<Card>],
) -> Vec<Vec<Card>> {
    let mut free = free.to_vec();
    let mut found = vec![Vec::new(); asked.len()];
    // Those whose cards are known take their place first, the others by size: then most of them
    // fit.
    let mut order: Vec<_> = asked.iter().zip(&mut found).collect();
    order.sort_by_key(|(one, _)| (one.chosen.is_empty(), Reverse(one.memory)));
    for (one, cards) in order {
        let chosen = |uuid: &Card| one.chosen.is_empty() || one.chosen.contains(uuid);
        let mut fits: Vec<_> =
            free.iter_mut().filter(|(uuid, left)| chosen(uuid) && *left >= one.memory).collect();
        if fits.len() < one.cards {
            continue;
        }
        fits.sort_by_key(|(_, left)| *left);
        for (uuid, left) in fits.into_iter().take(one.cards) {
            *left = left.saturating_sub(one.memory);
            cards.push(uuid.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        reason = "test code fails by panicking"
    )]
    use mpsgate_model::example_gpu as card;
    use proptest::prelude::*;

    use super::*;

    /// `(memory, cards, chosen)` of each, and the numbers of the cards that are found.
    fn expected(free: &[u64], asked: &[(u64, usize, &[usize])]) -> Vec<Vec<usize>> {
        let free: Vec<_> = free.iter().enumerate().map(|(n, mib)| (card(n), Mib(*mib))).collect();
        let asked: Vec<_> = asked
            .iter()
            .map(|(mib, cards, chosen)| Unplaced {
                memory: Mib(*mib),
                cards: *cards,
                chosen: chosen.iter().map(|n| card(*n)).collect(),
            })
            .collect();
        let number = |uuid: &GpuUuid| free.iter().position(|(card, _)| card == uuid).unwrap();
        let found = expected_on(&free, &asked);
        found.iter().map(|cards| cards.iter().map(number).collect()).collect()
    }

    #[test]
    fn promises_fill_the_fullest_cards_around_those_that_a_scheduler_placed() {
        const NONE: &[usize] = &[];
        assert_eq!(expected(&[15, 10], &[(7, 1, NONE)]), [[1]]);
        assert_eq!(expected(&[15, 10], &[(7, 1, NONE), (12, 1, NONE)]), [[1], [0]]);
        assert_eq!(expected(&[15, 10], &[(7, 1, &[0]), (12, 1, NONE)]), [vec![0], vec![]]);
        assert_eq!(expected(&[15, 10], &[(5, 1, NONE), (10, 1, &[1])]), [[0], [1]]);
        let several = expected(&[5], &[(7, 1, &[0]), (7, 1, NONE), (5, 1, NONE)]);
        assert_eq!(several, [vec![], vec![], vec![0]]);
        assert_eq!(expected(&[15], &[(1, 1, &[3])]), [NONE], "a card that is not there");
        assert_eq!(expected(&[], &[(1, 1, NONE)]), [NONE]);
        // Over several cards: different ones, all or none.
        assert_eq!(expected(&[9, 5, 7], &[(4, 2, NONE)]), [[1, 2]]);
        assert_eq!(expected(&[9, 5, 7], &[(4, 2, &[0, 2])]), [[2, 0]]);
        assert_eq!(expected(&[9, 5, 7], &[(6, 3, NONE)]), [NONE]);
    }

    proptest! {
        #[test]
        fn no_card_is_promised_beyond_what_is_free(
            free in prop::collection::vec(0u64..40, 0..5),
            asked in prop::collection::vec(
                (1u64..20, 1usize..4, prop::collection::vec(0usize..6, 0..3)), 0..12,
            ),
        ) {
            let asked: Vec<_> = asked.iter().map(|(mib, n, on)| (*mib, *n, on.as_slice())).collect();
            let found = expected(&free, &asked);
            prop_assert_eq!(found.len(), asked.len());
            let mut left = free;
            for (cards, (mib, count, chosen)) in found.iter().zip(&asked) {
                prop_assert!(cards.is_empty() || cards.len() == *count);
                for (n, on) in cards.iter().enumerate() {
                    prop_assert!(chosen.is_empty() || chosen.contains(on));
                    prop_assert!(!cards[..n].contains(on), "one card twice");
                    prop_assert!(left[*on] >= *mib);
                    left[*on] -= mib;
                }
            }
        }
    }
}
