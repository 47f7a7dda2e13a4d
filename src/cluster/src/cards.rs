//! Amounts that no card of the cluster has, held against what its nodes say of their cards: for the
//! admission webhook.
//!
//! What is wanted of one card is:
//!
//! | | each node's cards are known | the list may grow, or nobody knows |
//! |---|---|---|
//! | no more than the largest card that is known | – | – |
//! | more, up to what some card may have | warned of | warned of, where any card is known |
//! | more than any card has ([`ANY_CARD`]) | refused | warned of |
//!
//! What some card may have is never refused: an autoscaler brings a node of another size only where
//! a pod waits for it. Nor is anything while another system's nodes have the resource, which may
//! count it in MiB, or of a pod that may go to none of mpsgate's nodes: an autoscaler may have
//! taken away the last of that other system's.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use mpsgate_model::{ANY_CARD, Code, Mib, Refusal, Resource};

/// What is known of the cluster's cards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cards {
    /// The memory of each node's largest card. `None`: it is to have some, or has another system's,
    /// and nobody knows what they have.
    pub largest: BTreeMap<String, Option<Mib>>,
    /// The list of nodes is what the API server has now, and each could be read.
    pub is_current: bool,
}

/// The same of all nodes together: made once for a pod, which may have many containers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Largest {
    /// `None` where no card is known.
    memory: Option<Mib>,
    /// These are all cards that there are.
    are_all: bool,
}

impl Cards {
    pub(crate) fn together(&self) -> Largest {
        let nodes = self.largest.values();
        let memory = nodes.clone().flatten().max().copied().filter(|most| most.0 > 0);
        let are_all =
            self.is_current && !self.largest.is_empty() && nodes.clone().all(Option::is_some);
        Largest { memory, are_all }
    }
}

impl Largest {
    /// The same for a pod. One that may go to none of mpsgate's nodes is for others, and nobody
    /// knows what cards these have.
    pub(crate) fn of_pod(self, reaches: impl FnOnce() -> bool) -> Self {
        Self { are_all: self.are_all && reaches(), ..self }
    }
}

/// What is to be said of an amount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Beyond {
    Refused(Refusal),
    Warned(Refusal),
}

/// Evaluates what a container asks of one resource, in equal parts of so many cards.
pub(crate) fn beyond(
    known: Largest,
    resource: &str,
    asked: Mib,
    cards: NonZeroU32,
) -> Option<Beyond> {
    let parsed = Resource::parse(resource)?;
    let most = known.memory.unwrap_or(ANY_CARD);
    let each = Mib(asked.0 / u64::from(cards.get()));
    if each <= most {
        return None;
    }
    let no_card = match known.memory {
        Some(largest) => {
            format!("the largest card that the cluster is known to have has {largest}")
        }
        None => format!("no card has more than {ANY_CARD}"),
    };
    let of_each =
        if cards.get() > 1 { format!(" of each of {cards} cards") } else { String::new() };
    let sentence = format!("it asks for {each}{of_each} by {resource}, and {no_card}");
    let all = Mib(most.0.saturating_mul(u64::from(cards.get())));
    let refusal = Refusal::new(Code::Request, sentence, parsed.instead(asked, all));
    let is_sure = each > ANY_CARD && known.are_all;
    Some(if is_sure { Beyond::Refused(refusal) } else { Beyond::Warned(refusal) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: &str = "aliyun.com/gpu-mem";

    fn cards(largest: &[Option<u64>], is_current: bool) -> Cards {
        let node = |(n, mib): (usize, &Option<u64>)| (format!("n{n}"), mib.map(Mib));
        Cards { largest: largest.iter().enumerate().map(node).collect(), is_current }
    }

    fn said(known: &Cards, resource: &str, count: u64, cards: u32) -> Option<(bool, String)> {
        let asked = Resource::parse(resource)?.memory(count)?;
        let (is_refused, refusal) =
            match beyond(known.together(), resource, asked, NonZeroU32::new(cards)?)? {
                Beyond::Refused(refusal) => (true, refusal),
                Beyond::Warned(refusal) => (false, refusal),
            };
        Some((is_refused, format!("{}; {}", refusal.sentence, refusal.hint)))
    }

    #[test]
    fn only_what_no_card_can_have_is_refused_and_only_where_all_cards_are_known() {
        let fifteen = Some(15_360);
        for (name, known, count, expected) in [
            ("as large as the largest", cards(&[fifteen, Some(8192)], true), 15, None),
            ("a card that may be bought", cards(&[fifteen], true), 40, Some(false)),
            ("the same of a list that is old", cards(&[fifteen], false), 40, Some(false)),
            ("the same where nobody knows a card", cards(&[], true), 40, None),
            ("the same where one node has none yet", cards(&[None], true), 40, None),
            ("MiB", cards(&[fifteen], true), 8138, Some(true)),
            ("MiB, of a list that is old", cards(&[fifteen], false), 8138, Some(false)),
            ("MiB, and no node has cards", cards(&[], true), 8138, Some(false)),
            ("MiB, and one node says nothing", cards(&[fifteen, None], true), 8138, Some(false)),
            ("bytes", cards(&[fifteen], true), 7_516_192_768, Some(true)),
            ("the largest that may be", cards(&[fifteen], true), 1024, Some(false)),
            ("nodes whose cards have nothing", cards(&[Some(0)], true), 7, None),
            ("a card beyond all that are known here", cards(&[Some(2 << 20)], true), 2048, None),
        ] {
            let found = said(&known, GIB, count, 1).map(|(is_refused, _)| is_refused);
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn the_sentence_says_what_the_largest_card_has_and_the_hint_what_was_meant() {
        let fifteen = cards(&[Some(15_360)], true);
        let largest = "the largest card that the cluster is known to have has 15 GiB";
        for (resource, count, parts, text) in [
            (
                GIB,
                7_516_192_768,
                1,
                format!(
                    "it asks for 7516192768 GiB by {GIB}, and {largest}; \
                     7516192768 is a number of bytes, and {GIB} counts GiB: write 7"
                ),
            ),
            (
                GIB,
                8138,
                1,
                format!(
                    "it asks for 8138 GiB by {GIB}, and {largest}; \
                     8138 looks like MiB, and {GIB} counts GiB: write 8"
                ),
            ),
            (
                GIB,
                80,
                2,
                format!(
                    "it asks for 40 GiB of each of 2 cards by {GIB}, and {largest}; \
                     {GIB} counts GiB: write 30 at most"
                ),
            ),
            (
                "nvidia.com/gpu-40gb",
                1,
                1,
                format!(
                    "it asks for 40 GiB by nvidia.com/gpu-40gb, and {largest}; \
                     take a smaller slice: kubectl inspect cgpu shows what cards have"
                ),
            ),
        ] {
            assert_eq!(said(&fifteen, resource, count, parts).map(|(_, text)| text), Some(text));
        }
        assert_eq!(
            said(&Cards::default(), GIB, 8138, 1).map(|(_, text)| text),
            Some(format!(
                "it asks for 8138 GiB by {GIB}, and no card has more than 1024 GiB; \
                 8138 looks like MiB, and {GIB} counts GiB: write 8"
            ))
        );
        assert_eq!(said(&fifteen, GIB, 30, 2), None, "15 of each");
        assert_eq!(said(&fifteen, "cpu", 8138, 1), None);
    }
}
