//! What the API server posts to the admission webhook.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mpsgate_cluster::bypass::Known;
use mpsgate_model::{GpuNode, HandlerReport, RuntimeClass};
use mpsgate_scheduler::webhook::{Mutation, mutate, validate};
use serde_json::Value;

/// One node, on which the handler of the class `nvidia` bypasses mpsgate.
fn known() -> Known {
    let class = RuntimeClass { handler: "nvidia".to_owned(), ..RuntimeClass::default() };
    let handlers =
        HandlerReport { round: ["nvidia".to_owned()].into(), ..HandlerReport::default() };
    let node = GpuNode { labels: BTreeMap::new(), is_switched: true, handlers: Ok(handlers) };
    Known {
        classes: Some([("nvidia".to_owned(), class)].into()),
        nodes: [("n1".to_owned(), node)].into(),
        ..Known::default()
    }
}

/// A body: JSON is answered with the uid that it has, or with no answer of the protocol at all; a
/// change refuses nothing. What is no JSON, or has a key twice, may be answered too, where what is
/// wrong is of no interest; never for another uid.
pub(crate) fn admission_review(data: &[u8]) {
    let mutation = Mutation {
        host_ipc: true,
        scheduler_name: Some("mpsgate".to_owned()),
        ..Mutation::default()
    };
    let known = known();
    let body: Option<Value> = serde_json::from_slice(data).ok();
    let uid = body.as_ref().and_then(|body| body.pointer("/request/uid")?.as_str());
    let uid = uid.filter(|uid| !uid.is_empty());
    let once = body.as_ref().map(Value::to_string);
    let later = || Instant::now() + Duration::from_secs(60);
    let answers = |data: &[u8]| {
        let validated = validate(data, &mutation, &known, later());
        [(validated, false), (mutate(data, &mutation, later()), true)]
    };
    if let Some(once) = &once {
        for (answer, _) in answers(once.as_bytes()) {
            assert_eq!(answer.is_ok(), uid.is_some());
        }
    }
    for (answer, mutates) in answers(data) {
        let Ok(answer) = answer else { continue };
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        if body.is_some() {
            assert_eq!(answer.pointer("/response/uid").and_then(Value::as_str), uid);
        }
        let allowed = answer.pointer("/response/allowed").and_then(Value::as_bool);
        assert!(allowed == Some(true) || (allowed == Some(false) && !mutates));
    }
}
