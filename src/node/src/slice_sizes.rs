//! Which sizes of slices (`nvidia.com/gpu-<N>gb`) a node offers because pods ask for them.
//!
//! Each size is a socket, and a list that kubelet holds; when one is taken back, kubelet has none
//! of it left. So what a pod here uses stays whoever asks for what, and who may create pods in one
//! namespace gets few sizes offered.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Sizes that are offered by asking alone.
pub const OFFERED: usize = 16;
/// Of these, what one namespace gets at most.
pub const OFFERED_TO_ONE: usize = 4;
/// A wish counts as one of now for so long: a pod that is given a node is for a moment asked for
/// nowhere.
const NOW_MS: u64 = 30_000;

/// A size that a namespace's pods want or wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish<'a> {
    /// Whose.
    pub namespace: &'a str,
    /// GiB.
    pub gib: u64,
    /// A pod of this node has it in its limits, and has not ended.
    pub bound: bool,
    /// Since when it is wanted without a break, in milliseconds before now.
    pub since_ms: u64,
    /// When it was last seen, in milliseconds before now.
    pub seen_ms: u64,
}

/// The sizes to be offered, in order. `largest_gib` is what the largest card has, where that is
/// known: a size that no card has room for is of use to nobody.
#[must_use]
pub fn offered(wishes: &[Wish<'_>], largest_gib: Option<u64>) -> Vec<u64> {
    let fits = |wish: &&Wish<'_>| wish.gib > 0 && largest_gib.is_none_or(|most| wish.gib <= most);
    let used: BTreeSet<u64> =
        wishes.iter().filter(fits).filter(|wish| wish.bound).map(|wish| wish.gib).collect();
    let is_old = |wish: &Wish<'_>| wish.seen_ms >= NOW_MS;
    // Of one namespace, what is wanted now and for longest.
    let mut asked: Vec<&Wish<'_>> =
        wishes.iter().filter(fits).filter(|wish| !used.contains(&wish.gib)).collect();
    asked.sort_by_key(|wish| (wish.namespace, is_old(wish), Reverse(wish.since_ms), wish.gib));
    let mut place = 0;
    let mut before = None;
    let mut ranked: Vec<(bool, usize, Reverse<u64>, u64)> = Vec::new();
    for wish in asked {
        place = if before == Some(wish.namespace) { place + 1 } else { 0 };
        before = Some(wish.namespace);
        if place < OFFERED_TO_ONE {
            ranked.push((is_old(wish), place, Reverse(wish.since_ms), wish.gib));
        }
    }
    // Every namespace's first before anybody's second.
    ranked.sort_unstable();
    let mut seen = BTreeSet::new();
    let further = ranked.into_iter().map(|(.., gib)| gib).filter(|gib| seen.insert(*gib));
    used.iter().copied().chain(further.take(OFFERED)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked(namespace: &str, gib: u64) -> Wish<'_> {
        Wish { namespace, gib, bound: false, since_ms: 0, seen_ms: 0 }
    }

    fn bound(namespace: &str, gib: u64) -> Wish<'_> {
        Wish { bound: true, ..asked(namespace, gib) }
    }

    fn many(namespace: &str, sizes: std::ops::RangeInclusive<u64>) -> Vec<Wish<'_>> {
        sizes.map(|gib| asked(namespace, gib)).collect()
    }

    #[test]
    fn what_a_pod_here_uses_stays_whoever_asks_for_how_many() {
        let mut wishes = many("attacker", 1..=79);
        wishes.push(bound("team", 40));
        assert_eq!(offered(&wishes, Some(79)), [40, 1, 2, 3, 4]);
        // More than are offered by asking are in use.
        let wishes: Vec<_> = (1..=30).map(|gib| bound("team", gib)).collect();
        assert_eq!(offered(&wishes, Some(79)), (1..=30).collect::<Vec<_>>());
        // Pods that only name this node push nothing out either.
        let mut wishes: Vec<_> = (1..=30).map(|gib| bound("attacker", gib)).collect();
        wishes.extend([bound("team", 40), asked("other", 50)]);
        assert_eq!(offered(&wishes, Some(79)).split_off(30), [40, 50]);
    }

    #[test]
    fn one_namespace_gets_few_and_every_one_its_first_before_anybodys_second() {
        assert_eq!(offered(&many("a", 1..=16), Some(79)), [1, 2, 3, 4]);
        let names: Vec<String> = (0..15).map(|n| format!("a{n:02}")).collect();
        let mut wishes: Vec<_> = names
            .iter()
            .zip(0..)
            .flat_map(|(name, n): (_, u64)| many(name, n * 4 + 1..=n * 4 + 4))
            .collect();
        wishes.push(asked("z-honest", 70));
        let all = offered(&wishes, Some(79));
        assert_eq!((all.len(), all.contains(&70)), (OFFERED, true), "{all:?}");
        // One size of many namespaces is one size.
        let same: Vec<_> = names.iter().map(|name| asked(name, 10)).collect();
        assert_eq!(offered(&same, Some(79)), [10]);
    }

    #[test]
    fn a_size_that_no_card_has_room_for_is_not_offered() {
        let wishes = [asked("a", 0), asked("a", 80), bound("a", 81), asked("b", 79)];
        assert_eq!(offered(&wishes, Some(79)), [79]);
        assert_eq!(offered(&wishes, None), [81, 79, 80], "nobody knows the cards yet");
    }

    #[test]
    fn what_is_offered_already_goes_before_what_is_asked_for_since_a_moment() {
        let old = Wish { since_ms: 60_000, ..asked("a", 50) };
        let mut wishes = many("a", 1..=16);
        wishes.push(old.clone());
        assert_eq!(offered(&wishes, Some(79)), [50, 1, 2, 3]);
        // A pod on its way from the waiting ones to a node's is seen nowhere for a moment.
        let names: Vec<String> = (0..16).map(|n| format!("a{n:02}")).collect();
        let mut wishes: Vec<_> =
            names.iter().zip(1..).map(|(name, gib)| asked(name, gib)).collect();
        let on_its_way = Wish { seen_ms: 5_000, ..old.clone() };
        wishes.push(Wish { namespace: "team", ..on_its_way });
        assert_eq!(offered(&wishes, Some(79)).first(), Some(&50));
        // Nobody wants it any more: it keeps what is left over.
        wishes.pop();
        let left = Wish { namespace: "team", seen_ms: 120_000, since_ms: 200_000, ..old };
        wishes.push(left.clone());
        assert!(!offered(&wishes, Some(79)).contains(&50));
        wishes.remove(0);
        assert_eq!(offered(&wishes, Some(79)).last(), Some(&50));
    }

    proptest! {
        #[test]
        fn no_wishes_of_others_take_away_what_is_in_use(
            others in prop::collection::vec(("[a-d]", 1..200u64, any::<bool>(), 0..90_000u64, 0..90_000u64), 0..60),
            used in prop::collection::btree_set(1..=80u64, 0..20),
        ) {
            let mut wishes: Vec<Wish<'_>> = others
                .iter()
                .map(|(namespace, gib, bound, since_ms, seen_ms)| {
                    let (namespace, gib, bound) = (namespace.as_str(), *gib, *bound);
                    Wish { namespace, gib, bound, since_ms: *since_ms, seen_ms: *seen_ms }
                })
                .collect();
            wishes.extend(used.iter().map(|gib| bound("team", *gib)));
            let all = offered(&wishes, Some(80));
            prop_assert!(used.iter().all(|gib| all.contains(gib)));
            prop_assert!(all.iter().all(|gib| *gib <= 80));
            prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        }
    }
}
