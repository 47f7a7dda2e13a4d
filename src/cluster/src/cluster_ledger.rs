//! The ledger: nodes, pods and, for each node, the sums of its cards.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use mpsgate_model::{Layout, Placement};

use super::demand::{Entry, uses};
use super::ledger_snapshot::{Place, Snapshot, Usage};
use super::reason;
use super::{Node, Pod, Reason};

/// What each card of the cluster holds, as it changes.
#[derive(Debug, Clone)]
pub struct Ledger {
    now: Snapshot,
    now_ms: u64,
    /// The node of each pod, by its uid.
    pods: HashMap<Arc<str>, Arc<str>>,
    /// By the time when they end.
    reserved: BTreeSet<(u64, Arc<str>)>,
}

impl Ledger {
    /// An empty ledger; `default` holds for nodes without a label of their own.
    #[must_use]
    pub fn new(default: Placement) -> Self {
        Self {
            now: Snapshot { default, places: Arc::default() },
            now_ms: 0,
            pods: HashMap::new(),
            reserved: BTreeSet::new(),
        }
    }

    /// As it is at this moment: to be asked while this one changes.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.now.clone()
    }

    /// A node is there, or has changed. Of cards with one index the first counts.
    pub fn set_node(&mut self, mut node: Node) {
        node.cards.sort_by_key(|card| card.index);
        node.cards.dedup_by_key(|card| card.index);
        let known = self.now.places.get(node.name.as_str());
        if known.and_then(|place| place.node.as_ref()) != Some(&node) {
            let places = Arc::make_mut(&mut self.now.places);
            let place = Arc::make_mut(places.entry(node.name.as_str().into()).or_default());
            place.node = Some(node);
            place.sum();
        }
    }

    /// A node is gone. Its pods are kept until they are gone, too.
    pub fn remove_node(&mut self, name: &str) {
        let places = Arc::make_mut(&mut self.now.places);
        let Some(place) = places.get_mut(name) else { return };
        let place = Arc::make_mut(place);
        place.node = None;
        place.sum();
        if place.pods.is_empty() {
            places.remove(name);
        }
    }

    /// A pod is there, or has changed. One that is bound to no node counts nowhere, whatever stands
    /// in it; but a reservation stays until its pod is bound or has ended.
    pub fn set_pod(&mut self, pod: Pod) {
        match pod.node.clone() {
            Some(node) => self.insert(pod, &node, None),
            None if !pod.finished && self.is_reserved(&pod.uid) => {}
            None => self.remove_pod(&pod.uid),
        }
    }

    /// A pod is gone. What its node says that it holds counts on.
    pub fn remove_pod(&mut self, uid: &str) {
        if let Some(node) = self.take(uid) {
            self.sum(&node);
        }
    }

    /// Gives back what [`reserve`](Self::reserve) took, where the pod is not bound.
    pub fn release(&mut self, uid: &str) {
        if self.is_reserved(uid) {
            self.remove_pod(uid);
        }
    }

    /// Ends the reservations whose time is over.
    pub fn expire(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        while let Some((until, uid)) = self.reserved.first().cloned()
            && until <= self.now_ms
        {
            self.remove_pod(&uid);
            // Already gone with the pod; without this a fault there would be an endless loop here.
            self.reserved.remove(&(until, uid));
        }
    }

    /// As [`Snapshot::fits`].
    ///
    /// # Errors
    /// Why the node does not do.
    pub fn fits(&self, node: &str, pod: &Pod) -> Result<Layout, Reason> {
        self.now.fits(node, pod)
    }

    /// As [`Snapshot::score`].
    #[must_use]
    pub fn score(&self, node: &str, pod: &Pod) -> Option<u8> {
        self.now.score(node, pod)
    }

    /// As [`Snapshot::victims`].
    #[must_use]
    pub fn victims(&self, node: &str, pod: &Pod, proposed: &[String]) -> Option<Vec<String>> {
        self.now.victims(node, pod, proposed)
    }

    /// As [`Snapshot::cards`].
    #[must_use]
    pub fn cards(&self, node: &str) -> Option<Vec<Usage<'_>>> {
        self.now.cards(node)
    }

    /// As [`Snapshot::nodes`].
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.now.nodes()
    }

    /// Gives a pod its cards on a node until it is bound, released, or the time is over.
    ///
    /// # Errors
    /// Why the node does not do.
    pub fn reserve(&mut self, mut pod: Pod, node: &str, until_ms: u64) -> Result<Layout, Reason> {
        if let Some(at) = self.pods.get(pod.uid.as_str())
            && !self.is_reserved(&pod.uid)
        {
            return Err(reason::bound(at));
        }
        let layout = self.fits(node, &pod)?;
        pod.layout = Some(layout.clone());
        pod.finished = false;
        self.insert(pod, node, Some(until_ms));
        Ok(layout)
    }

    fn is_reserved(&self, uid: &str) -> bool {
        let place = self.pods.get(uid).and_then(|node| self.now.places.get(node));
        let entry = place.and_then(|place| place.pods.get(uid));
        entry.is_some_and(|entry| entry.reserved_until_ms.is_some())
    }

    fn insert(&mut self, pod: Pod, node: &str, reserved_until_ms: Option<u64>) {
        let left = self.take(&pod.uid);
        let name = match self.now.places.get_key_value(node) {
            Some((name, _)) => Arc::clone(name),
            None => node.into(),
        };
        let uid: Arc<str> = pod.uid.into();
        if let Some(until) = reserved_until_ms {
            self.reserved.insert((until, Arc::clone(&uid)));
        }
        let (uses, unplaced) = match pod.layout {
            Some(layout) => (uses(&pod.request, &layout), None),
            None => (Box::default(), Some(Box::new(pod.request))),
        };
        let entry = Entry {
            namespace: pod.namespace.into(),
            name: pod.name.into(),
            uses,
            unplaced,
            finished: pod.finished,
            reserved_until_ms,
        };
        let places = Arc::make_mut(&mut self.now.places);
        let place = places.entry(Arc::clone(&name)).or_default();
        Arc::make_mut(place).pods.insert(Arc::clone(&uid), entry);
        self.pods.insert(uid, Arc::clone(&name));
        if let Some(left) = left.filter(|left| *left != name) {
            self.sum(&left);
        }
        self.sum(&name);
    }

    /// Takes a pod out; the node whose sums are to be made anew.
    fn take(&mut self, uid: &str) -> Option<Arc<str>> {
        let (uid, node) = self.pods.remove_entry(uid)?;
        let places = Arc::make_mut(&mut self.now.places);
        let place = Arc::make_mut(places.get_mut(&node)?);
        let until = place.pods.remove(&uid).and_then(|entry| entry.reserved_until_ms);
        if place.node.is_none() && place.pods.is_empty() {
            places.remove(&node);
        }
        if let Some(until) = until {
            self.reserved.remove(&(until, uid));
        }
        Some(node)
    }

    fn sum(&mut self, name: &str) {
        if let Some(place) = Arc::make_mut(&mut self.now.places).get_mut(name) {
            Place::sum(Arc::make_mut(place));
        }
    }
}
