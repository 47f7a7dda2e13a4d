#![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
use mpsgate_kubernetes::{CARDS, PLACEMENT};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Two nodes with two cards of 16 GiB, and a pod of 4 GiB that is bound.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(Placement::Binpack);
    for name in ["n1", "n2"] {
        let card = |index: u64| json!({"uuid": format!("GPU-{index}"), "index": index, "memory_mib": 16384, "local_mib": 0, "healthy": true});
        let cards = json!({"version": 1, "cards": [card(0), card(1)]}).to_string();
        let node = json!({"metadata": {"name": name, "labels": {"ack.node.gpu.schedule": "mps"}, "annotations": {CARDS: cards}}});
        cluster.tell_node(Change::Put(ClusterNode::parse(&node.to_string()).unwrap()), 1);
    }
    let placed = json!({"version": 1, "node": "n1", "time": "2026-01-31T11:59:30Z", "containers": {"c": {"1": 4096}}});
    cluster.tell_pod(
        Change::Put(pod("bound", Some("n1"), "4", &json!({PLACEMENT: placed.to_string()}))),
        1,
    );
    cluster
}

fn pod(uid: &str, node: Option<&str>, limit: &str, annotations: &Value) -> Pod {
    let pod = json!({
        "metadata": {"uid": uid, "name": uid, "namespace": "default", "annotations": annotations},
        "spec": {"nodeName": node, "schedulingGates": [{"name": "never"}], "schedulerName": "nobody",
                 "containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": limit}}}]},
    });
    Pod::parse(&pod.to_string()).unwrap()
}

fn used(cluster: &Cluster) -> Vec<u64> {
    let ledger = &cluster.ledger;
    ledger.nodes().flat_map(|node| ledger.cards(node).unwrap()).map(|card| card.used.0).collect()
}

fn forged() -> impl Strategy<Value = Value> {
    let time = prop::sample::select(vec!["2026-01-31T11:59:30Z", "2096-01-31T12:00:00Z", "", "x"]);
    let node = prop::sample::select(vec!["n1", "n2", "n3", ""]);
    let cards = prop::collection::btree_map("[0-3]", any::<u64>(), 0..3);
    (time, node, cards, any::<bool>(), "[0-9-]{0,3}").prop_map(|(time, node, cards, v2, index)| {
        let containers = json!({"c": cards});
        let placement = json!({"version": 1, "node": node, "time": time, "containers": containers});
        let mut all = json!({PLACEMENT: placement.to_string(), "ALIYUN_COM_GPU_MEM_IDX": index,
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "9999999999999999999", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"});
        if v2 {
            all["scheduler.framework.gpushare.allocation"] = json!({"0": cards}).to_string().into();
        }
        all
    })
}

proptest! {
    #[test]
    fn whatever_is_written_on_pods_that_are_not_bound_they_change_no_card(
        pods in prop::collection::vec((0u8..4, "[0-9]{1,18}E?", forged()), 1..12),
        listed in any::<bool>(),
    ) {
        let mut cluster = cluster();
        let before = used(&cluster);
        prop_assert_eq!(&before, &[0, 4096, 0, 0]);
        let pods: Vec<_> = pods
            .iter()
            .map(|(n, limit, annotations)| pod(&format!("p{n}"), None, limit, annotations))
            .collect();
        for pod in &pods {
            cluster.tell_pod(Change::Put(pod.clone()), 1);
            prop_assert_eq!(&used(&cluster), &before);
        }
        if listed {
            let bound = pod("bound", Some("n1"), "4", &json!({"ALIYUN_COM_GPU_MEM_IDX": "1"}));
            cluster.tell_pod(Change::Listing, 2);
            cluster.tell_pod(Change::Listed(pods.into_iter().chain([bound]).collect()), 2);
            prop_assert_eq!(&used(&cluster), &before);
        }
    }
}

#[test]
fn a_pod_that_is_bound_counts_where_its_placement_says() {
    let mut cluster = cluster();
    let placed = json!({"version": 1, "node": "n2", "time": "2026-01-31T11:59:30Z", "containers": {"c": {"0": 1}}});
    let annotations = json!({PLACEMENT: placed.to_string()});
    cluster.tell_pod(Change::Put(pod("p", None, "7", &annotations)), 1);
    assert_eq!(used(&cluster), [0, 4096, 0, 0]);
    cluster.tell_pod(Change::Put(pod("p", Some("n2"), "7", &annotations)), 1);
    assert_eq!(used(&cluster), [0, 4096, 7168, 0]);
}
