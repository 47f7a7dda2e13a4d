//! What the API server says of pods and nodes, in the ledger's words. Pure.

use std::num::NonZeroU32;

use mpsgate_cluster as cluster;
use mpsgate_kubernetes::{ClusterNode, Container, Pod};
use mpsgate_model::{Kind, Layout, Mib, Refusal};
use mpsgate_policy::core_refusal;
use mpsgate_policy::schedule::{self, Word};

/// Containers of a pod with GPU memory. A search costs for each of them beside each other, and each
/// is a client of MPS at least, of which a card takes 48 or 60.
const MOST_CONTAINERS: usize = 32;
/// The same times the cards that each has: what is searched for. As many as four containers over
/// sixteen cards, the most that a node has.
const MOST_PARTS: u32 = 64;

/// What a pod asks for; `None` where that is nothing of ours.
///
/// # Errors
/// Why no card can give it, in a sentence with what to do.
pub(crate) fn request(pod: &Pod) -> Result<Option<cluster::PodRequest>, String> {
    let Some(request) = whole(pod)? else { return Ok(None) };
    let (count, cards) = (request.containers.len(), request.cards);
    if count > MOST_CONTAINERS {
        return Err(format!(
            "more than {MOST_CONTAINERS} containers of this pod ask for GPU memory, and such a pod is not placed; make \
             several pods of it"
        ));
    }
    let parts = cards.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    if parts > MOST_PARTS {
        return Err(format!(
            "containers with GPU memory times cards ({count} times {cards}) are {parts}, and more than {MOST_PARTS} are \
             not placed; make several pods of it, or ask for fewer cards"
        ));
    }
    Ok(Some(request))
}

/// The same, however much that is.
fn whole(pod: &Pod) -> Result<Option<cluster::PodRequest>, String> {
    let asked: Result<Vec<_>, _> =
        pod.containers.iter().filter_map(|one| asked(one).transpose()).collect();
    let containers = asked?;
    if containers.is_empty() {
        return Ok(None);
    }
    let cards = pod.gpu_count.as_deref().map(schedule::gpu_count).transpose();
    let cards = cards.map_err(|refusal| said(&refusal))?.map_or(1, NonZeroU32::get);
    Ok(Some(cluster::PodRequest { containers, cards }))
}

/// What the claims of a pod ask for, as the ledger asks of a pod: each its part of one card. `None`
/// where that is nothing.
pub(crate) fn claimed(pod: &Pod, memory: Vec<Mib>) -> Option<cluster::PodRequest> {
    let uid = pod.containers.iter().find_map(|container| container.uid);
    let share = |(number, memory)| cluster::Container {
        name: format!("claim-{number}"),
        kind: Kind::Main,
        memory,
        unit: Mib(1),
        core_percent: 0,
        uid,
    };
    let containers: Vec<_> =
        memory.into_iter().take(MOST_CONTAINERS).enumerate().map(share).collect();
    (!containers.is_empty()).then_some(cluster::PodRequest { containers, cards: 1 })
}

/// In the node's words.
fn said(refusal: &Refusal) -> String {
    format!("{}; {}", refusal.sentence, refusal.hint)
}

fn asked(container: &Container) -> Result<Option<cluster::Container>, String> {
    let name = &container.name;
    let limits = container.limits.as_ref().map_err(|error| format!("container {name}: {error}"))?;
    let core =
        container.core_percent.as_ref().map_err(|error| format!("container {name}: {error}"))?;
    let memory: Vec<(String, u64)> = limits.memory().collect();
    if let Some(refusal) = core_refusal(*core, !memory.is_empty()) {
        return Err(format!("container {name}: {}", said(&refusal)));
    }
    let (resource, mib) = match memory.as_slice() {
        [] => return Ok(None),
        [one] => one,
        [(first, _), (second, _), ..] => {
            return Err(format!(
                "container {name} asks for GPU memory by {first} and {second}; ask by one of them"
            ));
        }
    };
    Ok(Some(cluster::Container {
        name: name.clone(),
        kind: container.kind,
        memory: Mib(*mib),
        unit: schedule::unit_of(resource),
        core_percent: u32::try_from(*core).unwrap_or(u32::MAX),
        uid: container.uid,
    }))
}

/// A pod that is to be placed.
pub(crate) fn candidate(pod: &Pod, request: cluster::PodRequest) -> cluster::Pod {
    cluster::Pod {
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        request,
        node: None,
        layout: None,
        finished: pod.finished,
    }
}

/// A pod as the API server has it: bound, or nowhere.
///
/// Whoever makes a pod can write its annotations. So they say on which cards one is that is bound,
/// and no more: how much is what its limits give, and one that is not bound is on none.
pub(crate) fn known(pod: &Pod) -> cluster::Pod {
    // What cannot be asked for still counts where it runs, as far as it can be counted.
    let request = whole(pod).ok().flatten().unwrap_or_else(|| cluster::PodRequest {
        containers: pod.containers.iter().filter_map(|one| asked(one).ok().flatten()).collect(),
        cards: 1,
    });
    let mut known = candidate(pod, request);
    if let Some(node) = &pod.node {
        known.node = Some(node.clone());
        known.layout = pod.allocation().and_then(|said| layout(&said, &known.request));
    }
    known
}

/// The cards of `said`, with what `request` asks of each. `None` where these are not as many as
/// every container wants.
fn layout(said: &Layout, request: &cluster::PodRequest) -> Option<Layout> {
    let of = |container: &cluster::Container| {
        let cards = said.0.get(&container.name)?;
        let count = u32::try_from(cards.len()).ok().filter(|count| *count == request.cards)?;
        let each = Mib(container.memory.0.checked_div(u64::from(count))?);
        Some((container.name.clone(), cards.keys().map(|card| (*card, each)).collect()))
    };
    request.containers.iter().map(of).collect::<Option<_>>().map(Layout)
}

/// A node's labels and cards. Without a label it is one under MPS where nos says so, or where
/// mpsgate has cards: then an operator gave them. One that mpsgate is being removed from shows
/// cards until its last container has ended.
pub(crate) fn node(node: ClusterNode) -> cluster::Node {
    let schedule = match node.labels.schedule.as_deref() {
        _ if node.labels.removal => Word::Off,
        Some(word) => Word::of_label(word),
        None if node.labels.slices || !node.cards.is_empty() => Word::Mps,
        None => Word::Off,
    };
    cluster::Node {
        name: node.name,
        schedule,
        placement: node.labels.placement,
        max_pods: node.max_pods,
        cards: node.cards,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use serde_json::json;

    use super::*;

    fn pod(node: Option<&str>, time: &str, containers: serde_json::Value) -> cluster::Pod {
        let placement = json!({"version": 1, "node": "n1", "time": time, "containers": containers});
        let pod = json!({
            "metadata": {"uid": "u", "name": "p", "annotations": {"mpsgate.io/placement": placement.to_string()}},
            "spec": {"nodeName": node, "containers": [{"name": "a", "resources": {"limits": {"aliyun.com/gpu-mem": "7"}}}]},
        });
        known(&Pod::parse(&pod.to_string()).unwrap())
    }

    fn on(card: u32) -> Option<Layout> {
        let cards = [(card, Mib(7 * 1024))].into_iter().collect();
        Some(Layout([("a".to_owned(), cards)].into_iter().collect()))
    }

    #[test]
    fn a_node_is_shared_as_its_labels_say_unless_mpsgate_is_removed_from_it() {
        let schedule = "ack.node.gpu.schedule";
        let cards = r#"{"version":1,"cards":[{"uuid":"GPU-0","index":0,"memory_mib":1024,"local_mib":0,"healthy":true}]}"#;
        let (with, without) = (json!({"mpsgate.io/cards": cards}), json!({}));
        let removed = json!({"mpsgate.io/cards": cards, "mpsgate.io/removal": "true"});
        for (labels, annotations, expected) in [
            (json!({schedule: "share"}), &without, Word::Share),
            (json!({schedule: "cgpu"}), &with, Word::Off),
            (json!({"nos.nebuly.com/gpu-partitioning": "mps"}), &without, Word::Mps),
            // An operator gave them.
            (json!({}), &with, Word::Mps),
            (json!({}), &without, Word::Off),
            // They are shown until its last container has ended.
            (json!({schedule: "mps"}), &removed, Word::Off),
            (json!({"nos.nebuly.com/gpu-partitioning": "mps"}), &removed, Word::Off),
            (json!({}), &removed, Word::Off),
        ] {
            let object =
                json!({"metadata": {"name": "n", "labels": labels, "annotations": annotations}});
            let known = node(ClusterNode::parse(&object.to_string()).unwrap());
            assert_eq!(known.schedule, expected, "{object}");
        }
    }

    /// One that was bound before there was a bound, or by its author, counts with all that it has.
    #[test]
    fn a_pod_of_too_many_containers_is_not_placed_and_counts_where_it_runs() {
        for (count, cards, is_placed) in [(32, 2, true), (33, 1, false), (33, 2, false)] {
            let one = |n| json!({"name": format!("c{n}"), "resources": {"limits": {"aliyun.com/gpu-mem": "2"}}});
            let containers: Vec<_> = (0..count).map(one).collect();
            let labels = json!({"aliyun.com/gpu-count": cards.to_string()});
            let pod = json!({
                "metadata": {"uid": "u", "name": "p", "labels": labels},
                "spec": {"nodeName": "n1", "containers": containers},
            });
            let pod = Pod::parse(&pod.to_string()).unwrap();
            assert_eq!(request(&pod).is_ok(), is_placed, "{count} on {cards}");
            let known = known(&pod).request;
            assert_eq!((known.containers.len(), known.cards), (count, cards));
        }
    }

    #[test]
    fn a_forged_placement_takes_no_more_than_the_limits_and_nothing_before_the_pod_is_bound() {
        let (past, future) = ("2026-01-31T11:59:30Z", "2096-01-31T12:00:00Z");
        let forged = json!({"a": {"1": 10_000_000}, "other": {"0": 10_000_000}});
        for time in [past, future] {
            let unbound = pod(None, time, forged.clone());
            assert_eq!((unbound.node, unbound.layout), (None, None), "{time}");
        }
        assert_eq!(pod(Some("n1"), past, forged.clone()).layout, on(1));
        // Of another node: nobody knows its card.
        assert_eq!(pod(Some("n2"), past, forged).layout, None);
        for unfit in [json!({}), json!({"a": {}}), json!({"a": {"0": 1, "1": 1}})] {
            assert_eq!(pod(Some("n1"), past, unfit.clone()).layout, None, "{unfit}");
        }
    }
}
