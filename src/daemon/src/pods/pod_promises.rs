//! What bound pods may still take, kept in the ledger.

use mpsgate_kubernetes::{Limits, Pod, Pods, bound_pods};
use mpsgate_model::ledger::Promise;
use mpsgate_model::{GpuUuid, Kind, Mib};
use mpsgate_node::Node;
use mpsgate_policy::{Unplaced, expected_on};

use crate::daemon::Daemon;

/// Brings the ledger's promises up to date.
pub(super) fn keep(daemon: &Daemon, pods: &Pods) {
    daemon.change(|node, effects| {
        let promised = of(node, pods);
        node.promise(promised, effects);
    });
}

/// What one container may still take.
struct Part {
    pod: String,
    container: String,
    resource: String,
    unplaced: Unplaced,
}

pub(super) fn of(node: &Node, pods: &Pods) -> Vec<Promise> {
    let mut parts = Vec::new();
    for promise in bound_pods(pods) {
        // One that is being deleted starts nothing any more: it has what it holds.
        let Some(pod) = pods.get(&promise.uid).filter(|pod| !pod.deleting) else { continue };
        let uid = promise.static_hash.as_ref().unwrap_or(&promise.uid);
        parts_of(node, uid, pod, &promise.request, &promise.containers, &mut parts);
    }
    let free: Vec<(GpuUuid, Mib)> = node
        .cards()
        .iter()
        .filter(|card| card.is_managed())
        .map(|card| {
            let granted = node.ledger().granted(&card.uuid);
            (card.uuid.clone(), card.memory.saturating_sub(granted))
        })
        .collect();
    let asked: Vec<Unplaced> = parts.iter().map(|part| part.unplaced.clone()).collect();
    let expected = expected_on(&free, &asked).into_iter();
    let placed = parts.iter().zip(expected).flat_map(|(part, cards)| {
        cards.into_iter().map(|card| Promise {
            pod_uid: part.pod.clone(),
            container: part.container.clone(),
            resource: part.resource.clone(),
            card,
            memory: part.unplaced.memory,
        })
    });
    placed.collect()
}

/// What is left of a pod's request beside its live grants: main containers and sidecars first, as
/// they run together; what init containers need beyond that is the last.
fn parts_of(
    node: &Node,
    uid: &str,
    pod: &Pod,
    request: &Limits,
    containers: &[(String, Kind, Limits)],
    parts: &mut Vec<Part>,
) {
    let sum =
        |limits: &Limits| limits.memory().fold(0, |sum, (_, mib)| u64::saturating_add(sum, mib));
    let (mut granted, mut holders) = (0, Vec::new());
    for entry in node.ledger().of_pod(uid) {
        let cards = u64::try_from(entry.grant.cards.len()).unwrap_or(u64::MAX);
        granted = u64::saturating_add(granted, entry.grant.memory.0.saturating_mul(cards));
        holders.extend(entry.handed.as_ref().map(|handed| handed.pod.container.as_str()));
    }
    let mut left = sum(request).saturating_sub(granted);
    // As a grant will be laid out: under MPS on one card, whatever the label.
    let cards = pod.gpu_count.as_deref().filter(|_| !node.under_mps());
    let cards = cards.and_then(|count| count.parse().ok()).filter(|count| *count > 0).unwrap_or(1);
    let runs_at_the_end = |kind: Kind| kind != Kind::Init;
    let ordered = (containers.iter().filter(|(_, kind, _)| runs_at_the_end(*kind)))
        .chain(containers.iter().filter(|(_, kind, _)| !runs_at_the_end(*kind)));
    for (name, _, limits) in ordered {
        if holders.contains(&name.as_str()) {
            continue;
        }
        let indices = pod.chosen_cards(name);
        let chosen = node.cards().iter().filter(|card| indices.contains(&card.index));
        let chosen: Vec<GpuUuid> = chosen.map(|card| card.uuid.clone()).collect();
        for (resource, mib) in limits.memory() {
            let mib = mib.min(left);
            left -= mib;
            if mib > 0 {
                let each = Mib(mib / u64::try_from(cards).unwrap_or(u64::MAX));
                let unplaced = Unplaced { memory: each, cards, chosen: chosen.clone() };
                let (pod, container) = (uid.to_owned(), name.clone());
                parts.push(Part { pod, container, resource, unplaced });
            }
        }
    }
}
