//! What the API server posts to the admission webhook.

use mpsgate_scheduler::webhook::{Mutation, mutate, validate};
use serde_json::Value;

/// A body: it is answered with the uid that it has, or with no answer of the protocol at all; a change refuses nothing.
pub(crate) fn admission_review(data: &[u8]) {
    let mutation = Mutation {
        host_ipc: true,
        scheduler_name: Some("mpsgate".to_owned()),
        replaced_schedulers: Vec::new(),
    };
    let body: Option<Value> = serde_json::from_slice(data).ok();
    let uid = body.as_ref().and_then(|body| body.pointer("/request/uid")?.as_str());
    let uid = uid.filter(|uid| !uid.is_empty());
    for (answer, mutates) in [(validate(data, &mutation), false), (mutate(data, &mutation), true)] {
        assert_eq!(answer.is_ok(), uid.is_some());
        let Ok(answer) = answer else { continue };
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer.pointer("/response/uid").and_then(Value::as_str), uid);
        let allowed = answer.pointer("/response/allowed").and_then(Value::as_bool);
        assert!(allowed == Some(true) || (allowed == Some(false) && !mutates));
    }
}
