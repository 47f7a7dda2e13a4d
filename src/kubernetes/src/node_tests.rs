use super::*;

fn seen(node: Value) -> Node {
    let mut seen = Node::default();
    seen.reduce(serde_json::from_value(node).expect("a node"));
    seen
}

fn report() -> NodeReport {
    let card = |index| CardReport {
        uuid: format!("GPU-{index}"),
        index,
        name: "Tesla T4 (16 GB)".to_owned(),
        memory_mib: 15360 + 1024 * u64::from(index),
        local_mib: 0,
        healthy: true,
        uid: (index == 1).then_some(1000),
        one_uid: true,
        max_clients: Some(48),
        held: (index == 1).then(|| ("p1".to_owned(), 7168)).into_iter().collect(),
    };
    NodeReport {
        cards: Some(vec![card(0), card(1)]),
        ready: Some(Readiness {
            ready: true,
            reason: "Ready".to_owned(),
            message: "2 cards".to_owned(),
        }),
    }
}

const NOW: &str = "2026-01-31T12:00:00Z";

#[test]
fn reads_the_labels_of_the_seed_systems() {
    let labels = |json: Value| seen(json!({"metadata": {"labels": json}})).labels;
    assert_eq!(labels(json!(null)), Labels::default());
    let schedule = labels(json!({"ack.node.gpu.schedule": "cgpu"})).schedule;
    assert_eq!(schedule.as_deref(), Some("cgpu"));
    assert_eq!(labels(json!({"ack.node.gpu.placement": "spread"})).placement, Placement::Spread);
    assert_eq!(labels(json!({"ack.node.gpu.placement": "binpack"})).placement, Placement::Binpack);
    for (value, slices) in [("mps", true), ("hybrid", true), ("mig", false), ("", false)] {
        assert_eq!(
            labels(json!({"nos.nebuly.com/gpu-partitioning": value})).slices,
            slices,
            "{value}"
        );
    }
}

#[test]
fn writes_the_cards_once_and_then_nothing() {
    let wanted = report().wanted(&Ours::default());
    let (metadata, status) = seen(json!({"metadata": {}})).ours.patches(&wanted, NOW);
    assert_eq!(
        metadata.expect("a patch"),
        json!({"metadata": {
            "annotations": {"mpsgate.io/cards": "{\"version\":1,\"cards\":[\
                {\"uuid\":\"GPU-0\",\"index\":0,\"memory_mib\":15360,\"local_mib\":0,\"healthy\":true,\
                \"one_uid\":true,\"max_clients\":48},\
                {\"uuid\":\"GPU-1\",\"index\":1,\"memory_mib\":16384,\"local_mib\":0,\"healthy\":true,\"uid\":1000,\
                \"one_uid\":true,\"max_clients\":48,\"held\":{\"p1\":7168}}]}"},
            "labels": {
                "mpsgate.io/shared": "true",
                "aliyun.accelerator/nvidia_count": "2",
                "aliyun.accelerator/nvidia_name": "Tesla-T4--16-GB",
                "aliyun.accelerator/nvidia_mem": "15360MiB",
            },
        }})
    );
    let status = status.expect("a patch");
    assert_eq!(
        status,
        json!({"status": {
            "capacity": {"aliyun.com/gpu-count": "2"},
            "conditions": [{
                "type": "GPUMemorySharingReady", "status": "True", "reason": "Ready", "message": "2 cards",
                "lastHeartbeatTime": NOW, "lastTransitionTime": NOW,
            }],
        }})
    );
    assert_eq!(wanted.patches(&wanted, NOW), (None, None));
}

#[test]
fn a_patch_names_only_what_differs() {
    let have = report().wanted(&Ours::default());
    let mut next = report();
    next.ready =
        Some(Readiness { ready: true, reason: "Ready".to_owned(), message: "busy".to_owned() });
    let (metadata, status) = have.patches(&next.wanted(&Ours::default()), NOW);
    assert_eq!(metadata, None);
    let condition = &status.expect("a patch")["status"]["conditions"][0];
    // It was ready before: no transition.
    assert_eq!(condition.get("lastTransitionTime"), None);
    assert_eq!(condition["message"], "busy");

    next = report();
    next.cards.as_mut().expect("there")[0].healthy = false;
    let (metadata, status) = have.patches(&next.wanted(&Ours::default()), NOW);
    assert_eq!(status, None);
    assert_eq!(
        metadata.expect("a patch")["metadata"].as_object().map(serde_json::Map::len),
        Some(1)
    );
}

#[test]
fn cards_that_nobody_knows_of_now_stay_shown() {
    let have = report().wanted(&Ours::default());
    let why = Readiness { ready: false, reason: "NVML".to_owned(), message: "away".to_owned() };
    let unknown = NodeReport { cards: None, ready: Some(why) };
    let (metadata, status) = have.patches(&unknown.wanted(&have), NOW);
    assert_eq!(metadata, None);
    let status = status.expect("a patch");
    assert_eq!(status["status"].as_object().map(serde_json::Map::len), Some(1));
    assert_eq!(status["status"]["conditions"][0]["reason"], "NVML");
}

#[test]
fn without_cards_everything_of_ours_is_taken_away() {
    let none = NodeReport { cards: Some(Vec::new()), ready: None };
    let have = report().wanted(&Ours::default());
    let (metadata, status) = have.patches(&none.wanted(&have), NOW);
    let metadata = metadata.expect("a patch");
    assert_eq!(metadata["metadata"]["annotations"], json!({"mpsgate.io/cards": null}));
    let labels = &metadata["metadata"]["labels"];
    assert_eq!(labels["aliyun.accelerator/nvidia_name"], Value::Null);
    assert_eq!(labels.get(SHARED), Some(&Value::Null));
    let status = status.expect("a patch");
    assert_eq!(status["status"]["capacity"], json!({"aliyun.com/gpu-count": null}));
    assert_eq!(
        status["status"]["conditions"],
        json!([{"type": "GPUMemorySharingReady", "$patch": "delete"}])
    );
}

#[test]
fn reads_back_what_it_wrote() {
    let wanted = report().wanted(&Ours::default());
    let node = seen(json!({
        "metadata": {
            "annotations": {"mpsgate.io/cards": wanted.annotation},
            "labels": {
                "mpsgate.io/shared": "true",
                "aliyun.accelerator/nvidia_count": "2", "aliyun.accelerator/nvidia_name": "Tesla-T4--16-GB",
                "aliyun.accelerator/nvidia_mem": "15360MiB",
            },
        },
        "status": {
            "capacity": {"cpu": "2", "aliyun.com/gpu-count": "2"},
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "GPUMemorySharingReady", "status": "True", "reason": "Ready", "message": "2 cards"},
            ],
        },
    }));
    assert_eq!(node.ours, wanted);
}

#[test]
fn every_card_name_becomes_a_label_that_kubernetes_takes() {
    for (name, label) in [
        ("Tesla T4", "Tesla-T4"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("  (ü) ", ""),
        ("", ""),
    ] {
        assert_eq!(label_value(name), label);
    }
    let long = label_value(&format!("{}--x", "a".repeat(61)));
    assert_eq!(long, "a".repeat(61));
}
