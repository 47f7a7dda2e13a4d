//! All nodes and all pods of the cluster, reduced to what matters of GPU memory and told one by
//! one.
//!
//! Nothing is kept here: 100,000 pods have one home, the ledger of whoever listens.

use std::convert::Infallible;

use kube::runtime::watcher::Event;
use mpsgate_model::{CardReport, GPU_MEMORY, GpuNode};

use crate::follow::{Told, follow};
use crate::listen::Lists;
use crate::node_object::{CARDS, Labels, SHARED, parse_cards};
use crate::objects::Objects;
use crate::read::{Found, LeftOut, Object, part};
use crate::wire::{NodePlace, WireNode, WirePod};
use crate::{Error, Pod, Settings, handler_annotation};

/// Pods of one card at most, a node label; -1 is no limit (ACK).
const MAX_PODS: &str = "ack.node.gpu.max-pod";

/// What is told of pods or nodes.
#[derive(Debug)]
pub enum Change<T> {
    /// A list begins. What was told until now holds until it is whole.
    Listing,
    /// All there are: what is not among them is gone. From now on it is current.
    Listed(Vec<T>),
    /// It is new, or has changed.
    Put(T),
    /// It is gone: a pod's uid, a node's name.
    Gone(String),
    /// The objects that are there and cannot be read, at most 256 of them, whenever that has
    /// changed. Of the changes above each is told as [`Put`](Self::Put) where something of it
    /// counts, and else as gone.
    LeftOut(Vec<LeftOut>),
    /// Nothing is heard any more, and another attempt follows.
    Lost(Error),
}

/// A node, as far as scheduling by card is concerned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterNode {
    /// Its name.
    pub name: String,
    /// What its labels ask for.
    pub labels: Labels,
    /// `ack.node.gpu.max-pod`: pods on one card at most.
    pub max_pods: Option<u32>,
    /// Its annotation [`CARDS`]; empty where it has none.
    pub cards: Vec<CardReport>,
    /// Why that annotation cannot be read.
    pub unreadable: Option<String>,
    /// It has `aliyun.com/gpu-mem`, by whatever device plugin; 0 of it, too, which is what kubelet
    /// leaves when a plugin has ended.
    pub has_gpu_memory: bool,
    /// Where it is to have cards of mpsgate's, or says that it has: who may come to it, and where
    /// its handlers lead.
    pub shared: Option<GpuNode>,
}

impl ClusterNode {
    /// What matters of a node's JSON, such as a client of the API server sends on.
    ///
    /// # Errors
    /// Where it is no JSON of a node.
    pub fn parse(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json).map(Self::reduce)
    }

    pub(crate) fn reduce(node: WireNode) -> Self {
        let (labels, annotations) = (
            node.metadata.labels.unwrap_or_default(),
            node.metadata.annotations.unwrap_or_default(),
        );
        let (cards, unreadable) = match annotations.get(CARDS).map(|text| parse_cards(text)) {
            None => (Vec::new(), None),
            Some(Ok(cards)) => (cards, None),
            Some(Err(why)) => (Vec::new(), Some(why)),
        };
        let words = Labels::of(&labels, &annotations);
        let is_switched =
            words.slices || matches!(words.schedule.as_deref(), Some("mps" | "share"));
        // What it says by itself: mpsgated writes both.
        let says_so = labels.contains_key(SHARED) || annotations.contains_key(CARDS);
        let shared = (is_switched || says_so).then(|| GpuNode {
            labels: labels.clone(),
            is_switched,
            handlers: handler_annotation::of(&annotations),
        });
        Self {
            name: node.metadata.name.unwrap_or_default(),
            shared,
            labels: words,
            max_pods: labels.get(MAX_PODS).and_then(|text| text.parse().ok()),
            cards,
            unreadable,
            has_gpu_memory: node.status.capacity.contains_key(GPU_MEMORY),
        }
    }
}

/// Follows every pod of the cluster that asks for something of ours, for ever. Of the others `tell`
/// hears when they are gone, and nothing else. One that cannot be read counts with what it asks
/// for, where that can be read and its bytes have a word of ours.
pub async fn cluster_pods(settings: &Settings, tell: impl FnMut(Change<Pod>)) -> Infallible {
    let of = |found: Found<WirePod>| Pod::reduce(part(found)?).filter(asks);
    let told = relay(of, uid, tell);
    follow(settings, Lists::Fresh, "all pods", "", Objects::<WirePod>::all, told).await
}

/// By which a pod is told from the others.
pub(crate) fn uid(pod: &Found<WirePod>) -> Option<String> {
    match pod {
        Ok(pod) => pod.metadata.uid.clone(),
        Err(unread) => unread.meta.uid.clone(),
    }
}

/// Follows every node of the cluster, for ever. To one that cannot be read no pod can be sent: it
/// is as if it were not there.
pub async fn cluster_nodes(
    settings: &Settings,
    tell: impl FnMut(Change<ClusterNode>),
) -> Infallible {
    let of = |node: Found<NodePlace>| node.ok().map(|node| ClusterNode::reduce(node.0));
    let told = relay(of, named, tell);
    follow(settings, Lists::Fresh, "all nodes", "", Objects::<NodePlace>::all, told).await
}

/// Also what cannot be counted: whoever decides has to refuse it.
fn asks(pod: &Pod) -> bool {
    pod.containers.iter().any(|container| {
        container.limits.as_ref().map_or(true, |limits| !limits.is_empty())
            || container.core_percent != Ok(0)
    })
}

/// The name of what has no namespace.
pub(crate) fn named<K: Object>(found: &Found<K>) -> Option<String> {
    match found {
        Ok(object) => object.name().map(str::to_owned),
        Err(unread) => unread.meta.name.clone(),
    }
}

/// Of what is told of objects, what `of` makes of them, one by one; `key` says which of them is
/// gone.
pub(crate) fn relay<K, T, R: Default>(
    of: impl Fn(Found<K>) -> Option<T>,
    key: impl Fn(&Found<K>) -> Option<String>,
    mut tell: impl FnMut(Change<T>) -> R,
) -> impl FnMut(Told<K>) -> R {
    let mut coming = Vec::new();
    move |told| {
        tell(match told {
            Told::Kube(Event::Init) => {
                coming.clear();
                Change::Listing
            }
            Told::Kube(Event::InitApply(object)) => {
                coming.extend(of(object));
                return R::default();
            }
            Told::Kube(Event::InitDone) => Change::Listed(std::mem::take(&mut coming)),
            Told::Kube(Event::Apply(object)) => {
                // What was known of it before is not true any more.
                let unread = object.is_err().then(|| key(&object)).flatten();
                match (of(object), unread) {
                    (Some(object), _) => Change::Put(object),
                    (None, Some(key)) => Change::Gone(key),
                    (None, None) => return R::default(),
                }
            }
            Told::Kube(Event::Delete(object)) => match key(&object) {
                Some(key) => Change::Gone(key),
                None => return R::default(),
            },
            Told::LeftOut(all) => Change::LeftOut(all),
            Told::Lost(error) => Change::Lost(error),
        })
    }
}
