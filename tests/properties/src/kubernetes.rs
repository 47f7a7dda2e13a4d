//! What somebody wrote into the API server's objects.

use std::collections::BTreeMap;

use mpsgate_kubernetes::{
    ClusterNode, Container, Lifecycle, Limits, Placed, Pod, fuzz, parse_claim, parse_handlers,
};
use mpsgate_model::Kind;
use serde_json::value::RawValue;

/// Annotations of a scheduler, which whoever makes a pod can write: the first line is V1's index,
/// the rest V2's JSON. Cards come from what is written, and from nowhere else.
pub(crate) fn chosen_cards(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    let (index, allocation) = text.split_once('\n').unwrap_or((text, ""));
    let container = |name: &str| Container {
        name: name.to_owned(),
        kind: Kind::Main,
        limits: Ok(Limits::default()),
        core_percent: Ok(0),
        uid: None,
        lifecycle: Lifecycle::Waiting,
    };
    let annotations = [
        ("ALIYUN_COM_GPU_MEM_IDX", index),
        ("scheduler.framework.gpushare.allocation", allocation),
    ];
    let pod = Pod {
        uid: "u".to_owned(),
        namespace: "n".to_owned(),
        name: "p".to_owned(),
        node: None,
        class: None,
        static_hash: None,
        acknowledged: false,
        finished: false,
        not_admitted: false,
        deleting: false,
        gpu_count: None,
        annotations: BTreeMap::from(
            annotations.map(|(key, value)| (key.to_owned(), value.to_owned())),
        ),
        containers: vec![container("a"), container("b")],
        claims: Vec::new(),
    };
    for name in ["a", "b", "absent"] {
        for card in pod.chosen_cards(name) {
            assert!(text.contains(&card.to_string()), "{card} is in no annotation");
        }
    }
}

/// What a node's mpsgated, or whoever makes a pod, wrote for `kubectl inspect cgpu`.
pub(crate) fn inspect_annotations(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    mpsgate_inspect::fuzz::annotations(text);
    // Of the same writer, for the webhook. What it cannot take is an error in words.
    if let Err(why) = parse_handlers(text) {
        assert!(!why.is_empty());
    }
}

/// A placement, which whoever makes a pod can write: one that is read is written so that it is read
/// the same.
pub(crate) fn placement(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    let Some(placed) = Placed::parse(text) else { return };
    // Times are kept to the millisecond, and a calendar ends.
    assert_eq!(Placed::parse(&placed.render()), Some(placed));
}

/// What kube-scheduler posts, with pods that anybody writes: everything is answered.
pub(crate) fn extender(data: &[u8]) {
    mpsgate_scheduler::parse_any(data);
    let Some(text) = crate::text(data) else { return };
    if let Ok(pod) = Pod::parse(text) {
        let _ = (pod.allocation(), pod.placed());
    }
    if let Ok(node) = ClusterNode::parse(text) {
        assert!(node.cards.is_empty() || node.unreadable.is_none());
    }
}

/// An object of the API server, which some tenant or node wrote: among others of its list it keeps
/// nobody from them, it is read or named, and in a place that nobody reads it changes nothing.
pub(crate) fn api_objects(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    let is_json = serde_json::from_str::<&RawValue>(text).is_ok();
    for kind in ["pods", "nodes", "leases", "resourceslices", "runtimeclasses"] {
        let good = |name: &str, more: &str| {
            format!(r#"{{"metadata":{{"name":"{name}"{more}}},"spec":{{}}}}"#)
        };
        let (first, last) = (good("first", ""), good("last", ""));
        let Ok(items) = fuzz::page(kind, &format!(r#"{{"items":[{first},{text},{last}]}}"#)) else {
            assert!(!is_json, "{kind}");
            continue;
        };
        // What is no JSON may close one object and open another.
        if !is_json {
            continue;
        }
        let [Ok(before), found, Ok(after)] = &items[..] else { panic!("{kind}: {items:?}") };
        assert_eq!((before.as_str(), after.as_str()), ("first", "last"));
        if let Err(left) = found {
            assert!(!left.name.is_empty() && !left.name.contains(char::is_control), "{left}");
            assert!(!left.why.is_empty() && !left.why.contains(char::is_control), "{left}");
        }
        let beside = good("beside", &format!(r#","managedFields":{text}"#));
        let items = fuzz::page(kind, &format!(r#"{{"items":[{beside}]}}"#)).unwrap();
        assert_eq!(items, [Ok("beside".to_owned())], "{kind}");
    }
    if is_json {
        let claim = format!(r#"{{"metadata":{{"name":"c","managedFields":{text}}},"spec":{{}}}}"#);
        assert!(parse_claim(&claim).is_ok());
    }
}
