#![allow(clippy::panic, clippy::indexing_slicing, reason = "test code fails by panicking")]
use mpsgate_model::HandlerReport;

use super::*;

fn texts(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn node(labels: &[(&str, &str)], round: &[&str]) -> GpuNode {
    let handlers = HandlerReport {
        default: Some("mpsgate".to_owned()),
        led: texts(&["mpsgate", "runc"]).into_iter().collect(),
        round: texts(round).into_iter().collect(),
        ..HandlerReport::default()
    };
    GpuNode { labels: map(labels), taints: Vec::new(), handlers: Ok(handlers) }
}

/// Two nodes; on the first NVIDIA's handler bypasses mpsgate.
fn known() -> Known {
    let class =
        |handler: &str| RuntimeClass { handler: handler.to_owned(), ..RuntimeClass::default() };
    let classes = [("nvidia", class("nvidia")), ("plain", class("runc")), ("empty", class(""))];
    Known {
        classes: Some(classes.map(|(name, class)| (name.to_owned(), class)).into()),
        nodes: [
            ("n1".to_owned(), node(&[("pool", "a")], &["nvidia"])),
            ("n2".to_owned(), node(&[("pool", "b")], &[])),
        ]
        .into(),
    }
}

fn first(known: &mut Known) -> &mut GpuNode {
    known.nodes.entry("n1".to_owned()).or_insert_with(|| node(&[], &[]))
}

fn name(way: &Way) -> &'static str {
    match way {
        Way::Fine => "fine",
        Way::Default(_) => "default",
        Way::Bypass(_) => "round",
        Way::Unknown(_) => "unknown",
    }
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Expression {
    Expression { key: key.to_owned(), operator: operator.to_owned(), values: texts(values) }
}

fn terms(terms: &[&[Expression]]) -> Where {
    let terms = terms.iter().map(|labels| Term { labels: labels.to_vec(), fields: Vec::new() });
    Where { terms: terms.collect(), ..Where::default() }
}

#[test]
fn a_class_is_evaluated_by_the_nodes_that_its_pod_may_go_to() {
    let selector = |pool: &str| Where { selector: map(&[("pool", pool)]), ..Where::default() };
    let on = |node: &str| Where { node: Some(node.to_owned()), ..Where::default() };
    let by_name = |names: &[&str]| {
        let fields = vec![expression("metadata.name", "In", names)];
        Where { terms: vec![Term { labels: Vec::new(), fields }], ..Where::default() }
    };
    let pool = |operator: &str, values: &[&str]| expression("pool", operator, values);
    let any = Where::default();
    for (class, place, expected) in [
        (Some("nvidia"), any.clone(), "round"),
        (Some("nvidia"), selector("a"), "round"),
        // Its second node knows no such handler: containers do not start there.
        (Some("nvidia"), selector("b"), "unknown"),
        (Some("nvidia"), selector("c"), "fine"),
        (Some("nvidia"), on("n1"), "round"),
        (Some("nvidia"), on("cpu"), "fine"),
        (Some("nvidia"), by_name(&["n1"]), "round"),
        (Some("nvidia"), by_name(&["cpu"]), "fine"),
        (Some("nvidia"), terms(&[&[pool("In", &["x", "a"])]]), "round"),
        (Some("nvidia"), terms(&[&[pool("NotIn", &["a", "b"])]]), "fine"),
        (Some("nvidia"), terms(&[&[pool("DoesNotExist", &[])], &[pool("Exists", &[])]]), "round"),
        (Some("nvidia"), terms(&[&[pool("Exists", &[]), pool("In", &["c"])]]), "fine"),
        // An operator of tomorrow's leaves the node.
        (Some("nvidia"), terms(&[&[pool("Like", &["c"])]]), "round"),
        (Some("plain"), any.clone(), "fine"),
        (Some("empty"), any.clone(), "unknown"),
        (Some("missing"), any.clone(), "unknown"),
        (Some("missing"), on("cpu"), "fine"),
        (None, any, "fine"),
    ] {
        assert_eq!(name(&known().way(class, &place)), expected, "{class:?} {place:?}");
    }
}

#[test]
fn what_the_class_adds_counts_and_taints_that_nobody_tolerates_keep_a_pod_off() {
    let mut known = known();
    let any = Where::default();
    let taint = |effect: &str| Taint {
        key: "gpu".to_owned(),
        value: "yes".to_owned(),
        effect: effect.to_owned(),
    };
    let of = |key: &str, operator: &str, value: &str, effect: &str| Toleration {
        key: key.to_owned(),
        operator: operator.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
    };
    first(&mut known).taints.push(taint("PreferNoSchedule"));
    assert_eq!(name(&known.way(Some("nvidia"), &any)), "round");
    first(&mut known).taints.push(taint("NoSchedule"));
    assert_eq!(name(&known.way(Some("nvidia"), &any)), "unknown");
    for (toleration, expected) in [
        (of("", "Exists", "", ""), "round"),
        (of("gpu", "Exists", "", "NoSchedule"), "round"),
        (of("gpu", "", "yes", ""), "round"),
        (of("gpu", "Equal", "no", ""), "unknown"),
        (of("gpu", "Exists", "", "NoExecute"), "unknown"),
        (of("other", "Exists", "", ""), "unknown"),
    ] {
        let place = Where { tolerations: vec![toleration.clone()], ..Where::default() };
        assert_eq!(name(&known.way(Some("nvidia"), &place)), expected, "{toleration:?}");
    }
    // A pod that names its node meets no scheduler.
    let bound = Where { node: Some("n1".to_owned()), ..Where::default() };
    assert_eq!(name(&known.way(Some("nvidia"), &bound)), "round");
    let class = RuntimeClass {
        name: "nvidia".to_owned(),
        handler: "nvidia".to_owned(),
        selector: map(&[("pool", "a")]),
        tolerations: vec![of("gpu", "Exists", "", "")],
    };
    known.classes = Some([("nvidia".to_owned(), class)].into());
    assert_eq!(name(&known.way(Some("nvidia"), &any)), "round");
    assert_eq!(
        name(&known.way(Some("nvidia"), &Where { selector: map(&[("pool", "b")]), ..any })),
        "fine"
    );
}

#[test]
fn what_nobody_knows_is_no_refusal() {
    let mut known = known();
    let any = Where::default();
    known.nodes.remove("n2");
    first(&mut known).handlers = Err("has no annotation".to_owned());
    assert_eq!(name(&known.way(Some("nvidia"), &any)), "unknown");
    assert_eq!(name(&known.way(None, &any)), "fine");
    known.classes = None;
    assert_eq!(name(&known.way(Some("nvidia"), &any)), "unknown");
    known.nodes.clear();
    assert_eq!(name(&known.way(Some("nvidia"), &any)), "fine");
}

#[test]
fn without_a_class_a_default_that_bypasses_is_told_apart() {
    let mut known = known();
    let handlers = HandlerReport {
        default: Some("runc".to_owned()),
        round: ["runc".to_owned()].into(),
        ..HandlerReport::default()
    };
    first(&mut known).handlers = Ok(handlers);
    assert_eq!(name(&known.way(None, &Where::default())), "default");
}

#[test]
fn the_refusal_says_what_was_found_where_and_what_to_do() {
    let mut known = known();
    let Way::Bypass(refusal) = known.way(Some("nvidia"), &Where::default()) else {
        panic!("it bypasses mpsgate")
    };
    assert_eq!(
        refusal.to_string(),
        "its pod's RuntimeClass nvidia has the handler nvidia, which bypasses mpsgate on node n1: no limit holds, and every card \
         is open [E_HANDLER]"
    );
    assert_eq!(
        refusal.hint,
        "remove runtimeClassName: nvidia (the default handler leads through mpsgate), or lead nvidia through mpsgate as this says: \
         kubectl get node n1 -o jsonpath='{.status.conditions[?(@.type==\"GPUMemorySharingBypass\")].message}'"
    );
    for more in ["n3", "n4", "n5", "n6"] {
        known.nodes.insert(more.to_owned(), node(&[], &["nvidia"]));
    }
    let Way::Bypass(refusal) = known.way(Some("nvidia"), &Where::default()) else {
        panic!("it bypasses mpsgate")
    };
    assert!(refusal.sentence.contains(" on nodes n1, n3, n4 and 2 more: "), "{refusal}");
}

#[test]
fn more_than_any_pod_has_is_not_compared_and_leaves_every_node() {
    let many = vec![expression("pool", "In", &["x"]); MOST + 1];
    assert_eq!(name(&known().way(Some("nvidia"), &terms(&[&many]))), "round");
    assert_eq!(name(&known().way(Some("nvidia"), &terms(&[&many[..1]]))), "fine");
    let mut known = known();
    let taint = Taint { key: "gpu".to_owned(), ..Taint::default() };
    first(&mut known).taints.push(taint);
    let tolerations = vec![Toleration { key: "x".to_owned(), ..Toleration::default() }; MOST + 1];
    let place = Where { tolerations, ..Where::default() };
    assert_eq!(name(&known.way(Some("nvidia"), &place)), "round");
}
