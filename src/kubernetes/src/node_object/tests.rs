use mpsgate_model::Mib;

use super::*;

fn seen(node: Value) -> Node {
    let mut seen = Node::default();
    seen.reduce(serde_json::from_value(node).expect("a node"));
    seen
}

fn report() -> NodeReport {
    let card = |index| CardReport {
        name: "Tesla T4 (16 GB)".to_owned(),
        uid: (index == 1).then_some(1000),
        max_clients: Some(48),
        held: (index == 1).then(|| ("p1".to_owned(), Mib(7168))).into_iter().collect(),
        guarantee: "mps+watchdog".to_owned(),
        proof: if index == 1 { "proven here 2026-01-31 (580.65.06)" } else { "" }.to_owned(),
        ..CardReport::example(format!("GPU-{index}"), index, Mib(15360 + 1024 * u64::from(index)))
    };
    NodeReport {
        cards: Some(vec![card(0), card(1)]),
        level: Some((Guarantee::MpsWatchdog, false)),
        handlers: None,
        ready: Some(condition("Ready", "2 cards", Some(true))),
        bypass: None,
    }
}

fn condition(reason: &str, message: &str, holds: Option<bool>) -> ConditionReport {
    ConditionReport { holds, reason: reason.to_owned(), message: message.to_owned() }
}

const NOW: &str = "2026-01-31T12:00:00Z";

#[test]
fn reads_the_labels_of_the_seed_systems() {
    let labels = |json: Value| seen(json!({"metadata": {"labels": json}})).labels;
    assert_eq!(labels(json!(null)), Labels::default());
    let schedule = labels(json!({"ack.node.gpu.schedule": "cgpu"})).schedule;
    assert_eq!(schedule.as_deref(), Some("cgpu"));
    assert_eq!(
        labels(json!({"ack.node.gpu.placement": "spread"})).placement,
        Some(Placement::Spread)
    );
    assert_eq!(
        labels(json!({"ack.node.gpu.placement": "binpack"})).placement,
        Some(Placement::Binpack)
    );
    for (value, slices) in [("mps", true), ("hybrid", true), ("mig", false), ("", false)] {
        assert_eq!(
            labels(json!({"nos.nebuly.com/gpu-partitioning": value})).slices,
            slices,
            "{value}"
        );
    }
}

#[test]
fn a_node_that_mpsgate_is_removed_from_counts_as_one_that_nobody_labelled() {
    let (schedule, nos) = ("ack.node.gpu.schedule", "nos.nebuly.com/gpu-partitioning");
    for (labels, annotations, expected, slices) in [
        (json!({schedule: "mps"}), json!({"other": "kept"}), Some("mps"), false),
        (json!({schedule: "mps"}), json!({"mpsgate.io/removal": "true"}), None, false),
        (
            json!({schedule: "share", nos: "mps"}),
            json!({"mpsgate.io/removal": "true"}),
            None,
            false,
        ),
        (json!({nos: "hybrid"}), json!({"mpsgate.io/removal": ""}), None, false),
        (json!({nos: "hybrid"}), json!(null), None, true),
        (json!(null), json!({"mpsgate.io/removal": "true"}), None, false),
    ] {
        let node = json!({"metadata": {"labels": labels, "annotations": annotations}});
        let found = seen(node.clone());
        let is_removed = annotations.get(REMOVAL).is_some();
        assert_eq!(found.labels.schedule.as_deref(), expected, "{node}");
        assert_eq!((found.labels.slices, found.labels.removal), (slices, is_removed), "{node}");
        // Who chooses nodes by labels still sees all of them.
        assert_eq!(json!(found.all_labels), if labels.is_null() { json!({}) } else { labels });
    }
    // How cards are filled is not what switches the node.
    let node = json!({"metadata": {"labels": {"ack.node.gpu.placement": "spread"}, "annotations": {"mpsgate.io/removal": "true"}}});
    assert_eq!(seen(node).labels.placement, Some(Placement::Spread));
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
                \"one_uid\":true,\"max_clients\":48,\"guarantee\":\"mps+watchdog\"},\
                {\"uuid\":\"GPU-1\",\"index\":1,\"memory_mib\":16384,\"local_mib\":0,\"healthy\":true,\"uid\":1000,\
                \"one_uid\":true,\"max_clients\":48,\"held\":{\"p1\":7168},\
                \"guarantee\":\"mps+watchdog\",\"proof\":\"proven here 2026-01-31 (580.65.06)\"}]}"},
            "labels": {
                "mpsgate.io/shared": "true",
                "mpsgate.io/guarantee": "mps-watchdog",
                "mpsgate.io/proven": "false",
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
    next.ready = Some(condition("Ready", "busy", Some(true)));
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
    let why = condition("NVML", "away", Some(false));
    let unknown = NodeReport { ready: Some(why), ..NodeReport::default() };
    let (metadata, status) = have.patches(&unknown.wanted(&have), NOW);
    assert_eq!(metadata, None);
    let status = status.expect("a patch");
    assert_eq!(status["status"].as_object().map(serde_json::Map::len), Some(1));
    assert_eq!(status["status"]["conditions"][0]["reason"], "NVML");
}

#[test]
fn without_cards_everything_of_ours_is_taken_away() {
    let none = NodeReport { cards: Some(Vec::new()), ..NodeReport::default() };
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
            "annotations": {"mpsgate.io/cards": wanted.annotations[0]},
            "labels": {
                "mpsgate.io/shared": "true", "mpsgate.io/guarantee": "mps-watchdog", "mpsgate.io/proven": "false",
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
fn handlers_and_their_condition_are_written_beside_the_cards_and_go_with_them() {
    let have = report().wanted(&Ours::default());
    let handlers =
        HandlerReport { round: ["nvidia".to_owned()].into(), ..HandlerReport::default() };
    let bypass = condition("HandlersBypass", "nvidia", Some(true));
    let with = NodeReport { handlers: Some(handlers), bypass: Some(bypass), ..report() };
    let wanted = with.wanted(&have);
    let (metadata, status) = have.patches(&wanted, NOW);
    assert_eq!(
        metadata.expect("a patch"),
        json!({"metadata": {"annotations": {"mpsgate.io/handlers":
            "{\"version\":1,\"engine\":\"\",\"by\":\"nobody\",\"led\":[],\"round\":[\"nvidia\"]}"}}})
    );
    assert_eq!(
        status.expect("a patch"),
        json!({"status": {"conditions": [{
            "type": "GPUMemorySharingBypass", "status": "True", "reason": "HandlersBypass", "message": "nvidia",
            "lastHeartbeatTime": NOW, "lastTransitionTime": NOW,
        }]}})
    );
    // Cards that nobody knows of now keep it; handlers that nobody knows of, too.
    let unknown = NodeReport { cards: None, ..with.clone() };
    assert_eq!(wanted.patches(&unknown.wanted(&wanted), NOW), (None, None));
    let unread = NodeReport { handlers: None, ..with.clone() };
    assert_eq!(wanted.patches(&unread.wanted(&wanted), NOW), (None, None));
    let none = NodeReport { cards: Some(Vec::new()), bypass: None, ..with };
    let (metadata, status) = wanted.patches(&none.wanted(&wanted), NOW);
    let annotations = &metadata.expect("a patch")["metadata"]["annotations"];
    assert_eq!(annotations, &json!({"mpsgate.io/cards": null, "mpsgate.io/handlers": null}));
    assert_eq!(
        status.expect("a patch")["status"]["conditions"],
        json!([{"type": "GPUMemorySharingBypass", "$patch": "delete"}])
    );
}

#[test]
fn a_condition_that_nobody_knows_is_unknown_and_read_back_so() {
    let mut unknown = report();
    unknown.bypass = Some(condition("HandlersUnknown", "why", None));
    let (_, status) = Ours::default().patches(&unknown.wanted(&Ours::default()), NOW);
    let conditions = &status.expect("a patch")["status"]["conditions"];
    assert_eq!(conditions[1]["status"], "Unknown");
    let node = seen(json!({"metadata": {}, "status": {"conditions": conditions}}));
    assert_eq!(node.ours.conditions[1], unknown.bypass);
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

#[test]
fn the_charts_policy_lets_mpsgated_write_what_it_writes_and_no_more() {
    let policy =
        include_str!("../../../../packaging/kubernetes/chart/templates/admission-policy.yaml");
    let quoted = |names: &[&str]| names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>();
    for names in [&LABELS[..], &ANNOTATIONS, &[GPU_COUNT]] {
        let list = format!("\"{}\"", quoted(names).join(", "));
        assert!(policy.contains(&list), "{list}");
    }
    for name in quoted(&CONDITIONS) {
        assert!(policy.contains(&name), "{name}");
    }
}

#[test]
fn the_chart_chooses_nodes_that_have_cards_by_their_label() {
    let values = include_str!("../../../../packaging/kubernetes/chart/values.yaml");
    let term = format!("- matchExpressions: [{{key: {SHARED}, operator: Exists}}]\n");
    assert_eq!(values.matches(&term).count(), 2, "mpsgated and the holder");
}
