#![allow(clippy::panic, clippy::indexing_slicing, reason = "test code fails by panicking")]
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
    GpuNode { labels: map(labels), is_switched: true, handlers: Ok(handlers) }
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
        ..Known::default()
    }
}

fn first(known: &mut Known) -> &mut GpuNode {
    known.nodes.entry("n1".to_owned()).or_insert_with(|| node(&[], &[]))
}

/// How a pod's way stands where an extender places it, or nobody of ours.
fn by(placer: Placer, known: &Known, class: Option<&str>, place: &Where) -> &'static str {
    match known.way(class, place, placer) {
        Way::Fine => "fine",
        Way::Default(_) => "default",
        Way::Bypass(_) => "round",
        Way::Unknown(_) => "unknown",
    }
}

/// Where nobody steers.
fn way(known: &Known, class: Option<&str>, place: &Where) -> &'static str {
    by(Placer::Other, known, class, place)
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
        assert_eq!(way(&known(), class, &place), expected, "{class:?} {place:?}");
    }
}

#[test]
fn a_node_steers_pods_away_from_itself_and_vetoes_nobody_elsewhere() {
    let round = |nodes: &[&str]| {
        let mut known = known();
        for (name, node) in &mut known.nodes {
            let handlers = node.handlers.as_mut().unwrap_or_else(|why| panic!("{why}"));
            handlers.led.extend(["nvidia".to_owned()]);
            handlers.round.clear();
            if nodes.contains(&name.as_str()) {
                handlers.led.remove("nvidia");
                handlers.round.insert("nvidia".to_owned());
            }
        }
        known
    };
    let any = Where::default();
    let pool = |pool: &str| Where { selector: map(&[("pool", pool)]), ..Where::default() };
    let on = |node: &str| Where { node: Some(node.to_owned()), ..Where::default() };
    for (nodes, place, other, extender) in [
        (&[] as &[&str], any.clone(), "fine", "fine"),
        // One word refuses where nobody steers, and steers where an extender places.
        (&["n1"], any.clone(), "round", "fine"),
        (&["n1"], pool("a"), "round", "round"),
        (&["n1"], pool("b"), "fine", "fine"),
        (&["n1"], on("n1"), "round", "round"),
        (&["n1"], on("n2"), "fine", "fine"),
        (&["n1", "n2"], any.clone(), "round", "round"),
        (&["n1", "n2"], pool("c"), "fine", "fine"),
    ] {
        let known = round(nodes);
        let found = [Placer::Other, Placer::Extender]
            .map(|placer| by(placer, &known, Some("nvidia"), &place));
        assert_eq!(found, [other, extender], "{nodes:?} {place:?}");
        // The extender's own look, at every node.
        let closed = known.closed(Some("nvidia")).unwrap_or_else(|why| panic!("{why}"));
        for node in ["n1", "n2", "cpu"] {
            assert_eq!(closed.reason(node).is_some(), nodes.contains(&node), "{nodes:?} {node}");
        }
        for led in [Some("plain"), None] {
            let closed = known.closed(led).unwrap_or_else(|why| panic!("{why}"));
            assert_eq!(["n1", "n2"].map(|node| closed.reason(node)), [None, None], "{led:?}");
        }
    }
}

#[test]
fn a_node_counts_by_a_label_that_switches_it_and_steers_without_one_too() {
    let mut known = known();
    first(&mut known).is_switched = false;
    known.nodes.remove("n2");
    let any = Where::default();
    let on = Where { node: Some("n1".to_owned()), ..Where::default() };
    for (place, expected) in [(&any, "fine"), (&on, "round")] {
        assert_eq!(way(&known, Some("nvidia"), place), expected, "{place:?}");
        assert_eq!(by(Placer::Extender, &known, Some("nvidia"), place), expected, "{place:?}");
    }
    assert!(known.closed(Some("nvidia")).is_ok_and(|closed| closed.reason("n1").is_some()));
}

#[test]
fn a_node_without_a_label_is_a_way_where_an_extender_places() {
    let mut known = known();
    let lead = |known: &mut Known, leads: bool| {
        let mut other = node(&[], &[]);
        other.is_switched = false;
        if let Ok(said) = &mut other.handlers {
            said.led = if leads { ["nvidia".to_owned()].into() } else { BTreeSet::new() };
        }
        known.nodes.insert("n2".to_owned(), other);
    };
    let any = Where::default();
    for (leads, extender) in [(true, "fine"), (false, "round")] {
        lead(&mut known, leads);
        assert_eq!(by(Placer::Extender, &known, Some("nvidia"), &any), extender, "{leads}");
        assert_eq!(way(&known, Some("nvidia"), &any), "round", "{leads}");
    }
    // Not where it may not go to.
    lead(&mut known, true);
    let there = Where { selector: map(&[("pool", "a")]), ..any };
    assert_eq!(by(Placer::Extender, &known, Some("nvidia"), &there), "round");
}

#[test]
fn what_the_class_adds_to_the_selector_counts() {
    let mut known = known();
    let class = RuntimeClass {
        name: "nvidia".to_owned(),
        handler: "nvidia".to_owned(),
        selector: map(&[("pool", "a")]),
    };
    known.classes = Some([("nvidia".to_owned(), class)].into());
    let any = Where::default();
    for placer in [Placer::Other, Placer::Extender] {
        assert_eq!(by(placer, &known, Some("nvidia"), &any), "round", "{placer:?}");
    }
    let elsewhere = Where { selector: map(&[("pool", "b")]), ..any };
    assert_eq!(way(&known, Some("nvidia"), &elsewhere), "fine");
}

#[test]
fn an_extender_keeps_pods_from_nodes_by_what_these_say_and_waits_for_a_class_it_has_not_heard_of() {
    let mut known = known();
    let said = |known: &Known, class: Option<&str>| match known.closed(class) {
        Ok(closed) => closed.reason("n1").unwrap_or("open").to_owned(),
        Err(why) => why,
    };
    for (class, expected) in [
        (
            Some("nvidia"),
            "its handler nvidia bypasses mpsgate, and the pod's RuntimeClass names it",
        ),
        (Some("plain"), "open"),
        // An API server takes no such class.
        (Some("empty"), "open"),
        (Some("missing"), "its pod's RuntimeClass is not known yet; try again"),
        (None, "open"),
    ] {
        assert_eq!(said(&known, class), expected, "{class:?}");
    }
    let handlers = HandlerReport {
        default: Some("runc".to_owned()),
        round: texts(&["runc"]).into_iter().collect(),
        ..HandlerReport::default()
    };
    first(&mut known).handlers = Ok(handlers);
    assert_eq!(
        said(&known, None),
        "its default handler bypasses mpsgate, and the pod has no RuntimeClass"
    );
    known.classes = None;
    assert_eq!(
        said(&known, Some("nvidia")),
        "the cluster's RuntimeClasses are not known yet; try again"
    );
    // Where every handler leads, or nobody says, no class is waited for.
    first(&mut known).handlers = Err("has no annotation".to_owned());
    assert_eq!(said(&known, Some("nvidia")), "open");
}

#[test]
fn what_nobody_knows_is_no_refusal() {
    let mut known = known();
    let any = Where::default();
    known.nodes.remove("n2");
    first(&mut known).handlers = Err("has no annotation".to_owned());
    assert_eq!(way(&known, Some("nvidia"), &any), "unknown");
    assert_eq!(way(&known, None, &any), "fine");
    known.classes = None;
    assert_eq!(way(&known, Some("nvidia"), &any), "unknown");
    known.nodes.clear();
    assert_eq!(way(&known, Some("nvidia"), &any), "fine");
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
    let any = Where::default();
    assert_eq!(way(&known, None, &any), "default");
    assert_eq!(by(Placer::Extender, &known, None, &any), "fine", "n2 leads");
    known.nodes.remove("n2");
    assert_eq!(by(Placer::Extender, &known, None, &any), "default");
}

#[test]
fn the_refusal_says_what_was_found_where_and_what_to_do() {
    let mut known = known();
    let Way::Bypass(refusal) = known.way(Some("nvidia"), &Where::default(), Placer::Other) else {
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
    let Way::Bypass(refusal) = known.way(Some("nvidia"), &Where::default(), Placer::Other) else {
        panic!("it bypasses mpsgate")
    };
    assert!(refusal.sentence.contains(" on nodes n1, n3, n4 and 2 more: "), "{refusal}");
}

#[test]
fn more_than_any_pod_has_is_not_compared_and_leaves_every_node() {
    let many = vec![expression("pool", "In", &["x"]); MOST + 1];
    assert_eq!(way(&known(), Some("nvidia"), &terms(&[&many])), "round");
    assert_eq!(way(&known(), Some("nvidia"), &terms(&[&many[..1]])), "fine");
}
