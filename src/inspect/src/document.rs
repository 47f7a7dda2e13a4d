//! The report as JSON, for programs. Amounts are always MiB.

use mpsgate_edge::{EdgeError, print};
use serde::Serialize;

use crate::beyond::Beyond;
use crate::node_rows::{Device, NodeView, PodView, View};

/// It changes with the meaning of any field; new fields do not change it.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    nodes: Vec<NodeJson<'a>>,
    used_mib: i64,
    total_mib: i64,
    /// More is asked for than a card of the node has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beyond_cards: Vec<BeyondJson<'a>>,
}

#[derive(Serialize)]
struct BeyondJson<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    node: &'a str,
    container: &'a str,
    resource: &'a str,
    asked_mib: u64,
    largest_card_mib: u64,
    /// What was likely meant.
    hint: &'a str,
}

#[derive(Serialize)]
struct NodeJson<'a> {
    name: &'a str,
    address: Option<&'a str>,
    /// The label `ack.node.gpu.schedule`.
    schedule: Option<&'a str>,
    /// Whether mpsgated reports each card; else all cards count as equal.
    exact: bool,
    used_mib: i64,
    total_mib: i64,
    cards: Vec<DeviceJson<'a>>,
    /// Memory of pods with unknown cards.
    pending: Vec<ShareJson<'a>>,
}

#[derive(Serialize)]
struct DeviceJson<'a> {
    index: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<&'a str>,
    used_mib: i64,
    /// Memory for pods.
    total_mib: i64,
    /// Memory of containers outside of pods, beside the total.
    #[serde(skip_serializing_if = "Option::is_none")]
    local_mib: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    healthy: Option<bool>,
    pods: Vec<ShareJson<'a>>,
}

#[derive(Serialize)]
struct ShareJson<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    used_mib: i64,
    /// The source: placement, allocation, index, held, unknown.
    source: &'static str,
}

pub(crate) fn render(view: &View) -> Result<String, EdgeError> {
    let nodes: Vec<NodeJson> =
        view.nodes.iter().filter(|node| node.total > 0).map(|it| node(view, it)).collect();
    print::json(&Document {
        schema: SCHEMA,
        used_mib: nodes.iter().map(|node| node.used_mib).fold(0, i64::saturating_add),
        total_mib: nodes.iter().map(|node| node.total_mib).fold(0, i64::saturating_add),
        nodes,
        beyond_cards: view.beyond.iter().map(beyond).collect(),
    })
}

fn beyond(one: &Beyond) -> BeyondJson<'_> {
    BeyondJson {
        namespace: &one.namespace,
        name: &one.name,
        uid: &one.uid,
        node: &one.node,
        container: &one.container,
        resource: &one.resource,
        asked_mib: one.asked.0,
        largest_card_mib: one.largest.0,
        hint: &one.hint,
    }
}

fn node<'a>(view: &View, node: &'a NodeView) -> NodeJson<'a> {
    let mut cards = Vec::new();
    let mut pending = Vec::new();
    for (index, device) in node.devices() {
        let pods = shares(view, node, index, device);
        if index < 0 {
            pending.extend(pods);
            continue;
        }
        let card = device.card.as_ref();
        cards.push(DeviceJson {
            index,
            uuid: card.map(|card| card.uuid.as_str()),
            used_mib: view.mib(node, device.used),
            total_mib: view.mib(node, device.total),
            local_mib: card.map(|card| card.local.0),
            healthy: card.map(|card| card.healthy),
            pods,
        });
    }
    let used = node.devices.values().map(|device| device.used).fold(0, i64::saturating_add);
    NodeJson {
        name: &node.name,
        address: node.address.as_deref(),
        schedule: node.schedule.as_deref(),
        exact: node.exact,
        used_mib: view.mib(node, used),
        total_mib: view.mib(node, node.total),
        cards,
        pending,
    }
}

fn shares<'a>(view: &View, node: &'a NodeView, index: i64, device: &Device) -> Vec<ShareJson<'a>> {
    let pods = device.pods.iter().filter_map(|place| node.pods.get(*place));
    let share = |pod: &'a PodView| ShareJson {
        namespace: &pod.namespace,
        name: &pod.name,
        uid: &pod.uid,
        used_mib: view.mib(node, pod.amounts.get(&index).copied().unwrap_or(0)),
        source: pod.source.word(),
    };
    pods.map(share).collect()
}
