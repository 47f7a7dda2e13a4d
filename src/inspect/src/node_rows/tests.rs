#![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
use mpsgate_kubernetes::Lifecycle;
use serde_json::json;

use super::*;
use crate::{details, document, summary};

fn container(name: &str, kind: Kind, gpu_mem: u64, units: &[(u64, u64)]) -> Container {
    let units = units.iter().copied().collect();
    let limits = Ok(Limits { gpu_mem, units, ..Limits::default() });
    Container {
        name: name.to_owned(),
        kind,
        limits,
        lifecycle: Lifecycle::Running,
        core_percent: Ok(0),
        uid: None,
    }
}

fn pod(node: &str, uid: &str, gpu_mem: u64, annotations: serde_json::Value) -> Pod {
    Pod {
        uid: uid.to_owned(),
        node: Some(node.to_owned()),
        namespace: "default".to_owned(),
        name: format!("pod-{uid}"),
        class: None,
        static_hash: None,
        acknowledged: false,
        finished: false,
        not_admitted: false,
        deleting: false,
        gpu_count: None,
        annotations: serde_json::from_value(annotations).unwrap(),
        claims: Vec::new(),
        containers: vec![container("c", Kind::Main, gpu_mem, &[])],
    }
}

/// mpsgate-scheduler's annotation.
fn placed(node: &str, containers: serde_json::Value) -> serde_json::Value {
    let placement = json!({"version": 1, "node": node, "time": "2026-01-31T12:00:00Z", "containers": containers, "core": {}});
    json!({"mpsgate.io/placement": placement.to_string()})
}

fn node(name: &str, cards: &serde_json::Value) -> SeenNode {
    let cards = json!({"version": 1, "cards": cards}).to_string();
    SeenNode {
        name: name.to_owned(),
        cards: Some(cards),
        gpu_memory: 54,
        gpu_count: 2,
        ..SeenNode::default()
    }
}

/// Cards of 15 and 39 GiB.
fn unequal() -> serde_json::Value {
    json!([
        {"uuid": "GPU-a", "index": 0, "memory_mib": 15360, "local_mib": 0, "healthy": true},
        {"uuid": "GPU-b", "index": 1, "memory_mib": 39936, "local_mib": 0, "healthy": true},
    ])
}

fn view(nodes: Vec<SeenNode>, pods: Vec<Pod>) -> View {
    let (view, warnings) = View::of(&Seen { nodes, pods, ..Seen::default() }, false);
    assert_eq!(warnings, Vec::<String>::new());
    view
}

/// The line of a node, split into cells.
fn line(view: &View, node: &str) -> Vec<String> {
    let text = summary::render(view, false, false);
    let line = text.lines().find(|line| line.starts_with(node)).unwrap_or_else(|| panic!("{text}"));
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn cards_of_different_size_are_shown_as_they_are_where_our_annotation_is() {
    let one = || pod("n", "u", 7, placed("n", json!({"c": {"1": 7168}})));
    let ours = view(vec![node("n", &unequal())], vec![one()]);
    assert_eq!(line(&ours, "n"), ["n", "unknown", "0/15", "7/39", "7/54"]);
    assert_eq!(ours.unit, "GiB");
    // Without the annotation the published tool's arithmetic applies: 54 over 2 cards.
    let bare = SeenNode { cards: None, ..node("n", &unequal()) };
    assert_eq!(line(&view(vec![bare], vec![one()]), "n"), ["n", "unknown", "0/27", "7/27", "7/54"]);
}

#[test]
fn what_is_not_whole_gib_turns_the_table_to_mib() {
    let mut finer = pod("n", "u", 0, placed("n", json!({"c": {"0": 512}})));
    finer.containers = vec![container("c", Kind::Main, 0, &[(256, 2)])];
    let ours = view(vec![node("n", &unequal())], vec![finer]);
    assert_eq!(ours.unit, "MiB");
    assert_eq!(line(&ours, "n"), ["n", "unknown", "512/15360", "0/39936", "512/55296"]);
}

#[test]
fn a_node_without_our_annotation_is_in_the_units_of_the_table_too() {
    let other =
        SeenNode { name: "m".to_owned(), gpu_memory: 30, gpu_count: 2, ..SeenNode::default() };
    let index = json!({"ALIYUN_COM_GPU_MEM_IDX": "1"});
    let ours = view(vec![node("n", &unequal()), other.clone()], vec![pod("m", "u", 3, index)]);
    assert_eq!(line(&ours, "m"), ["m", "unknown", "0/15", "3/15", "3/30"]);
    let finer = pod("n", "f", 0, placed("n", json!({"c": {"0": 512}})));
    let ours = view(vec![node("n", &unequal()), other], vec![finer]);
    assert_eq!(line(&ours, "m"), ["m", "unknown", "0/15360", "0/15360", "0/30720"]);
}

#[test]
fn who_says_where_a_pod_is_is_trusted_in_order() {
    let v1 = json!({"ALIYUN_COM_GPU_MEM_IDX": "0"});
    let v2 = json!({"ALIYUN_COM_GPU_MEM_IDX": "0", "scheduler.framework.gpushare.allocation": "{\"0\":{\"1\":2}}"});
    let with = |mut base: serde_json::Value, more: serde_json::Value| {
        let more = more.as_object().unwrap().clone();
        base.as_object_mut().unwrap().extend(more);
        base
    };
    let held = |mib: u64| {
        let mut cards = unequal();
        cards[1]["held"] = json!({"u": mib});
        cards
    };
    for (annotations, cards, source, amounts) in [
        (
            with(v2.clone(), placed("n", json!({"c": {"0": 1024}}))),
            unequal(),
            Source::Placement,
            vec![(0, 1024)],
        ),
        (
            with(v2.clone(), placed("m", json!({"c": {"0": 1024}}))),
            unequal(),
            Source::Allocation,
            vec![(1, 2048)],
        ),
        (v2, unequal(), Source::Allocation, vec![(1, 2048)]),
        (v1, unequal(), Source::Index, vec![(0, 3072)]),
        (json!({}), held(3072), Source::Held, vec![(1, 3072)]),
        (json!({}), unequal(), Source::Unknown, vec![(PENDING, 3072)]),
        // Memory that its containers hold counts, whatever was planned.
        (placed("n", json!({"c": {"1": 1024}})), held(2048), Source::Placement, vec![(1, 2048)]),
        (placed("n", json!({"c": {"1": 1024}})), held(512), Source::Placement, vec![(1, 1024)]),
    ] {
        let case = format!("{annotations} {cards}");
        let shown = view(vec![node("n", &cards)], vec![pod("n", "u", 3, annotations)]);
        let found = &shown.nodes[0].pods[0];
        assert_eq!(found.source, source, "{case}");
        assert_eq!(found.amounts, BTreeMap::from_iter(amounts), "{case}");
    }
}

#[test]
fn memory_that_outlives_its_pod_still_counts() {
    let mut cards = unequal();
    cards[0]["held"] = json!({"u": 2048, "gone": 1024});
    let shown = view(vec![node("n", &cards)], vec![pod("n", "u", 2, json!({}))]);
    assert_eq!(line(&shown, "n"), ["n", "unknown", "3/15", "0/39", "3/54"]);
    let text = details::render(&shown, false, false);
    assert!(text.lines().any(|line| line.split_whitespace().eq(["gone", "-", "1", "0"])), "{text}");
}

#[test]
fn init_containers_count_as_kubernetes_counts_them() {
    let layout = json!({"i": {"0": 6144}, "s": {"1": 1024}, "c": {"0": 2048}});
    let mut one = pod("n", "u", 2, placed("n", layout));
    one.containers = vec![
        container("s", Kind::Sidecar, 1, &[]),
        container("i", Kind::Init, 6, &[]),
        container("c", Kind::Main, 2, &[]),
    ];
    let shown = view(vec![node("n", &unequal())], vec![one.clone()]);
    assert_eq!(shown.nodes[0].pods[0].amounts, BTreeMap::from([(0, 6144), (1, 1024)]));
    // Without a placement: 1 + 6 while it starts, 1 + 2 afterwards.
    one.annotations.clear();
    let shown = view(vec![node("n", &unequal())], vec![one]);
    assert_eq!(shown.nodes[0].pods[0].amounts, BTreeMap::from([(PENDING, 7168)]));
}

#[test]
fn local_containers_are_taken_off_what_pods_can_have() {
    let mut cards = unequal();
    cards[0]["local_mib"] = json!(7500);
    cards[1]["healthy"] = json!(false);
    let shown = view(vec![node("n", &cards)], vec![]);
    assert_eq!(line(&shown, "n"), ["n", "unknown", "0/7", "0/39", "0/46"]);
    let text = summary::render(&shown, true, false);
    let wide = text.lines().nth(1).unwrap();
    assert!(
        wide.split_whitespace().eq(["n", "unknown", "0/7", "0/39", "0/46", "-", "8", "1", "yes"]),
        "{text}"
    );
    let document: serde_json::Value =
        serde_json::from_str(&document::render(&shown).unwrap()).unwrap();
    assert_eq!(document["nodes"][0]["cards"][0]["local_mib"], 7500);
    assert_eq!(document["nodes"][0]["cards"][0]["total_mib"], 7860);
    assert_eq!(document["nodes"][0]["cards"][1]["healthy"], false);
}

#[test]
fn an_object_that_cannot_be_read_is_reported() {
    let left = |counts| LeftOut {
        kind: "Pod",
        name: "default/web".to_owned(),
        why: "invalid type".to_owned(),
        counts,
    };
    let seen = Seen { left_out: vec![left(true), left(false)], ..Seen::default() };
    let (_, warnings) = View::of(&seen, false);
    assert_eq!(
        warnings,
        [
            "Pod default/web: invalid type; what can be read of it counts",
            "Pod default/web: invalid type; it is left out",
        ]
    );
}

#[test]
fn an_annotation_that_cannot_be_read_is_reported_and_ignored() {
    let broken = SeenNode { cards: Some("{".to_owned()), ..node("n", &unequal()) };
    let (view, warnings) = View::of(&Seen { nodes: vec![broken], ..Seen::default() }, false);
    assert_eq!(line(&view, "n"), ["n", "unknown", "0/27", "0/27", "0/54"]);
    assert!(
        warnings.len() == 1 && warnings[0].contains("node n: annotation mpsgate.io/cards"),
        "{warnings:?}"
    );
}

#[test]
fn nodes_are_in_the_order_of_their_names_and_those_without_gpu_memory_are_left_out() {
    let plain = |name: &str, gpu_memory| SeenNode {
        name: name.to_owned(),
        gpu_memory,
        gpu_count: 1,
        ..SeenNode::default()
    };
    let shown = view(vec![plain("b", 15), plain("c", 0), plain("a", 15)], vec![]);
    let names: Vec<&str> = shown.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn the_document_has_mib_whatever_the_table_has() {
    let index = json!({"ALIYUN_COM_GPU_MEM_IDX": "0"});
    let plain =
        SeenNode { name: "n".to_owned(), gpu_memory: 30, gpu_count: 2, ..SeenNode::default() };
    let shown = view(vec![plain], vec![pod("n", "u", 7, index), pod("n", "w", 1, json!({}))]);
    let document: serde_json::Value =
        serde_json::from_str(&document::render(&shown).unwrap()).unwrap();
    let share = |uid: &str, used_mib: i64, source: &str| json!({"namespace": "default", "name": format!("pod-{uid}"), "uid": uid, "used_mib": used_mib, "source": source});
    assert_eq!(
        document,
        json!({"schema": 1, "used_mib": 8192, "total_mib": 30720, "nodes": [{
            "name": "n", "address": null, "schedule": null, "exact": false, "used_mib": 8192, "total_mib": 30720,
            "cards": [
                {"index": 0, "used_mib": 7168, "total_mib": 15360, "pods": [share("u", 7168, "index")]},
                {"index": 1, "used_mib": 0, "total_mib": 15360, "pods": []},
            ],
            "pending": [share("w", 1024, "unknown")],
        }]})
    );
}

#[test]
fn the_seed_samples_rule_has_the_published_length() {
    let seed = SeenNode {
        name: "cn-zhangjiakou.192.168.66.139".to_owned(),
        address: Some("192.168.66.139".to_owned()),
        gpu_memory: 15,
        gpu_count: 1,
        ..SeenNode::default()
    };
    let text = summary::render(&view(vec![seed], vec![]), false, false);
    assert!(text.lines().any(|line| line.len() == 75 && line.bytes().all(|b| b == b'-')), "{text}");
}
