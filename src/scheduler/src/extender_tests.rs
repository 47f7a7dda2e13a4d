use mpsgate_allocation::Mib;
use mpsgate_policy::cluster::{Card, Node, Placement};
use mpsgate_policy::schedule::Word;
use serde_json::{Value, json};

use super::*;

fn ledger() -> Ledger {
    let mut ledger = Ledger::new(Placement::Binpack);
    for (name, schedule, gib) in
        [("n1", Word::Mps, 15), ("n2", Word::Mps, 4), ("n3", Word::Share, 15)]
    {
        let card = |index: u32| Card {
            index,
            uuid: format!("GPU-{name}-{index}"),
            memory: Mib(gib * 1024),
            local: Mib(0),
            healthy: true,
            uid: None,
            one_uid: true,
            max_clients: None,
            held: std::collections::BTreeMap::new(),
        };
        let cards = vec![card(0), card(1)];
        ledger.set_node(Node {
            name: name.to_owned(),
            schedule,
            placement: None,
            max_pods: None,
            cards,
        });
    }
    ledger
}

/// As kube-scheduler writes a pod: Go's empty values are there.
fn pod(gib: u64, labels: Value) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "creationTimestamp": null, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"aliyun.com/gpu-mem": gib.to_string()}}}]},
        "status": {},
    })
}

fn filtered(args: &Value) -> Value {
    json!(filter(&ledger(), args.to_string().as_bytes()))
}

#[test]
fn names_and_whole_nodes_are_filtered_alike_and_whole_nodes_come_back_as_they_came() {
    let names = ["n1", "n2", "n3", "n4"];
    let by_name = filtered(&json!({"Pod": pod(7, json!({})), "Nodes": null, "NodeNames": names}));
    assert_eq!(by_name["NodeNames"], json!(["n1", "n3"]));
    assert_eq!(by_name["Nodes"], Value::Null);
    assert_eq!(by_name["Error"], "");
    let whole: Vec<_> = names
        .iter()
        .map(|name| json!({"metadata": {"name": name}, "status": {"x": 1.50}}))
        .collect();
    // As schedulers before 1.16 write it.
    for (pod_key, nodes_key) in [("Pod", "Nodes"), ("pod", "nodes")] {
        let by_node = filtered(
            &json!({pod_key: pod(7, json!({})), nodes_key: {"metadata": {}, "items": whole}}),
        );
        assert_eq!(by_node["Nodes"]["items"], json!([whole[0], whole[2]]));
        assert_eq!(by_node["NodeNames"], Value::Null);
        assert_eq!(by_node["FailedAndUnresolvableNodes"], by_name["FailedAndUnresolvableNodes"]);
    }
    let failed = by_name["FailedAndUnresolvableNodes"].as_object().expect("a map");
    assert_eq!(failed.keys().collect::<Vec<_>>(), ["n2", "n4"]);
}

#[test]
fn several_cards_are_for_share_nodes_and_what_cannot_be_asked_is_refused_everywhere() {
    let two = filtered(
        &json!({"Pod": pod(8, json!({"aliyun.com/gpu-count": "2"})), "NodeNames": ["n1", "n3"]}),
    );
    assert_eq!(two["NodeNames"], json!(["n3"]), "{two}");
    for (count, said) in
        [("3", "asks for 3 cards"), ("0", "no number of cards"), ("x", "set it to 1 or more")]
    {
        let none = filtered(
            &json!({"Pod": pod(8, json!({"aliyun.com/gpu-count": count})), "NodeNames": ["n1", "n3"]}),
        );
        assert_eq!(none["NodeNames"], json!([]));
        assert!(
            none["FailedAndUnresolvableNodes"]["n3"].as_str().is_some_and(|why| why.contains(said)),
            "{none}"
        );
    }
}

#[test]
fn a_pod_that_asks_for_nothing_of_ours_passes_untouched() {
    let args = json!({"Pod": {"metadata": {"name": "a"}, "spec": {"containers": null}}, "NodeNames": ["n1", "elsewhere"]});
    assert_eq!(filtered(&args)["NodeNames"], json!(["n1", "elsewhere"]));
    let scores = prioritize(&ledger(), args.to_string().as_bytes()).expect("read");
    assert_eq!(
        json!(scores),
        json!([{"Host": "n1", "Score": 0}, {"Host": "elsewhere", "Score": 0}])
    );
}

#[test]
fn what_cannot_be_read_is_an_error_in_the_answer() {
    for body in ["", "{}", "[]", r#"{"Pod":null}"#, r#"{"Pod":{},"Nodes":{"items":[{}]}}"#] {
        assert!(filter(&ledger(), body.as_bytes()).error.contains("cannot be read"), "{body}");
    }
}

#[test]
fn preemption_keeps_the_nodes_where_the_pod_fits_once_the_victims_are_gone() {
    let victims = json!({"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}, "n2": {"Pods": [{"UID": "w"}], "NumPDBViolations": 0}});
    let meta = json!({"Pod": pod(7, json!({})), "NodeNameToVictims": null, "NodeNameToMetaVictims": victims});
    let expected =
        json!({"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}}});
    assert_eq!(json!(preempt(&ledger(), meta.to_string().as_bytes()).expect("read")), expected);
    let whole = json!({"n1": {"Pods": [{"metadata": {"uid": "v"}}], "NumPDBViolations": 1}});
    let whole = json!({"Pod": pod(7, json!({})), "NodeNameToVictims": whole, "NodeNameToMetaVictims": null});
    assert_eq!(json!(preempt(&ledger(), whole.to_string().as_bytes()).expect("read")), expected);
}
