//! What is written into a pod for its author, where that is switched on.

use mpsgate_policy::admission::Pod;
use serde_json::{Value, json};

/// What Kubernetes writes where a pod names no scheduler, before any webhook sees it.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// What is switched on. Nothing is, by default: `hostIPC` is a privilege, and who gives it should know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mutation {
    /// Sets `hostIPC: true` in a pod that asks for GPU memory and may come under MPS.
    pub host_ipc: bool,
    /// Sets this `schedulerName` in a pod that asks for GPU memory and names none.
    pub scheduler_name: Option<String>,
    /// Other names that it takes the place of, such as `ack-co-scheduler`.
    pub replaced_schedulers: Vec<String>,
}

impl Mutation {
    /// A JSONPatch; `None` where there is nothing to change.
    pub(super) fn patch(&self, pod: &Pod, review: &Value) -> Option<Value> {
        let mut operations = Vec::new();
        if self.host_ipc && pod.needs_host_ipc() && !pod.host_ipc {
            operations.push(json!({"op": "add", "path": "/spec/hostIPC", "value": true}));
        }
        let spec = review.pointer("/request/object/spec")?;
        // A pod that names its node is not scheduled.
        let bound = spec.get("nodeName").and_then(Value::as_str).is_some_and(|n| !n.is_empty());
        if let Some(name) = self.scheduler_name.as_deref().filter(|_| pod.asks() && !bound) {
            let now = spec.get("schedulerName").and_then(Value::as_str).unwrap_or_default();
            let replaced = now.is_empty()
                || now == DEFAULT_SCHEDULER
                || self.replaced_schedulers.iter().any(|replaced| replaced == now);
            if replaced && now != name {
                operations.push(json!({"op": "add", "path": "/spec/schedulerName", "value": name}));
            }
        }
        (!operations.is_empty()).then_some(Value::Array(operations))
    }
}
