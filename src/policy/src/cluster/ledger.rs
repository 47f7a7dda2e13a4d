//! The ledger: nodes, pods and, for each node, the sums of its cards.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use mpsgate_allocation::Mib;

use super::demand::{Use, uses};
use super::place::{self, View};
use super::reason;
use super::sums::{self, On, Sum};
use super::{Layout, Node, Placement, Pod, Reason, Request};

/// A placement is written with its time in whole seconds.
const WRITTEN_MS: u64 = 1000;

/// What is known of a pod. Most of 100,000 of them ask one container's memory of one card: kept small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    namespace: Box<str>,
    name: Box<str>,
    pub(super) node: Arc<str>,
    pub(super) uses: Box<[Use]>,
    /// What it asks for, where its cards are not known.
    pub(super) unplaced: Option<Box<Request>>,
    pub(super) finished: bool,
    until_ms: Option<u64>,
    /// Whether it was reserved here, and the API server has not said so yet.
    reserved: bool,
}

/// A node, its pods and its cards' sums.
#[derive(Debug, Clone, Default)]
struct Place {
    /// Absent while only its pods are known.
    node: Option<Node>,
    pods: BTreeSet<Arc<str>>,
    sums: Vec<Sum>,
}

/// What each card of the cluster holds.
#[derive(Debug, Clone)]
pub struct Ledger {
    default: Placement,
    now_ms: u64,
    nodes: HashMap<Arc<str>, Place>,
    pods: HashMap<Arc<str>, Entry>,
    /// By the time when they end.
    assumed: BTreeSet<(u64, Arc<str>)>,
}

/// A card and what is on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardUse<'a> {
    /// NVML's index.
    pub index: u32,
    /// NVML's UUID.
    pub uuid: &'a str,
    /// Memory that may be granted in all.
    pub total: Mib,
    /// Memory that is taken, by pods and by others; more than `total` where the card shrank.
    pub used: Mib,
    /// Of `used`, what containers hold that are no pod's.
    pub local: Mib,
    /// Percent of its compute that is taken.
    pub core_percent: u32,
    /// Whether it can take grants.
    pub healthy: bool,
    /// Who has how much of it, by the pods' uids.
    pub pods: Vec<PodUse<'a>>,
}

/// A pod on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodUse<'a> {
    /// Its uid at the API server.
    pub uid: &'a str,
    /// Its namespace and name; `None` where the API server has it no more, and the node still holds its memory.
    pub name: Option<(&'a str, &'a str)>,
    /// What it takes of this card.
    pub memory: Mib,
}

impl Ledger {
    /// An empty ledger; `default` holds for nodes without a label of their own.
    #[must_use]
    pub fn new(default: Placement) -> Self {
        Self {
            default,
            now_ms: 0,
            nodes: HashMap::new(),
            pods: HashMap::new(),
            assumed: BTreeSet::new(),
        }
    }

    /// A ledger from scratch, from lists. Pods first: so each node is summed up once.
    #[must_use]
    pub fn from_lists(
        default: Placement,
        now_ms: u64,
        nodes: impl IntoIterator<Item = Node>,
        pods: impl IntoIterator<Item = Pod>,
    ) -> Self {
        let mut ledger = Self::new(default);
        ledger.expire(now_ms);
        pods.into_iter().for_each(|pod| ledger.set_pod(pod));
        nodes.into_iter().for_each(|node| ledger.set_node(node));
        ledger
    }

    /// A node is there, or has changed. Of cards with one index the first counts.
    pub fn set_node(&mut self, mut node: Node) {
        node.cards.sort_by_key(|card| card.index);
        node.cards.dedup_by_key(|card| card.index);
        let name: Arc<str> = node.name.as_str().into();
        let place = self.nodes.entry(Arc::clone(&name)).or_default();
        if place.node.as_ref() != Some(&node) {
            place.node = Some(node);
            self.sum(&name);
        }
    }

    /// A node is gone. Its pods are kept until they are gone, too.
    pub fn remove_node(&mut self, name: &str) {
        let Some(place) = self.nodes.get_mut(name) else { return };
        place.node = None;
        place.sums = Vec::new();
        if place.pods.is_empty() {
            self.nodes.remove(name);
        }
    }

    /// A pod is there, or has changed. A reservation stays until the API server has it, or something newer.
    pub fn set_pod(&mut self, pod: Pod) {
        if self
            .pods
            .get(pod.uid.as_str())
            .is_some_and(|known| known.reserved && known.outlasts(&pod, self.now_ms))
        {
            return;
        }
        let over = pod.assumed_until_ms.is_some_and(|until| until <= self.now_ms);
        let assumed_nowhere = pod.assumed_until_ms.is_some() && pod.layout.is_none();
        match pod.node.clone().filter(|_| !over && !assumed_nowhere) {
            None => self.remove_pod(&pod.uid),
            Some(node) => self.insert(pod, &node, false),
        }
    }

    /// A pod is gone. What its node says that it holds counts on.
    pub fn remove_pod(&mut self, uid: &str) {
        if let Some(node) = self.take(uid) {
            self.sum(&node);
        }
    }

    /// Gives back what [`reserve`](Self::reserve) took, where the API server has not come to have it since.
    pub fn release(&mut self, uid: &str) {
        if self.pods.get(uid).is_some_and(|known| known.reserved) {
            self.remove_pod(uid);
        }
    }

    /// Ends the assumptions whose time is over.
    pub fn expire(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        while let Some((until, uid)) = self.assumed.first().cloned()
            && until <= self.now_ms
        {
            self.remove_pod(&uid);
            // Already gone with the pod; without this a fault there would be an endless loop here.
            self.assumed.remove(&(until, uid));
        }
    }

    /// The cards that a pod would get on a node. What the pod has already is free for it.
    ///
    /// # Errors
    /// Why the node does not do.
    pub fn fits(&self, node: &str, pod: &Pod) -> Result<Layout, Reason> {
        let place = self.nodes.get(node);
        let Some((place, known)) = place.and_then(|p| Some((p, p.node.as_ref()?))) else {
            return Err(reason::unknown_node());
        };
        let found = self.with(place, known, &[pod.uid.as_str()], |view| {
            place::place(view, &pod.request).map(|found| found.layout(view))
        });
        found.map_err(|obstacle| {
            let alone: Vec<Sum> = known.cards.iter().map(sums::local).collect();
            let alone = View { node: known, sums: &alone, spread: false };
            obstacle.reason(place::place(alone, &pod.request).is_err())
        })
    }

    /// How well a node suits, 0 to 10; `None` where the pod does not fit there or asks for nothing.
    #[must_use]
    pub fn score(&self, node: &str, pod: &Pod) -> Option<u8> {
        let place = self.nodes.get(node)?;
        let known = place.node.as_ref()?;
        self.with(place, known, &[pod.uid.as_str()], |view| {
            let found = place::place(view, &pod.request).ok()?;
            found.score(view)
        })
    }

    /// Gives a pod its cards on a node until it is bound, released, or the time is over.
    ///
    /// # Errors
    /// Why the node does not do.
    pub fn reserve(&mut self, mut pod: Pod, node: &str, until_ms: u64) -> Result<Layout, Reason> {
        if let Some(known) = self.pods.get(pod.uid.as_str())
            && known.until_ms.is_none()
        {
            return Err(reason::bound(&known.node));
        }
        let layout = self.fits(node, &pod)?;
        pod.layout = Some(layout.clone());
        pod.assumed_until_ms = Some(until_ms);
        pod.finished = false;
        self.insert(pod, node, true);
        Ok(layout)
    }

    /// The proposed victims, where a pod fits on a node once they are gone with all that they hold.
    #[must_use]
    pub fn victims(&self, node: &str, pod: &Pod, proposed: &[String]) -> Option<Vec<String>> {
        let place = self.nodes.get(node)?;
        let known = place.node.as_ref()?;
        let mut without: Vec<&str> = proposed.iter().map(String::as_str).collect();
        without.push(&pod.uid);
        let fits =
            self.with(place, known, &without, |view| place::place(view, &pod.request).is_ok());
        fits.then(|| proposed.to_vec())
    }

    /// The cards of a node, by index.
    #[must_use]
    pub fn cards(&self, node: &str) -> Option<Vec<CardUse<'_>>> {
        let place = self.nodes.get(node)?;
        let known = place.node.as_ref()?;
        let on = sums::by_card(known, self.entries(place), |_| false);
        let cards = known.cards.iter().zip(&place.sums).zip(on);
        let cards = cards.map(|((card, sum), on)| CardUse {
            index: card.index,
            uuid: &card.uuid,
            total: card.memory,
            used: sum.used,
            local: card.local,
            core_percent: sum.core,
            healthy: card.healthy,
            pods: on.iter().map(|on| self.pod_use(on)).collect(),
        });
        Some(cards.collect())
    }

    /// The names of the nodes, in order.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        let known = self.nodes.iter().filter(|(_, place)| place.node.is_some());
        let mut names: Vec<&str> = known.map(|(name, _)| &**name).collect();
        names.sort_unstable();
        names.into_iter()
    }

    fn pod_use<'a>(&'a self, on: &On<'a>) -> PodUse<'a> {
        let name = self.pods.get(on.uid).map(|entry| (&*entry.namespace, &*entry.name));
        PodUse { uid: on.uid, name, memory: on.load.memory }
    }

    /// Asks about a node as it is without some pods.
    fn with<T>(
        &self,
        place: &Place,
        node: &Node,
        without: &[&str],
        ask: impl FnOnce(View<'_>) -> T,
    ) -> T {
        let spread = node.placement.unwrap_or(self.default) == Placement::Spread;
        let there = |uid: &&str| self.pods.get(*uid).is_some_and(|entry| *entry.node == *node.name);
        if without.iter().any(there) {
            let sums = self.sums(place, node, |uid| without.contains(&uid));
            return ask(View { node, sums: &sums, spread });
        }
        ask(View { node, sums: &place.sums, spread })
    }

    fn entries<'a>(&'a self, place: &'a Place) -> impl Iterator<Item = (&'a str, &'a Entry)> {
        place.pods.iter().filter_map(|uid| Some((&**uid, self.pods.get(uid)?)))
    }

    fn sums(&self, place: &Place, node: &Node, gone: impl Fn(&str) -> bool) -> Vec<Sum> {
        let on = sums::by_card(node, self.entries(place), gone);
        node.cards.iter().zip(on).map(|(card, on)| sums::of(card, &on)).collect()
    }

    fn insert(&mut self, pod: Pod, node: &str, reserved: bool) {
        let left = self.take(&pod.uid);
        let name = match self.nodes.get_key_value(node) {
            Some((name, _)) => Arc::clone(name),
            None => node.into(),
        };
        let uid: Arc<str> = pod.uid.into();
        if let Some(until) = pod.assumed_until_ms {
            self.assumed.insert((until, Arc::clone(&uid)));
        }
        self.nodes.entry(Arc::clone(&name)).or_default().pods.insert(Arc::clone(&uid));
        let (uses, unplaced) = match pod.layout {
            Some(layout) => (uses(&pod.request, &layout), None),
            None => (Box::default(), Some(Box::new(pod.request))),
        };
        let entry = Entry {
            namespace: pod.namespace.into(),
            name: pod.name.into(),
            node: Arc::clone(&name),
            uses,
            unplaced,
            finished: pod.finished,
            until_ms: pod.assumed_until_ms,
            reserved,
        };
        self.pods.insert(uid, entry);
        if let Some(left) = left.filter(|left| *left != name) {
            self.sum(&left);
        }
        self.sum(&name);
    }

    /// Takes a pod out; the node whose sums are to be made anew.
    fn take(&mut self, uid: &str) -> Option<Arc<str>> {
        let (uid, entry) = self.pods.remove_entry(uid)?;
        if let Some(until) = entry.until_ms {
            self.assumed.remove(&(until, Arc::clone(&uid)));
        }
        if let Some(place) = self.nodes.get_mut(&entry.node) {
            place.pods.remove(&uid);
            if place.node.is_none() && place.pods.is_empty() {
                self.nodes.remove(&entry.node);
            }
        }
        Some(entry.node)
    }

    /// Makes the sums of one node. All of it, as nodes have tens of pods: so no sum can drift from what it sums.
    fn sum(&mut self, name: &str) {
        let Some(place) = self.nodes.get(name) else { return };
        let Some(node) = &place.node else { return };
        let sums = self.sums(place, node, |_| false);
        if let Some(place) = self.nodes.get_mut(name) {
            place.sums = sums;
        }
    }
}

impl Entry {
    /// Whether a reservation is newer than what the API server says of the pod.
    fn outlasts(&self, pod: &Pod, now_ms: u64) -> bool {
        let same = || {
            let layout = pod.layout.as_ref();
            layout.is_some_and(|layout| uses(&pod.request, layout) == self.uses)
        };
        match (&pod.node, pod.assumed_until_ms, self.until_ms) {
            _ if pod.finished => false,
            (None, _, _) => true,
            (Some(_), None, _) | (Some(_), _, None) => false,
            (Some(_), Some(theirs), Some(mine)) if theirs > mine => theirs <= now_ms,
            (Some(node), Some(theirs), Some(mine)) => {
                let written = mine - theirs < WRITTEN_MS && **node == *self.node && same();
                theirs <= now_ms || !written
            }
        }
    }
}
