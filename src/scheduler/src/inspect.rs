//! What `/inspect` shows: the JSON of gpushare's extender (`pkg/scheduler/gpushare-inspect.go`), in
//! GiB as its tools read it, with exact numbers beside.

use mpsgate_cluster::{Snapshot, Usage};
use mpsgate_kubernetes::LeftOut;
use mpsgate_model::{Mib, printable};
use serde::Serialize;

const GIB: u64 = 1024;
/// Of those that cannot be read, so many are named.
const NAMED: usize = 100;

/// The whole answer.
#[derive(Debug, Serialize)]
pub(crate) struct Inspected {
    pub(crate) nodes: Vec<InspectedNode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// What the API server has and nobody can read, each with its reason.
    #[serde(rename = "leftOut", skip_serializing_if = "Vec::is_empty")]
    pub(crate) left_out: Vec<String>,
}

/// One node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InspectedNode {
    name: String,
    #[serde(rename = "totalGPU")]
    total: u64,
    #[serde(rename = "usedGPU")]
    used: u64,
    devs: Vec<InspectedDevice>,
}

/// One card, in gpushare's word.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InspectedDevice {
    id: u32,
    #[serde(rename = "totalGPU")]
    total: u64,
    #[serde(rename = "usedGPU")]
    used: u64,
    pods: Vec<InspectedPod>,
    uuid: String,
    healthy: bool,
    total_mib: u64,
    used_mib: u64,
    local_mib: u64,
    core_percent: u32,
}

/// One pod on a card. One that is gone, and whose memory its node still holds, has no name.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InspectedPod {
    name: String,
    namespace: String,
    #[serde(rename = "usedGPU")]
    used: u64,
    /// With a name and its uid a pod can be bound: for those who have shown who they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    used_mib: u64,
}

/// All nodes with cards, or one of them; with the pods' uids or without.
pub(crate) fn inspect(
    ledger: &Snapshot,
    left_out: &[LeftOut],
    only: Option<&str>,
    uids: bool,
) -> Inspected {
    let left_out = left_out.iter().take(NAMED).map(LeftOut::to_string).collect();
    let one = |name: &str| ledger.cards(name).map(|cards| node(name, &cards, uids));
    match only {
        Some(name) => {
            let found = one(name);
            let error =
                found.is_none().then(|| format!("node {} is not known", printable::value(name)));
            Inspected { nodes: found.into_iter().collect(), error, left_out }
        }
        None => {
            let with_cards = |node: &InspectedNode| !node.devs.is_empty();
            Inspected {
                nodes: ledger.nodes().filter_map(one).filter(with_cards).collect(),
                error: None,
                left_out,
            }
        }
    }
}

fn node(name: &str, cards: &[Usage<'_>], uids: bool) -> InspectedNode {
    let devs: Vec<InspectedDevice> = cards.iter().map(|usage| device(usage, uids)).collect();
    let sum = |of: fn(&InspectedDevice) -> u64| devs.iter().map(of).fold(0, u64::saturating_add);
    InspectedNode {
        name: name.to_owned(),
        total: sum(|device| device.total),
        used: sum(|device| device.used),
        devs,
    }
}

fn device(usage: &Usage<'_>, uids: bool) -> InspectedDevice {
    let pods = usage.pods.iter().map(|pod| {
        let (namespace, name) = pod.name.unwrap_or_default();
        InspectedPod {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            used: up(pod.memory),
            uid: uids.then(|| pod.uid.to_owned()),
            used_mib: pod.memory.0,
        }
    });
    let card = usage.card;
    InspectedDevice {
        id: card.index,
        total: card.memory.0 / GIB,
        used: up(usage.used),
        pods: pods.collect(),
        uuid: card.uuid.clone(),
        healthy: card.healthy,
        total_mib: card.memory.0,
        used_mib: usage.used.0,
        local_mib: card.local.0,
        core_percent: usage.core_percent,
    }
}

fn up(memory: Mib) -> u64 {
    memory.0.div_ceil(GIB)
}
