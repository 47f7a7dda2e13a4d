//! The ledger at one moment: what questions read, while others go on writing. A copy of it costs
//! nothing, and the first write beside it a pointer for each node.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;

use mpsgate_model::{CardReport, Layout, Mib, Placement};

use super::demand::Entry;
use super::pod_cards::{self, Found, View};
use super::reason;
use super::sums::{self, On, Sum};
use super::{Node, Pod, Reason};
use mpsgate_policy::schedule::Word;

/// A node, its pods and its cards' sums.
#[derive(Debug, Clone, Default)]
pub(super) struct Place {
    /// Absent while only its pods are known.
    pub(super) node: Option<Node>,
    pub(super) pods: BTreeMap<Arc<str>, Entry>,
    pub(super) sums: Vec<Sum>,
    /// Of its cards without any pod: what a refusal is held against.
    alone: Vec<Sum>,
    /// Of all that a search reads: nodes in the same state have the same.
    state: u64,
}

impl Place {
    /// Makes the sums anew. All of them, as nodes have tens of pods: so no sum can drift from what
    /// it sums.
    pub(super) fn sum(&mut self) {
        self.sums = self.node.as_ref().map_or_else(Vec::new, |node| self.sums(node, |_| false));
        self.alone = self.node.iter().flat_map(|node| node.cards.iter().map(sums::local)).collect();
        let mut state = DefaultHasher::new();
        self.words().hash(&mut state);
        (&self.sums, &self.alone).hash(&mut state);
        self.state = state.finish();
    }

    /// What a search reads of a node beside its cards' sums.
    fn words(&self) -> Option<(Discriminant<Word>, Option<bool>, Option<u32>)> {
        let Node { schedule, placement, max_pods, .. } = self.node.as_ref()?;
        let spread = placement.map(|placement| placement == Placement::Spread);
        Some((discriminant(schedule), spread, *max_pods))
    }

    /// Whether a search finds the same in both.
    fn is_alike(&self, other: &Self) -> bool {
        self.state == other.state
            && self.words() == other.words()
            && self.sums == other.sums
            && self.alone == other.alone
    }

    fn has(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.pods.iter().map(|(uid, entry)| (&**uid, entry))
    }

    fn sums(&self, node: &Node, gone: impl Fn(&str) -> bool) -> Vec<Sum> {
        let on = sums::by_card(node, self.entries(), gone);
        node.cards.iter().zip(on).map(|(card, on)| sums::of(card, &on)).collect()
    }

    fn pod_use<'a>(&'a self, on: &On<'a>) -> PodUse<'a> {
        let name = self.pods.get(on.uid).map(|entry| (&*entry.namespace, &*entry.name));
        PodUse { uid: on.uid, name, memory: on.load.memory }
    }
}

/// What each card of the cluster holds at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(super) default: Placement,
    /// Shared with the ledger, which writes into a copy of the map and of a node that are also
    /// here.
    pub(super) places: Arc<HashMap<Arc<str>, Arc<Place>>>,
}

/// What of a card is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage<'a> {
    /// The card, as its node reports it.
    pub card: &'a CardReport,
    /// Memory that is taken, by pods and by others; more than the card has where it shrank.
    pub used: Mib,
    /// Percent of its compute that is taken.
    pub core_percent: u32,
    /// Who has how much of it, by the pods' uids.
    pub pods: Vec<PodUse<'a>>,
}

/// A pod on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUse<'a> {
    /// Its uid at the API server.
    pub uid: &'a str,
    /// Its namespace and name; `None` where the API server has it no more, and the node still holds
    /// its memory.
    pub name: Option<(&'a str, &'a str)>,
    /// What it takes of this card.
    pub memory: Mib,
}

impl Snapshot {
    /// The cards that a pod would get on a node. What the pod has already is free for it.
    ///
    /// # Errors
    /// Why the node does not do.
    pub fn fits(&self, node: &str, pod: &Pod) -> Result<Layout, Reason> {
        self.asked(node, pod, |view, found| found.layout(view))
    }

    /// As [`fits`](Self::fits), without saying which cards.
    ///
    /// # Errors
    /// Why the node does not do.
    pub fn takes(&self, node: &str, pod: &Pod) -> Result<(), Reason> {
        self.asked(node, pod, |_, _| ())
    }

    /// For each of the nodes the position of the first among them that is in the same state: one
    /// search answers for all of these. A node that is not known, or has the pod already, stands
    /// for itself.
    #[must_use]
    pub fn alike<'a>(&self, nodes: impl Iterator<Item = &'a str>, pod: &Pod) -> Vec<usize> {
        let mut firsts: HashMap<u64, (usize, &Place)> = HashMap::new();
        let first = |(position, node): (usize, &'a str)| {
            let Some((place, _)) = self.known(node).filter(|(place, _)| !place.has(&pod.uid))
            else {
                return position;
            };
            let (first, other) = *firsts.entry(place.state).or_insert((position, place));
            // Two states of one number are searched each by itself.
            if place.is_alike(other) { first } else { position }
        };
        nodes.enumerate().map(first).collect()
    }

    fn asked<T>(
        &self,
        node: &str,
        pod: &Pod,
        found: impl FnOnce(View<'_>, Found<'_>) -> T,
    ) -> Result<T, Reason> {
        let Some((place, known)) = self.known(node) else { return Err(reason::unknown_node()) };
        let asked = self.without(place, known, &pod.uid, |view| {
            pod_cards::place(view, &pod.request).map(|cards| found(view, cards))
        });
        asked.map_err(|obstacle| {
            let alone = View { node: known, sums: &place.alone, spread: false };
            obstacle.reason(pod_cards::place(alone, &pod.request).is_err())
        })
    }

    /// How well a node suits, 0 to 10; `None` where the pod does not fit there or asks for nothing.
    #[must_use]
    pub fn score(&self, node: &str, pod: &Pod) -> Option<u8> {
        let (place, known) = self.known(node)?;
        self.without(place, known, &pod.uid, |view| {
            let found = pod_cards::place(view, &pod.request).ok()?;
            found.score(view)
        })
    }

    /// The proposed victims, where a pod fits on a node once they are gone with all that they hold.
    #[must_use]
    pub fn victims(&self, node: &str, pod: &Pod, proposed: &[String]) -> Option<Vec<String>> {
        let (place, known) = self.known(node)?;
        let gone: HashSet<&str> =
            proposed.iter().map(String::as_str).chain([pod.uid.as_str()]).collect();
        let sums;
        let sums = if place.pods.keys().any(|uid| gone.contains(&**uid)) {
            sums = place.sums(known, |uid| gone.contains(uid));
            &sums
        } else {
            &place.sums
        };
        let fits = pod_cards::place(self.view(known, sums), &pod.request).is_ok();
        fits.then(|| proposed.to_vec())
    }

    /// What of a node's cards is taken, by their index.
    #[must_use]
    pub fn cards(&self, node: &str) -> Option<Vec<Usage<'_>>> {
        let (place, known) = self.known(node)?;
        let on = sums::by_card(known, place.entries(), |_| false);
        let cards = known.cards.iter().zip(&place.sums).zip(on);
        let cards = cards.map(|((card, sum), on)| Usage {
            card,
            used: sum.used,
            core_percent: sum.core,
            pods: on.iter().map(|on| place.pod_use(on)).collect(),
        });
        Some(cards.collect())
    }

    /// The names of the nodes, in order.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        let known = self.places.iter().filter(|(_, place)| place.node.is_some());
        let mut names: Vec<&str> = known.map(|(name, _)| &**name).collect();
        names.sort_unstable();
        names.into_iter()
    }

    /// How many nodes there are.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.places.len()
    }

    fn known(&self, node: &str) -> Option<(&Place, &Node)> {
        let place = self.places.get(node)?;
        Some((place, place.node.as_ref()?))
    }

    fn view<'a>(&self, node: &'a Node, sums: &'a [Sum]) -> View<'a> {
        let spread = node.placement.unwrap_or(self.default) == Placement::Spread;
        View { node, sums, spread }
    }

    /// Asks about a node as it is without a pod.
    fn without<T>(
        &self,
        place: &Place,
        node: &Node,
        uid: &str,
        ask: impl FnOnce(View<'_>) -> T,
    ) -> T {
        if place.has(uid) {
            let sums = place.sums(node, |other| other == uid);
            return ask(self.view(node, &sums));
        }
        ask(self.view(node, &place.sums))
    }
}
