//! A pod of this node, as far as GPU memory is concerned.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use mpsgate_model::{GPU_CORE, GPU_COUNT, Kind, QuantityError, Resource, parse_count};

use crate::State;
use crate::read::{KEPT, LeftOut};
use crate::wire::{ContainerSpec, ContainerStatus, Quantity, Resources, WirePod};

/// The uid under which the kubelet, and so the engine, knows a static pod.
const STATIC_HASH: &str = "kubernetes.io/config.hash";

/// The reason of a pod that kubelet failed when its device manager could not allocate
/// (pkg/kubelet/lifecycle, 1.20 to 1.36).
const NOT_ADMITTED: &str = "UnexpectedAdmissionError";

/// The annotation with the pod's cards, a [`Placed`](crate::Placed) as JSON. It is the one that
/// mpsgate's own ledger reads.
pub const PLACEMENT: &str = "mpsgate.io/placement";
/// One annotation that is kept: a forged one must not fill the daemon's memory.
const LONGEST_ANNOTATION: usize = 4096;
/// The one with a line for each container; Kubernetes holds all of a pod's annotations to 256 KiB.
const LONGEST_PLACEMENT: usize = 1 << 16;

/// The pods that the API server has bound to this node.
#[derive(Debug, Clone, Default)]
pub struct Pods {
    /// Whether this is what the API server has now.
    pub state: State,
    /// Pods among them that cannot be read.
    pub left_out: Vec<LeftOut>,
    by_uid: HashMap<String, Arc<Pod>>,
    /// The uids of those of which nothing counts.
    unread: HashSet<String>,
    /// There was one whose uid is not known either. It stays so until the next whole list.
    unnamed: bool,
}

impl Pods {
    /// By the uid that the engine shows: the pod's own, or a static pod's hash.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&Arc<Pod>> {
        self.by_uid
            .get(uid)
            .or_else(|| self.by_uid.values().find(|pod| pod.static_hash.as_deref() == Some(uid)))
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.by_uid.values()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_uid.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }

    /// Whether a pod of that uid may be there although [`get`](Self::get) does not have it: nothing
    /// of it counts, and so nobody knows whether it runs.
    #[must_use]
    pub fn may_be(&self, uid: &str) -> bool {
        self.unnamed || self.unread.contains(uid)
    }

    pub(crate) fn put(&mut self, pod: Pod) {
        self.unread.remove(&pod.uid);
        self.by_uid.insert(pod.uid.clone(), Arc::new(pod));
    }

    /// A pod that is there, and of which nothing counts, its uid where that can be read. Whether
    /// that is news.
    pub fn put_unread(&mut self, uid: Option<String>) -> bool {
        match uid.filter(|uid| !uid.is_empty()) {
            // What was known of it before is not true any more.
            Some(uid) => {
                let was_known = self.by_uid.remove(&uid).is_some();
                self.unread.insert(uid) || was_known
            }
            None => !std::mem::replace(&mut self.unnamed, true),
        }
    }

    /// A pod that is there no more.
    pub fn remove(&mut self, uid: &str) {
        self.by_uid.remove(uid);
        self.unread.remove(uid);
    }
}

impl FromIterator<Pod> for Pods {
    fn from_iter<I: IntoIterator<Item = Pod>>(pods: I) -> Self {
        let mut all = Self::default();
        pods.into_iter().for_each(|pod| all.put(pod));
        all
    }
}

/// One pod; nothing else of it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its uid in the API server.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// Its RuntimeClass, by which its node's engine chooses a handler.
    pub class: Option<String>,
    /// Of a static pod: the uid that its containers carry.
    pub static_hash: Option<String>,
    /// Its node's kubelet has taken or refused it, devices and all: it has a `status.startTime`.
    pub acknowledged: bool,
    /// Succeeded or Failed: none of its containers runs or will.
    pub finished: bool,
    /// Failed, because its kubelet had no devices for it; that is for good.
    pub not_admitted: bool,
    /// It is being deleted: what runs still runs, nothing starts any more.
    pub deleting: bool,
    /// Cards that its memory is spread over, by its label `aliyun.com/gpu-count`, as written.
    pub gpu_count: Option<String>,
    /// Ours, and those of the schedulers of ACK and gpushare (V1 and V2).
    pub annotations: BTreeMap<String, String>,
    /// In the order of its specification, init containers first.
    pub containers: Vec<Container>,
    /// The names of its ResourceClaims that there are: a template's only once it was made.
    pub claims: Vec<String>,
}

/// One container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// When it runs.
    pub kind: Kind,
    /// What its limits give it. An error names the limit that cannot be read.
    pub limits: Result<Limits, LimitError>,
    /// `aliyun.com/gpu-core.percentage`; 0 where it asks for none.
    pub core_percent: Result<u64, LimitError>,
    /// `runAsUser`, its own or else the pod's. Without one the image decides.
    pub uid: Option<u32>,
    /// Where it is in its lifecycle.
    pub lifecycle: Lifecycle,
}

/// Where a container is in its lifecycle, as the kubelet reported last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifecycle {
    /// Not started, or about to start again.
    Waiting,
    /// Running.
    Running,
    /// It ended, and its restart policy starts it again.
    Between,
    /// It ended for good.
    Ended,
}

/// What the limits of a container, or of a pod, give.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// `aliyun.com/gpu-mem`, GiB.
    pub gpu_mem: u64,
    /// `nvidia.com/gpu-<N>gb` (nos): N to how many.
    pub slices: BTreeMap<u64, u64>,
    /// `mpsgate.io/gpu-mem-<N>mi`: N to how many.
    pub units: BTreeMap<u64, u64>,
    /// `aliyun.com/gpu-count`, cards.
    pub gpu_count: u64,
}

impl Limits {
    /// Whether they give no GPU.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Each resource that gives memory, with how many MiB it gives.
    pub fn memory(&self) -> impl Iterator<Item = (String, u64)> {
        let gpu_mem = (self.gpu_mem > 0).then_some((Resource::Memory, self.gpu_mem));
        let slices = self.slices.iter().map(|(gib, count)| (Resource::Slice(*gib), *count));
        let units = self.units.iter().map(|(mib, count)| (Resource::Unit(*mib), *count));
        let given = gpu_mem.into_iter().chain(slices).chain(units);
        given
            .filter_map(|(resource, count)| Some((resource.to_string(), resource.memory(count)?.0)))
    }
}

/// Limits that the API server should not have let through.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// They are no JSON of quantities.
    #[error("they are no list of quantities")]
    List,
    /// One is no count.
    #[error("limit {resource}: {text:?} cannot be counted")]
    Count {
        /// The resource.
        resource: String,
        /// Its value, as written.
        text: String,
        /// Why.
        #[source]
        source: QuantityError,
    },
}

impl Pod {
    /// Whether its kubelet has yet to ask the device plugin for it.
    #[must_use]
    pub fn is_on_its_way(&self) -> bool {
        !self.acknowledged && !self.finished && !self.deleting && self.asks()
    }

    /// Whether its kubelet had no devices for it, and will not try again.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.not_admitted && self.finished && self.asks()
    }

    fn asks(&self) -> bool {
        self.containers.iter().any(|one| !matches!(&one.limits, Ok(limits) if limits.is_empty()))
    }

    /// The container of that name.
    #[must_use]
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// What matters of a pod's JSON, as a client of the API server sends it on. A pod that was
    /// never created has an empty uid.
    ///
    /// # Errors
    /// Where it is no JSON of a pod.
    pub fn parse(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json).map(Self::of)
    }

    /// What matters of a pod as the API server sends it. `None` for one without uid, which is none.
    pub(crate) fn reduce(pod: WirePod) -> Option<Self> {
        Some(Self::of(pod)).filter(|pod| !pod.uid.is_empty())
    }

    fn of(pod: WirePod) -> Self {
        let meta = pod.metadata;
        let mut annotations = meta.annotations.unwrap_or_default();
        let static_hash = annotations.remove(STATIC_HASH);
        annotations.retain(|key, value| {
            let longest = if key == PLACEMENT { LONGEST_PLACEMENT } else { LONGEST_ANNOTATION };
            KEPT.iter().any(|prefix| key.starts_with(prefix)) && value.len() <= longest
        });
        let deleting = meta.deletion_timestamp.is_some();
        let policy = pod.spec.restart_policy.as_deref().unwrap_or("Always");
        let (of_init, of_main) =
            (by_name(&pod.status.init_container_statuses), by_name(&pod.status.container_statuses));
        let container = |spec: ContainerSpec, init: bool| {
            let statuses = if init { &of_init } else { &of_main };
            let status = statuses.get(spec.name.as_str()).copied();
            let kind = match (init, spec.restart_policy.as_deref()) {
                (true, Some("Always")) => Kind::Sidecar,
                (true, _) => Kind::Init,
                (false, _) => Kind::Main,
            };
            let user = spec.security_context.run_as_user;
            let user = user.or(pod.spec.security_context.run_as_user);
            Container {
                lifecycle: lifecycle(&spec, kind, policy, status),
                core_percent: core_percent(&spec.resources),
                uid: user.and_then(|uid| u32::try_from(uid).ok()),
                limits: limits(spec.resources),
                name: spec.name,
                kind,
            }
        };
        let claims = pod.spec.resource_claims.into_iter().chain(pod.status.resource_claim_statuses);
        let containers = (pod.spec.init_containers.into_iter().map(|spec| container(spec, true)))
            .chain(pod.spec.containers.into_iter().map(|spec| container(spec, false)))
            .collect();
        Self {
            uid: meta.uid.unwrap_or_default(),
            namespace: meta.namespace.unwrap_or_default(),
            name: meta.name.unwrap_or_default(),
            node: pod.spec.node_name.filter(|name| !name.is_empty()),
            class: pod.spec.runtime_class_name.filter(|name| !name.is_empty()),
            static_hash,
            acknowledged: pod.status.start_time.is_some(),
            finished: matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed")),
            not_admitted: pod.status.reason.as_deref() == Some(NOT_ADMITTED),
            deleting,
            gpu_count: meta.labels.unwrap_or_default().remove(GPU_COUNT),
            annotations,
            containers,
            claims: claims.filter_map(|claim| claim.resource_claim_name).collect(),
        }
    }
}

/// Of two of a name the first. A pod may have as many as an object of the API server holds, and
/// each is looked for.
fn by_name(statuses: &[ContainerStatus]) -> HashMap<&str, &ContainerStatus> {
    statuses.iter().rev().map(|status| (status.name.as_str(), status)).collect()
}

fn lifecycle(
    spec: &ContainerSpec,
    kind: Kind,
    pod_policy: &str,
    status: Option<&ContainerStatus>,
) -> Lifecycle {
    let Some(state) = status.map(|status| &status.state) else { return Lifecycle::Waiting };
    if state.running.is_some() {
        return Lifecycle::Running;
    }
    let Some(terminated) = &state.terminated else { return Lifecycle::Waiting };
    // Its own policy (a sidecar's, or from Kubernetes 1.34 any container's) comes before the pod's.
    let again = match spec.restart_policy.as_deref().unwrap_or(pod_policy) {
        // An init container that succeeded is done, whatever the pod's policy.
        "Always" if kind == Kind::Init => terminated.exit_code != 0,
        "OnFailure" => terminated.exit_code != 0,
        // Rules may start it again; which of them match is the kubelet's to know.
        "Never" => !spec.restart_policy_rules.is_empty(),
        _ => true,
    };
    if again { Lifecycle::Between } else { Lifecycle::Ended }
}

/// What the JSON of a container's `resources.limits` gives, and the percent of a card's compute.
///
/// # Errors
/// Where it is no JSON of quantities, else the limit that cannot be read.
pub fn parse_limits(json: &str) -> Result<(Limits, u64), LimitError> {
    let limits = serde_json::from_str(json).map_err(|_| LimitError::List)?;
    let resources = Resources { limits };
    let core = core_percent(&resources);
    Ok((self::limits(resources)?, core?))
}

fn limits(resources: Resources) -> Result<Limits, LimitError> {
    let mut found = Limits::default();
    for (name, quantity) in resources.limits {
        let Some(resource) = Resource::parse(&name).filter(|found| *found != Resource::Core) else {
            continue;
        };
        let count = count(&name, &quantity)?;
        match resource {
            Resource::Memory => found.gpu_mem = count,
            Resource::Cards => found.gpu_count = count,
            Resource::Slice(gib) if count > 0 => drop(found.slices.insert(gib, count)),
            Resource::Unit(mib) if count > 0 => drop(found.units.insert(mib, count)),
            Resource::Slice(_) | Resource::Unit(_) | Resource::Core => {}
        }
    }
    Ok(found)
}

fn core_percent(resources: &Resources) -> Result<u64, LimitError> {
    resources.limits.get(GPU_CORE).map_or(Ok(0), |quantity| count(GPU_CORE, quantity))
}

fn count(resource: &str, quantity: &Quantity) -> Result<u64, LimitError> {
    let text = match quantity {
        Quantity::Text(text) => text.clone(),
        Quantity::Number(number) => number.to_string(),
    };
    parse_count(&text).map_err(|source| LimitError::Count {
        resource: resource.to_owned(),
        text,
        source,
    })
}

#[cfg(test)]
mod tests;
