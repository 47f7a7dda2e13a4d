//! The ledger, and how far what the API server says has come into it.

use std::collections::{HashMap, HashSet};

use mpsgate_cluster::{Ledger, Reason};
use mpsgate_kubernetes::{Change, ClusterNode, Error, LeftOut, Pod};
use mpsgate_model::{Layout, Placement};

use crate::ledger_input;

/// How one of the watches stands.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Of the last whole list: in which term it began.
    pub(crate) listed_in: Option<u64>,
    /// Why nothing is heard now.
    pub(crate) error: Option<String>,
    /// What is there and cannot be read. The rest is current all the same.
    pub(crate) left_out: Vec<LeftOut>,
    /// Lists begun until now.
    listings: u64,
}

impl Source {
    /// Whether what is known is what the API server has.
    pub(crate) fn is_current(&self) -> bool {
        self.listed_in.is_some() && self.error.is_none()
    }

    /// What a log tells once of an episode.
    pub(crate) fn lost(&mut self, what: &'static str, error: &Error) {
        if self.error.is_none() {
            let (line, hint) = (error.line(), error.hint_for("mpsgate-scheduler"));
            log::warn!(what, error = line.as_str(), hint = hint.as_str(); "the API server is not heard");
        }
        self.error = Some(error.line());
    }

    pub(crate) fn whole(&mut self, term: u64) {
        self.listed_in = Some(term);
        self.error = None;
    }
}

/// Everything that is known of the cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) ledger: Ledger,
    pub(crate) nodes: Source,
    pub(crate) pods: Source,
    node_names: HashSet<String>,
    pod_uids: HashSet<String>,
    /// Bound here, which the watch has not said yet; and how many lists had begun by then. An older
    /// word of the API server must not undo it.
    bound: HashMap<String, u64>,
}

impl Cluster {
    pub(crate) fn new(placement: Placement) -> Self {
        Self {
            ledger: Ledger::new(placement),
            nodes: Source::default(),
            pods: Source::default(),
            node_names: HashSet::new(),
            pod_uids: HashSet::new(),
            bound: HashMap::new(),
        }
    }

    /// Whether both watches have brought whole lists that began in `term` or later, and are heard.
    pub(crate) fn is_current_since(&self, term: u64) -> bool {
        let since = |source: &Source| {
            source.is_current() && source.listed_in.is_some_and(|listed| listed >= term)
        };
        since(&self.nodes) && since(&self.pods)
    }

    /// Why nothing can be said of any node: there never was a whole list. What was whole once is
    /// good enough for a filter, as bind looks again.
    pub(crate) fn unsynced(&self) -> Option<String> {
        let missing = |source: &Source| source.listed_in.is_none();
        (missing(&self.nodes) || missing(&self.pods))
            .then(|| "mpsgate-scheduler has not read all nodes and pods yet; try again".to_owned())
    }

    /// What the watch of nodes tells, begun in `term`.
    pub(crate) fn tell_node(&mut self, change: Change<ClusterNode>, term: u64) {
        match change {
            Change::Listing => {}
            Change::Listed(nodes) => {
                let mut gone = std::mem::take(&mut self.node_names);
                for node in nodes {
                    gone.remove(&node.name);
                    self.put_node(node);
                }
                gone.iter().for_each(|name| self.ledger.remove_node(name));
                self.nodes.whole(term);
            }
            Change::Put(node) => self.put_node(node),
            Change::Gone(name) => {
                self.node_names.remove(&name);
                self.ledger.remove_node(&name);
            }
            Change::LeftOut(all) => self.nodes.left_out = all,
            Change::Lost(error) => self.nodes.lost("nodes", &error),
        }
    }

    fn put_node(&mut self, node: ClusterNode) {
        if let Some(why) = &node.unreadable {
            log::warn!(node = node.name.as_str(), why = why.as_str();
                "the annotation mpsgate.io/cards cannot be read; the node takes no pods");
        }
        self.node_names.insert(node.name.clone());
        self.ledger.set_node(ledger_input::node(node));
    }

    /// What the watch of pods tells, begun in `term`.
    pub(crate) fn tell_pod(&mut self, change: Change<Pod>, term: u64) {
        match change {
            Change::Listing => self.pods.listings += 1,
            Change::Listed(pods) => {
                let mut gone = std::mem::take(&mut self.pod_uids);
                // Whoever was bound before the list began would be in it.
                let listings = self.pods.listings;
                let (old, new) = std::mem::take(&mut self.bound)
                    .into_iter()
                    .partition::<HashMap<_, _>, _>(|(_, at)| *at < listings);
                self.bound = new;
                gone.extend(old.into_keys());
                for pod in pods {
                    gone.remove(&pod.uid);
                    self.put_pod(&pod);
                }
                for uid in gone.into_iter().filter(|uid| !self.bound.contains_key(uid)) {
                    self.ledger.remove_pod(&uid);
                }
                self.pods.whole(term);
            }
            Change::Put(pod) => self.put_pod(&pod),
            Change::Gone(uid) => {
                self.bound.remove(&uid);
                self.pod_uids.remove(&uid);
                self.ledger.remove_pod(&uid);
            }
            Change::LeftOut(all) => self.pods.left_out = all,
            Change::Lost(error) => self.pods.lost("pods", &error),
        }
    }

    fn put_pod(&mut self, pod: &Pod) {
        self.pod_uids.insert(pod.uid.clone());
        if pod.node.is_some() {
            self.bound.remove(&pod.uid);
        } else if self.bound.contains_key(&pod.uid) {
            return;
        }
        self.ledger.set_pod(ledger_input::known(pod));
    }

    /// Takes memory for a pod that is about to be bound.
    pub(crate) fn reserve(
        &mut self,
        pod: mpsgate_cluster::Pod,
        node: &str,
        until_ms: u64,
    ) -> Result<Layout, Reason> {
        self.ledger.reserve(pod, node, until_ms)
    }

    /// A pod was bound by us, with these cards.
    pub(crate) fn bound(&mut self, mut pod: mpsgate_cluster::Pod, node: &str, layout: Layout) {
        self.bound.insert(pod.uid.clone(), self.pods.listings);
        pod.node = Some(node.to_owned());
        pod.layout = Some(layout);
        self.ledger.set_pod(pod);
    }
}

#[cfg(test)]
mod tests;
