//! What is written into a pod for its author, where that is switched on.

use mpsgate_cluster::admission::Pod;
use mpsgate_cluster::bypass::Placer;
use mpsgate_config::{Exempt, Ipc, Policy};
use serde_json::{Value, json};

/// What Kubernetes writes where a pod names no scheduler, before any webhook sees it.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// What the webhook is told at its start. Nothing is switched on, by default: `hostIPC` is a
/// privilege, and who gives it should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// Sets `hostIPC: true` in a pod that asks for GPU memory and may come under MPS; not beside
    /// `hostUsers: false`, where the API server would refuse what its author never wrote, and not
    /// where [`Self::ipc`] leaves it to each node.
    pub host_ipc: bool,
    /// Sets this `schedulerName` in a pod that asks for GPU memory and names none.
    pub scheduler_name: Option<String>,
    /// Other names that it takes the place of, such as `ack-co-scheduler`.
    pub replaced_schedulers: Vec<String>,
    /// Not a change, but whose pods with GPU memory are placed by mpsgate-scheduler: the names of
    /// kube-schedulers that ask it as their extender. One node whose handler bypasses mpsgate
    /// refuses the pods of every other scheduler.
    pub steered_schedulers: Vec<String>,
    /// Not a change, but who may say where a pod was placed: mpsgate-scheduler's account,
    /// `system:serviceaccount:NAMESPACE:NAME`. Without it nobody may.
    pub scheduler_account: Option<String>,
    /// Not a change, but the nodes' `policy.ipc`. With another word than `require-host` a pod
    /// without `hostIPC` is neither changed nor refused: it shall run under Pod Security `baseline`
    /// and beside `hostUsers: false`.
    pub ipc: Ipc,
    /// Not a change, but the nodes' `kubernetes.dra_extended_resources`: a limit that becomes a
    /// claim of a whole card is allowed.
    pub extended_resources: bool,
    /// Not a change, but the nodes' `policy.exempt`: what these containers show of GPUs is not
    /// evaluated.
    pub exempt: Vec<Exempt>,
}

/// What a pod says of its scheduler.
#[derive(Default)]
pub(super) struct Scheduling {
    pub(super) scheduler: String,
    pub(super) node: String,
}

impl Default for Mutation {
    fn default() -> Self {
        Self {
            host_ipc: false,
            scheduler_name: None,
            replaced_schedulers: Vec::new(),
            steered_schedulers: Vec::new(),
            scheduler_account: None,
            ipc: Policy::default().ipc,
            extended_resources: false,
            exempt: Vec::new(),
        }
    }
}

impl Mutation {
    /// A JSONPatch; `None` where there is nothing to change.
    pub(super) fn patch(&self, pod: &Pod, now: &Scheduling) -> Option<Value> {
        let mut operations = Vec::new();
        if self.host_ipc && pod.takes_host_ipc(self.ipc) {
            operations.push(json!({"op": "add", "path": "/spec/hostIPC", "value": true}));
        }
        if let Some(name) = self.named(pod, now) {
            operations.push(json!({"op": "add", "path": "/spec/schedulerName", "value": name}));
        }
        (!operations.is_empty()).then_some(Value::Array(operations))
    }

    /// The scheduler that a pod is given in the place of its own.
    fn named(&self, pod: &Pod, now: &Scheduling) -> Option<&str> {
        // A pod that names its node is not scheduled.
        let bound = !now.node.is_empty();
        let name = self.scheduler_name.as_deref().filter(|_| pod.asks() && !bound)?;
        let now = now.scheduler.as_str();
        let replaced = now.is_empty()
            || now == DEFAULT_SCHEDULER
            || self.replaced_schedulers.iter().any(|replaced| replaced == now);
        (replaced && now != name).then_some(name)
    }

    /// Who chooses the nodes of a scheduler's pods.
    pub(super) fn placer(&self, scheduler: &str) -> Placer {
        let scheduler = if scheduler.is_empty() { DEFAULT_SCHEDULER } else { scheduler };
        let steered = self.steered_schedulers.iter().any(|steered| steered == scheduler);
        if steered { Placer::Extender } else { Placer::Other }
    }

    /// Who will choose the nodes of a template's pods, by the scheduler that these are given.
    pub(super) fn placer_of(&self, pod: &Pod, now: &Scheduling) -> Placer {
        self.placer(self.named(pod, now).unwrap_or(&now.scheduler))
    }
}
