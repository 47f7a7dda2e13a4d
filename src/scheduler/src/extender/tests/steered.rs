//! Pods are kept from nodes whose handler bypasses mpsgate.

use mpsgate_cluster::bypass::Known;
use mpsgate_model::{GpuNode, HandlerReport, RuntimeClass};

use super::*;

/// On `n1` the handler of the class `nvidia` bypasses mpsgate; `n3` leads it.
fn known() -> Known {
    let node = |round: &[&str]| {
        let handlers = HandlerReport {
            default: Some("mpsgate".to_owned()),
            round: round.iter().map(ToString::to_string).collect(),
            ..HandlerReport::default()
        };
        GpuNode { labels: BTreeMap::new(), is_switched: false, handlers: Ok(handlers) }
    };
    let class = RuntimeClass { handler: "nvidia".to_owned(), ..RuntimeClass::default() };
    Known {
        classes: Some([("nvidia".to_owned(), class)].into()),
        nodes: [("n1".to_owned(), node(&["nvidia"])), ("n3".to_owned(), node(&[]))].into(),
        ..Known::default()
    }
}

fn closed(pod: &Pod) -> Result<Closed, String> {
    known().closed(pod.class.as_deref())
}

fn of_class(gib: u64, class: &str) -> Value {
    let mut pod = pod(gib, json!({}));
    pod["spec"]["runtimeClassName"] = json!(class);
    pod
}

#[test]
fn a_pod_is_steered_past_nodes_whose_handler_bypasses_and_nobody_else_is() {
    let found = |pod: Value| {
        let args = json!({"Pod": pod, "NodeNames": ["n1", "n3"]}).to_string();
        json!(filter(&ledger(), closed, args.as_bytes(), later()).expect("read"))
    };
    for (pod, expected) in [
        (of_class(7, "nvidia"), json!(["n3"])),
        (pod(7, json!({})), json!(["n1", "n3"])),
        // Nothing of ours is asked for: it is not ours to place.
        (of_class(0, "nvidia"), json!(["n1", "n3"])),
    ] {
        assert_eq!(found(pod.clone())["NodeNames"], expected, "{pod}");
    }
    let found = found(of_class(7, "nvidia"));
    let why = "its handler nvidia bypasses mpsgate, and the pod's RuntimeClass names it";
    // No pod's going helps.
    assert_eq!(found["FailedAndUnresolvableNodes"], json!({"n1": why}));
    let whole = ["n1", "n3"].map(|name| json!({"metadata": {"name": name}}));
    let args = json!({"Pod": of_class(7, "nvidia"), "Nodes": {"items": whole}}).to_string();
    let by_node = filter(&ledger(), closed, args.as_bytes(), later()).expect("read");
    assert_eq!(json!(by_node)["Nodes"]["items"], json!([whole[1]]));
}

#[test]
fn nobody_is_driven_from_a_node_for_a_pod_that_is_kept_from_it() {
    let victims = json!({"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 0}, "n3": {"Pods": [{"UID": "w"}], "NumPDBViolations": 0}});
    for (class, expected) in [("nvidia", vec!["n3"]), ("", vec!["n1", "n3"])] {
        let args = json!({"Pod": of_class(7, class), "NodeNameToMetaVictims": victims}).to_string();
        let found = preempt(&ledger(), closed, args.as_bytes(), later()).expect("read");
        let nodes: Vec<_> = found.node_name_to_meta_victims.keys().collect();
        assert_eq!(nodes, expected, "{class:?}");
    }
}

#[test]
fn a_pod_of_a_class_that_was_not_heard_of_is_tried_again() {
    let args = json!({"Pod": of_class(7, "new"), "NodeNames": ["n1", "n3"]}).to_string();
    let error = filter(&ledger(), closed, args.as_bytes(), later())
        .map(|_| ())
        .expect_err("nobody knows its handler");
    assert_eq!(error, "its pod's RuntimeClass is not known yet; try again");
    assert!(preempt(&ledger(), closed, args.as_bytes(), later()).is_err());
}
