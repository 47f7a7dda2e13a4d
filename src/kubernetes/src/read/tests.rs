use serde_json::{Value, json};

use super::*;
use crate::objects::Page;
use crate::wire::{WireLease, WireNode, WirePod, WireRuntimeClass};
use crate::{ClusterNode, Pod};

/// As a value in a place that nobody reads: nested so deeply that no tree of it is made.
fn deep(levels: usize) -> String {
    format!("{}1{}", r#"{"f:x":"#.repeat(levels), "}".repeat(levels))
}

/// A pod of a tenant: `metadata` and `spec` are more of its fields, as text.
fn pod(metadata: &str, spec: &str) -> String {
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1",
            "metadata":{{"name":"p","namespace":"n","uid":"u","resourceVersion":"7",
                "annotations":{{"mpsgate.io/placement":"x"}}{metadata}}},
            "spec":{{"nodeName":"n1","containers":[
                {{"name":"c","resources":{{"limits":{{"aliyun.com/gpu-mem":"7"}}}}}}]{spec}}},
            "status":{{"phase":"Running"}}}}"#
    )
}

fn reduced(json: &str) -> Pod {
    let found = read::<WirePod>(json);
    let pod = found.unwrap_or_else(|unread| panic!("{}: {json:.300}", unread.left));
    Pod::reduce(pod).expect("with a uid")
}

#[test]
fn what_nobody_reads_of_an_object_may_be_of_any_form() {
    let plain = reduced(&pod("", ""));
    let long = format!("[{}0]", "0,".repeat(300_000));
    let (shallow, deepest) = (deep(1000), deep(100_000));
    let odd: [&str; 10] = [
        &shallow,
        &deepest,
        &long,
        r#""9999-12-31T23:59:59-23:59""#,
        r#""10000-01-01T23:58:59Z""#,
        "1e400",
        "-1",
        "null",
        r#""\ud800""#,
        "[[]]",
    ];
    for odd in odd {
        for field in ["managedFields", "creationTimestamp", "ownerReferences", "generation"] {
            let poisoned = pod(&format!(r#","{field}":{odd}"#), "");
            assert_eq!(reduced(&poisoned), plain, "{field} {odd:.60}");
        }
        let fields = format!(r#","managedFields":[{{"fieldsV1":{odd},"time":{odd}}}]"#);
        assert_eq!(reduced(&pod(&fields, "")), plain, "{odd:.60}");
        for field in ["affinity", "volumes", "tolerations", "ofAYoungerRelease", "overhead"] {
            let poisoned = pod("", &format!(r#","{field}":{odd}"#));
            assert_eq!(reduced(&poisoned), plain, "{field} {odd:.60}");
        }
    }
}

#[test]
fn one_that_cannot_be_read_is_named_and_counts_where_it_has_a_word_of_ours() {
    let named = |name: &str, counts| (name.to_owned(), counts);
    let spec = r#","hostname":"aliyun.com/gpu-mem""#;
    let foreign = |label: &str| {
        format!(
            r#"{{"metadata":{{"name":"p","namespace":"n","labels":{{"a":{label}}}}},"spec":{{"containers":[]}}}}"#
        )
    };
    for (json, expected) in [
        (pod(r#","labels":{"a":1}"#, ""), named("n/p", true)),
        (pod(&format!(r#","labels":{{"a":{}}}"#, deep(1000)), ""), named("n/p", true)),
        // Twice the same field.
        (pod(r#","uid":"v""#, ""), named("n/p", true)),
        // Of its specification, too, what can be read counts.
        (pod("", r#","initContainers":"none""#), named("n/p", true)),
        (pod("", &format!(r#"{spec},"schedulingGates":{}"#, deep(300))), named("n/p", true)),
        // Nothing says how much it asks for.
        (pod("", r#","containers":7"#), named("n/p", false)),
        (pod("", r#","containers":[{"name":7}]"#), named("n/p", false)),
        (
            r#"{"metadata":{"name":"aliyun.com/gpu-"},"spec":7}"#.to_owned(),
            named("aliyun.com/gpu-", false),
        ),
        // None of ours.
        (foreign("1"), named("n/p", false)),
        (r#"{"metadata":{"name":"p","namespace":1},"spec":[]}"#.to_owned(), named("p", false)),
        (r#"{"metadata":{"name":["p"]}}"#.to_owned(), named("(without a name)", false)),
        (
            r#"{"metadata":{"name":"a\u001b\u202e","uid":1}}"#.to_owned(),
            named("a\u{fffd}\u{fffd}", false),
        ),
        ("[]".to_owned(), named("(without a name)", false)),
        ("7".to_owned(), named("(without a name)", false)),
    ] {
        let Err(unread) = read::<WirePod>(&json) else { panic!("it is read: {json:.300}") };
        let shown = unread.left.to_string();
        let LeftOut { kind, name, why, counts } = unread.left;
        let what = if counts { "; what can be read of it counts" } else { "; it is left out" };
        assert!(shown.starts_with(&format!("Pod {name}: ")) && shown.ends_with(what), "{shown}");
        assert_eq!((kind, (name, counts)), ("Pod", expected), "{json:.300}");
        assert!(!why.is_empty() && why.len() < 1000 && !why.contains(char::is_control), "{why}");
        assert_eq!(unread.part.is_some(), counts);
    }
}

#[test]
fn of_a_pod_that_cannot_be_read_what_can_be_counts_as_before() {
    let json = pod(r#","labels":{"a":1,"aliyun.com/gpu-count":"2"}"#, "");
    let Err(unread) = read::<WirePod>(&json) else { panic!("it is read") };
    let counted = Pod::reduce(unread.part.expect("ours")).expect("with a uid");
    let whole = reduced(&pod(r#","labels":{"aliyun.com/gpu-count":"2"}"#, ""));
    assert_eq!(counted, whole);
    assert_eq!(counted.node.as_deref(), Some("n1"));
    let more = |name: &str| {
        format!(r#"{{"name":{name},"resources":{{"limits":{{"mpsgate.io/gpu-mem-64mi":"3"}}}}}}"#)
    };
    let (good, bad) = (more(r#""i""#), more("7"));
    let json =
        pod("", &format!(r#","overhead":1,"restartPolicy":7,"initContainers":[{bad},{good},1]"#));
    let Err(unread) = read::<WirePod>(&json) else { panic!("it is read") };
    let counted = Pod::reduce(unread.part.expect("ours")).expect("with a uid");
    assert_eq!(counted, reduced(&pod("", &format!(r#","initContainers":[{good}]"#))));
}

#[test]
fn of_10001_objects_one_that_cannot_be_read_is_left_out_alone() {
    let good = |n: u32| json!({"metadata": {"name": format!("p{n}"), "namespace": "n", "uid": n.to_string()}});
    let mut items: Vec<Value> = (0..10_001).map(good).collect();
    items[5000]["metadata"]["labels"] = json!({"a": 1});
    let list = json!({"metadata": {"resourceVersion": "9", "continue": ""}, "items": items});
    let page = Page::<WirePod>::parse(&list.to_string()).expect("a list");
    assert_eq!((page.items.len(), page.version.as_deref(), page.next), (10_001, Some("9"), None));
    let bad: Vec<_> = page.items.iter().filter_map(|one| one.as_ref().err()).collect();
    let [bad] = &bad[..] else { panic!("{} are left out", bad.len()) };
    assert_eq!(bad.left.name, "n/p5000");
    assert_eq!(bad.meta.uid.as_deref(), Some("5000"));
    assert!(bad.left.why.contains("invalid type"), "{}", bad.left.why);
}

#[test]
fn a_page_is_a_list_or_an_error() {
    let count = |json: &str| Page::<WirePod>::parse(json).map(|page| page.items.len()).ok();
    for (json, expected) in [
        (r#"{"metadata":{},"items":[]}"#, Some(0)),
        (r#"{"items":null}"#, Some(0)),
        (r#"{"items":[1,"x",{}]}"#, Some(3)),
        (r#"{"metadata":{}}"#, None),
        (r#"{"items":{}}"#, None),
        (r#"{"items":[{]}"#, None),
        ("<html>", None),
        ("", None),
    ] {
        assert_eq!(count(json), expected, "{json}");
    }
    let json = format!(
        r#"{{"metadata":{{"continue":"x","remainingItemCount":{0}}},"items":[{0}]}}"#,
        deep(1000)
    );
    let page = Page::<WirePod>::parse(&json).expect("a list");
    assert_eq!((page.items.len(), page.next.as_deref()), (1, Some("x")));
}

#[test]
fn nodes_and_classes_are_read_whatever_their_owners_write_beside() {
    let deep = deep(1000);
    let node = format!(
        r#"{{"metadata":{{"name":"n","managedFields":{deep},"labels":{{"mpsgate.io/shared":"true"}}}},
            "spec":{{"podCIDR":{deep}}},"status":{{"images":{deep},"nodeInfo":{deep}}}}}"#
    );
    let found = ClusterNode::reduce(read::<WireNode>(&node).expect("a node"));
    assert!(found.shared.is_some());
    let class = format!(
        r#"{{"metadata":{{"name":"c","managedFields":{deep}}},"handler":"h","overhead":{deep}}}"#
    );
    assert_eq!(read::<WireRuntimeClass>(&class).expect("a class").handler, "h");
    // A removal has to know of cards on a node that cannot be read.
    let bad = format!(
        r#"{{"metadata":{{"name":"n","labels":{{"mpsgate.io/shared":"true","a":{deep}}}}},"spec":7}}"#
    );
    let Err(unread) = read::<WireNode>(&bad) else { panic!("it is read") };
    let labels = unread.part.expect("a part").metadata.labels.expect("labels");
    assert_eq!(labels.keys().collect::<Vec<_>>(), ["mpsgate.io/shared"]);
}

#[test]
fn a_time_of_a_lease_that_cannot_be_read_keeps_it_from_nobody() {
    let lease = |renewed: &str| {
        let text = format!(
            r#"{{"metadata":{{"name":"l","resourceVersion":"7","managedFields":{}}},
                "spec":{{"holderIdentity":"other","leaseDurationSeconds":15,"leaseTransitions":3,
                    "acquireTime":"2026-01-31T12:00:00.000000Z","renewTime":{renewed}}}}}"#,
            deep(1000)
        );
        read::<WireLease>(&text).expect("a lease").spec.expect("a spec")
    };
    let good = lease(r#""2026-01-31T12:00:01.000000Z""#);
    assert!(good.renew_time.is_some() && good.acquire_time.is_some());
    for odd in [
        r#""10000-01-01T23:58:59.000000Z""#,
        r#""9999-12-31T23:59:59.999999Z""#,
        r#""x""#,
        "7",
        "null",
        "{}",
    ] {
        let spec = lease(odd);
        assert_eq!(spec.renew_time, None, "{odd}");
        assert_eq!(spec.acquire_time, good.acquire_time, "{odd}");
        assert_eq!(spec.holder_identity.as_deref(), Some("other"), "{odd}");
        assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(3)));
    }
    for none in [r#"{"metadata":{}}"#, r#"{"metadata":{},"spec":null}"#] {
        assert!(read::<WireLease>(none).expect("a lease").spec.is_none(), "{none}");
    }
    // Who has it is not guessed.
    for bad in [r#"{"metadata":{},"spec":7}"#, r#"{"metadata":{},"spec":{"holderIdentity":7}}"#] {
        assert!(read::<WireLease>(bad).is_err(), "{bad}");
    }
}
