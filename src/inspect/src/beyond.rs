//! Pods that ask for more than any card of their node has: most of them mean another unit.

use std::fmt;
use std::num::NonZeroU32;

use mpsgate_kubernetes::{Container, Pod};
use mpsgate_model::{Mib, Resource};

/// A container's amount of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Beyond {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) node: String,
    pub(crate) container: String,
    pub(crate) resource: String,
    pub(crate) asked: Mib,
    /// What its node's largest card has.
    pub(crate) largest: Mib,
    pub(crate) hint: String,
}

/// Those of a pod on a node whose largest card has so much.
pub(crate) fn of(pod: &Pod, node: &str, largest: Mib) -> Vec<Beyond> {
    let cards = pod.gpu_count.as_deref().and_then(|text| text.parse().ok());
    let cards: u64 = cards.map_or(1, |cards: NonZeroU32| u64::from(cards.get()));
    let all = Mib(largest.0.saturating_mul(cards));
    let of_container = |container: &Container| {
        let limits = container.limits.clone().unwrap_or_default();
        let beyond = |(resource, mib): (String, u64)| {
            let asked = Mib(mib);
            let hint = Resource::parse(&resource)?.instead(asked, all);
            (asked > all).then(|| Beyond {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                node: node.to_owned(),
                container: container.name.clone(),
                resource,
                asked,
                largest,
                hint,
            })
        };
        limits.memory().filter_map(beyond).collect::<Vec<_>>()
    };
    pod.containers.iter().flat_map(of_container).collect()
}

impl fmt::Display for Beyond {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, node, container, resource, asked, largest, hint, .. } = self;
        write!(
            out,
            "pod {namespace}/{name}, container {container}: it asks for {asked} by {resource}, and the largest card of \
             node {node} has {largest}; {hint}"
        )
    }
}
