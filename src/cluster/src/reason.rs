//! Why a node does not do, as sentences. They tell no node and few cards: kube-scheduler counts
//! equal ones.

use std::fmt::Write;
use std::num::NonZeroU32;

use mpsgate_model::Mib;
use mpsgate_model::printable::few;

use super::Reason;
use super::sums::Sum;
use mpsgate_policy::schedule::LABEL;

/// Numbers that a sentence lists.
const LISTED: usize = 16;
/// Bytes that hold nearly every sentence.
const SENTENCE: usize = 128;

/// Why one card does not take a container, the first that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Small,
    Unhealthy,
    Memory,
    Clients,
    Pods,
    Core,
    Uid,
}

/// Cards by cause, and the numbers that go with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Tally {
    cards: u32,
    small: u32,
    largest: Mib,
    unhealthy: u32,
    memory: u32,
    /// The most that is left of one that has too little.
    most_left: Mib,
    clients: u32,
    most_clients: u32,
    pods: u32,
    core: u32,
    /// The least that is taken of one's compute.
    least_core: Option<u32>,
    uid: u32,
}

impl Tally {
    pub(super) fn add(&mut self, cause: Cause, sum: &Sum) {
        self.cards += 1;
        match cause {
            Cause::Small => {
                self.small += 1;
                self.largest = self.largest.max(sum.memory);
            }
            Cause::Unhealthy => self.unhealthy += 1,
            Cause::Memory => {
                self.memory += 1;
                self.most_left = self.most_left.max(sum.left());
            }
            Cause::Clients => {
                self.clients += 1;
                self.most_clients = self.most_clients.max(sum.max_clients.unwrap_or_default());
            }
            Cause::Pods => self.pods += 1,
            Cause::Core => {
                self.core += 1;
                let least = self.least_core.map_or(sum.core, |least| least.min(sum.core));
                self.least_core = Some(least);
            }
            Cause::Uid => self.uid += 1,
        }
    }

    /// Written at the end of a sentence: of thousands of refusals each has one.
    fn causes(&self, uid: u32, text: &mut String) {
        let mut first = true;
        let mut part = |count: u32, what: std::fmt::Arguments<'_>| {
            if count == 0 {
                return;
            }
            if !std::mem::replace(&mut first, false) {
                text.push_str(", ");
            }
            let _ = match self.cards {
                1 => text.write_fmt(what),
                _ => write!(text, "{count} {what}"),
            };
        };
        part(self.memory, format_args!("with at most {} left", self.most_left));
        part(self.small, format_args!("of at most {}", self.largest));
        part(self.unhealthy, format_args!("unhealthy"));
        part(self.clients, format_args!("with all of {} MPS clients taken", self.most_clients));
        part(self.pods, format_args!("with as many pods as ack.node.gpu.max-pod allows"));
        let core = self.least_core.unwrap_or_default();
        part(self.core, format_args!("with at least {core} percent of the compute taken"));
        part(self.uid, format_args!("whose MPS server serves another uid than {uid}"));
    }
}

/// Why no card, or not enough of them, can be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Obstacle {
    NotOurs,
    NoCards,
    SeveralCards(NonZeroU32),
    FewCards { asked: NonZeroU32, cards: usize },
    Uneven { memory: Mib, cards: NonZeroU32, unit: Mib },
    CoreAlone { container: String, core: u32 },
    NoCard { container: String, memory: Mib, core: u32, uid: u32, tally: Tally },
    Together { parts: Vec<Mib>, containers: usize, left: Vec<Mib> },
}

impl Obstacle {
    pub(super) fn reason(&self, unresolvable: bool) -> Reason {
        Reason { text: self.text(), unresolvable }
    }

    fn text(&self) -> String {
        match self {
            Self::NotOurs => {
                format!(
                    "its cards are not mpsgate's: node label {LABEL} is neither mps nor share, or mpsgate is being \
                     removed"
                )
            }
            Self::NoCards => "it reports no card: look at mpsgated there".to_owned(),
            Self::SeveralCards(cards) => format!(
                "the pod asks for {cards} cards, and under {LABEL}=mps a container has one: use a node with \
                 {LABEL}=share"
            ),
            Self::FewCards { asked, cards } => {
                format!("the pod asks for {asked} cards, and the node has {cards}")
            }
            Self::Uneven { memory, cards, unit } => {
                format!("{memory} cannot be had on {cards} cards in equal parts of whole {unit}")
            }
            Self::CoreAlone { container, core } => format!(
                "container {container} asks for {core} percent of a card's compute and for no memory of it"
            ),
            Self::NoCard { container, memory, core, uid, tally } => {
                let mut text = String::with_capacity(SENTENCE);
                let _ = write!(text, "no card takes {memory}");
                if *core > 0 {
                    let _ = write!(text, " with {core} percent of the compute");
                }
                let _ = write!(text, " for container {container}: ");
                tally.causes(*uid, &mut text);
                text
            }
            Self::Together { parts, containers, left } => {
                let (parts, left) = (few(parts, LISTED), few(left, LISTED));
                let what = if *containers == 1 { "the parts" } else { "the containers" };
                format!("{what} of {parts} do not fit beside each other: {left} are left")
            }
        }
    }
}

/// Neither a report nor a label was read of it.
pub(super) fn unknown_node() -> Reason {
    Reason {
        text: "it is not known to mpsgate-scheduler: mpsgated has not reported its cards"
            .to_owned(),
        unresolvable: true,
    }
}

/// A pod that is bound cannot be bound again.
pub(super) fn bound(node: &str) -> Reason {
    Reason { text: format!("the pod is already bound to node {node}"), unresolvable: true }
}
