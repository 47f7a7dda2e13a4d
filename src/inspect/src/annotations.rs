//! The annotations about memory of pods on cards. Whoever makes a pod can write them.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use mpsgate_kubernetes::{PLACEMENT, Placed, Pod};
use mpsgate_model::{CardReport, Layout};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// V1, of the whole pod: the index of its card.
const INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";
/// V2: `{"<container>":{"<card>":<units>}}`.
const ALLOCATION: &str = "scheduler.framework.gpushare.allocation";
/// The most columns of a table: more cards than any node has. A larger index belongs to no card.
pub(crate) const MOST_CARDS: u64 = 1024;

/// Cards of a node, by index. The error is what is wrong with the annotation.
pub(crate) fn parse_cards(text: &str) -> Result<BTreeMap<u32, CardReport>, String> {
    let mut by_index = BTreeMap::new();
    for card in mpsgate_kubernetes::parse_cards(text)? {
        let index = card.index;
        if u64::from(index) >= MOST_CARDS {
            return Err(format!("card {index} is beyond all that a node can have"));
        }
        if by_index.insert(index, card).is_some() {
            return Err(format!("card {index} is there twice"));
        }
    }
    Ok(by_index)
}

/// The cards that mpsgate-scheduler chose for the containers of a pod of `node`. `None` if it chose
/// none, or for another node.
pub(crate) fn placement(pod: &Pod, node: &str) -> Option<Layout> {
    parse_placement(pod.annotations.get(PLACEMENT)?, node)
}

fn parse_placement(text: &str, node: &str) -> Option<Layout> {
    let placed = Placed::parse(text).filter(|placed| placed.node == node)?;
    let mut cards = placed.containers.0.values().flat_map(BTreeMap::keys);
    cards.all(|card| u64::from(*card) < MOST_CARDS).then_some(placed.containers)
}

/// V2: units of the pod on each card; empty if the annotation cannot be read, as the published tool
/// reads it.
pub(crate) fn allocation(pod: &Pod) -> BTreeMap<i64, i64> {
    pod.annotations.get(ALLOCATION).and_then(|text| parse_allocation(text)).unwrap_or_default()
}

fn parse_allocation(text: &str) -> Option<BTreeMap<i64, i64>> {
    type Cards = Option<BTreeMap<String, Option<i64>>>;
    let pairs: Option<Pairs<Cards>> = serde_json::from_str(text).ok()?;
    // Of several spellings of one number the last counts.
    let mut containers = BTreeMap::new();
    for (container, cards) in pairs?.0 {
        containers.insert(container.parse::<i64>().ok()?, cards.unwrap_or_default());
    }
    let mut units = BTreeMap::<i64, i64>::new();
    for (card, amount) in containers.into_values().flatten() {
        let sum = units.entry(card.parse().ok()?).or_default();
        *sum = sum.saturating_add(amount.unwrap_or(0));
    }
    Some(units)
}

/// V1: the index of the pod's card, or -1 without one.
pub(crate) fn index(pod: &Pod) -> i64 {
    pod.annotations.get(INDEX).and_then(|text| text.parse().ok()).unwrap_or(-1)
}

/// A JSON object's members in their order, duplicate keys included.
struct Pairs<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Pairs<T>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    all.push(pair);
                }
                Ok(Pairs(all))
            }
        }
        from.deserialize_map(Members(PhantomData))
    }
}

/// For `tests/properties`: the rules of all three, whatever their text.
pub(crate) fn check(text: &str) {
    if let Ok(cards) = parse_cards(text) {
        assert!(cards.iter().all(|(index, card)| *index == card.index));
        assert!(cards.len() as u64 <= MOST_CARDS);
    }
    if let Some(layout) = parse_placement(text, "n") {
        assert!(text.contains("\"n\"") || text.contains('\\'), "another node's");
        assert!(
            layout.0.values().flat_map(BTreeMap::keys).all(|card| u64::from(*card) < MOST_CARDS)
        );
    }
    if let Some(units) = parse_allocation(text) {
        let numbers = units.keys().map(|card| card.unsigned_abs().to_string());
        assert!(text.contains('\\') || numbers.into_iter().all(|card| text.contains(&card)));
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        reason = "test code fails by panicking"
    )]
    use mpsgate_model::Mib;

    use super::*;

    #[test]
    fn v2_is_read_as_the_published_tool_reads_it() {
        for (text, units) in [
            (r#"{"0":{"1":1},"1":{"1":7}}"#, Some(vec![(1, 8)])),
            (r#"{"0":{"0":4,"1":4}}"#, Some(vec![(0, 4), (1, 4)])),
            // Two spellings of a card are one card; of two spellings of a container the last
            // counts.
            (r#"{"0":{"1":1,"01":2}}"#, Some(vec![(1, 3)])),
            (r#"{"0":{"1":1},"+0":{"1":2},"0":{"1":5}}"#, Some(vec![(1, 5)])),
            (r#"{"0":{"1":1,"1":2}}"#, Some(vec![(1, 2)])),
            (r#"{"0":{"-1":3}}"#, Some(vec![(-1, 3)])),
            (r#"{"0":{"1":-3}}"#, Some(vec![(1, -3)])),
            (r#"{"0":null,"1":{"0":null}}"#, Some(vec![(0, 0)])),
            ("{}", Some(vec![])),
            ("null", None),
            ("", None),
            ("[]", None),
            (r#"{"0":{"1":1.0}}"#, None),
            (r#"{"0":{"1":"1"}}"#, None),
            (r#"{"0":{"1":9223372036854775808}}"#, None),
            (r#"{"a":{"1":1}}"#, None),
            (r#"{"0":{"GPU-1":1}}"#, None),
            (r#"{"0":{"1":1}} x"#, None),
        ] {
            let units = units.map(BTreeMap::from_iter);
            assert_eq!(parse_allocation(text), units, "{text}");
            check(text);
        }
    }

    #[test]
    fn a_placement_counts_on_its_own_node_and_in_its_own_version() {
        let text = |version: u32, node: &str, card: u64| {
            format!(
                r#"{{"version":{version},"node":"{node}","time":"2026-01-31T12:00:00Z","containers":{{"c":{{"{card}":512}}}},"core":{{"c":5}}}}"#
            )
        };
        let layout = Layout(BTreeMap::from([("c".to_owned(), BTreeMap::from([(3, Mib(512))]))]));
        assert_eq!(parse_placement(&text(1, "n", 3), "n"), Some(layout));
        assert_eq!(parse_placement(&text(1, "n", 3), "m"), None);
        assert_eq!(parse_placement(&text(2, "n", 3), "n"), None);
        assert_eq!(parse_placement(&text(1, "n", MOST_CARDS), "n"), None);
        assert_eq!(parse_placement("{}", "n"), None);
    }

    #[test]
    fn the_cards_of_a_node_are_read_and_their_mistakes_are_reported() {
        let card = r#"{"uuid":"GPU-1","index":1,"memory_mib":15360,"local_mib":0,"healthy":true,"uid":1000,"held":{"u":7168}}"#;
        let cards = parse_cards(&format!(r#"{{"version":1,"cards":[{card}]}}"#)).unwrap();
        assert_eq!(cards[&1].held["u"], Mib(7168));
        let old = r#"{"version":1,"cards":[{"uuid":"GPU-1","index":0,"memory_mib":1,"local_mib":0,"healthy":true}]}"#;
        assert!(parse_cards(old).unwrap()[&0].held.is_empty());
        for (text, why) in [
            ("{", "EOF"),
            (r#"{"version":2,"cards":[]}"#, "version is 2"),
            (
                r#"{"version":1,"cards":[{"uuid":"","index":1024,"memory_mib":1,"local_mib":0,"healthy":true}]}"#,
                "beyond",
            ),
            (&format!(r#"{{"version":1,"cards":[{card},{card}]}}"#), "twice"),
            (
                r#"{"version":1,"cards":[{"uuid":"","index":0,"memory_mib":-1,"local_mib":0,"healthy":true}]}"#,
                "invalid value",
            ),
        ] {
            let error = parse_cards(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
