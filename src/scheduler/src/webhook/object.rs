//! The object of a review: which pod is to be judged, and what of it matters.

use mpsgate_allocation::Mib;
use mpsgate_kubernetes::{GPU_COUNT, Pod as Counted};
use mpsgate_policy::admission::{Container, Nodes, Pod};
use mpsgate_policy::schedule::{LABEL, Word};
use serde_json::{Map, Value, json};

/// Where each kind has its pods' template.
const TEMPLATES: [(&str, &str); 6] = [
    ("Deployment", "/spec/template"),
    ("StatefulSet", "/spec/template"),
    ("DaemonSet", "/spec/template"),
    ("ReplicaSet", "/spec/template"),
    ("Job", "/spec/template"),
    ("CronJob", "/spec/jobTemplate/spec/template"),
];
/// The kubelet's copy of a static pod: the pod runs, whatever becomes of the copy.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Annotations that ask for memory elsewhere.
const MEMORY_ANNOTATIONS: [&str; 2] = ["mpsgate.io/gpu-mem", "aliyun.com/gpu-mem"];
/// Where a node has the device files of its GPUs.
const DEVICES: &str = "/dev/nvidia";
/// Domains that resources of ours are in; what others write wrong is theirs.
const DOMAINS: [&str; 3] = ["aliyun.com/", "nvidia.com/", "mpsgate.io/"];
const REQUIRED_TERMS: &str =
    "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// What a review is about.
pub(super) enum Subject {
    /// Nothing of ours.
    Nothing,
    /// A pod that is to be made.
    Pod(Pod),
    /// A pod that runs, and its containers that are to be added.
    Ephemeral { pod: Pod, new: Vec<String> },
    /// Pods that will be made.
    Template(Pod),
}

impl Subject {
    /// An error is a sentence for a warning.
    pub(super) fn of(review: &Value) -> Result<Self, &'static str> {
        let text = |pointer: &str| review.pointer(pointer).and_then(Value::as_str);
        let operation = text("/request/operation").unwrap_or_default();
        let kind = text("/request/kind/kind").unwrap_or_default();
        let part = text("/request/subResource").unwrap_or_default();
        let object = review.pointer("/request/object").unwrap_or(&Value::Null);
        let old = review.pointer("/request/oldObject").unwrap_or(&Value::Null);
        let template = TEMPLATES.iter().find(|(known, _)| *known == kind).map(|(_, at)| *at);
        match (kind, operation, part) {
            ("Pod", "CREATE", "")
                if object
                    .pointer("/metadata/annotations")
                    .is_some_and(|a| a.get(MIRROR).is_some()) =>
            {
                Ok(Self::Nothing)
            }
            ("Pod", "CREATE", "") => pod_of(object).map(Self::Pod),
            ("Pod", "UPDATE", "ephemeralcontainers") => {
                let names = |pod: &Value| -> Vec<String> {
                    list(pod, "/spec/ephemeralContainers").map(name).collect()
                };
                let before = names(old);
                let new = names(object).into_iter().filter(|name| !before.contains(name)).collect();
                pod_of(object).map(|pod| Self::Ephemeral { pod, new })
            }
            // Whose owner's author was told already.
            (_, "CREATE" | "UPDATE", "") if template.is_some() && is_owned(object) => {
                Ok(Self::Nothing)
            }
            (_, "CREATE" | "UPDATE", "") => match template {
                Some(at) if object.pointer(at) != old.pointer(at) => {
                    pod_of(object.pointer(at).unwrap_or(&Value::Null)).map(Self::Template)
                }
                _ => Ok(Self::Nothing),
            },
            _ => Ok(Self::Nothing),
        }
    }
}

fn is_owned(object: &Value) -> bool {
    let owners = list(object, "/metadata/ownerReferences");
    owners.into_iter().any(|owner| owner.get("controller") == Some(&Value::Bool(true)))
}

/// What matters of a pod, or of a template of pods.
fn pod_of(pod: &Value) -> Result<Pod, &'static str> {
    let spec = pod.get("spec").filter(|spec| spec.is_object());
    let spec = spec.ok_or("this object has no pod in it that could be looked at")?;
    let is = |key: &str| spec.get(key) == Some(&Value::Bool(true));
    let volumes = device_volumes(spec);
    let containers = ["/initContainers", "/containers", "/ephemeralContainers"];
    let containers = containers.into_iter().flat_map(|at| list(spec, at));
    let metadata = |map: &str, key: &str| {
        pod.get("metadata")?.get(map)?.get(key)?.as_str().map(ToOwned::to_owned)
    };
    Ok(Pod {
        nodes: nodes(spec),
        host_ipc: is("hostIPC"),
        host_pids: is("hostPID"),
        own_users: spec.get("hostUsers") == Some(&Value::Bool(false)),
        gpu_count: metadata("labels", GPU_COUNT),
        asks_by_annotation: MEMORY_ANNOTATIONS
            .into_iter()
            .any(|name| metadata("annotations", name).is_some()),
        containers: containers.map(|one| container(one, &volumes)).collect(),
    })
}

fn list<'a>(of: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    of.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn name(of: &Value) -> String {
    text(of, "name").to_owned()
}

fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn container(container: &Value, device_volumes: &[(String, String)]) -> Container {
    let (limits, core_percentage) = match amounts(container) {
        Ok((given, core)) => (Ok(given), core),
        Err(why) => (Err(why), 0),
    };
    let security = container.get("securityContext").unwrap_or(&Value::Null);
    let added = list(security, "/capabilities/add").filter_map(Value::as_str);
    // Of two of a name the last counts, as in the container.
    let visible = list(container, "/env")
        .filter(|variable| text(variable, "name") == "NVIDIA_VISIBLE_DEVICES")
        .last();
    let mounts = list(container, "/volumeMounts").chain(list(container, "/volumeDevices"));
    let mounted = mounts.filter_map(|mount| {
        let volume = text(mount, "name");
        device_volumes.iter().find(|(name, _)| name == volume).map(|(_, path)| path.clone())
    });
    Container {
        name: name(container),
        privileged: security.get("privileged") == Some(&Value::Bool(true)),
        capabilities: added.map(ToOwned::to_owned).collect(),
        visible_devices: visible.and_then(|v| v.get("value")?.as_str()).map(ToOwned::to_owned),
        limits,
        core_percentage,
        device_mounts: mounted.collect(),
    }
}

/// GPU memory by resource, and percent of a card's compute. The node's own reading of limits also reads requests,
/// which Kubernetes wants to be the same.
fn amounts(container: &Value) -> Result<(Vec<(String, Mib)>, u64), String> {
    let resources = container.get("resources").unwrap_or(&Value::Null);
    let mut found = (Vec::new(), 0);
    for kind in ["requests", "limits"] {
        let Some(all) = resources.get(kind).and_then(Value::as_object) else { continue };
        let ours = all.iter().filter(|(name, _)| DOMAINS.iter().any(|of| name.starts_with(of)));
        let quantities: Map<String, Value> =
            ours.map(|(name, quantity)| (name.clone(), quantity.clone())).collect();
        let alone = json!({"metadata": {}, "spec": {"containers": [{"resources": {"limits": quantities}}]}});
        let pod = Counted::parse(&alone.to_string())
            .map_err(|_| format!("resources.{kind} is no list of quantities"))?;
        let Some(counted) = pod.containers.into_iter().next() else { continue };
        let chain = |error: mpsgate_kubernetes::LimitError| {
            let why = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error}: {}", why.unwrap_or_default())
        };
        let limits = counted.limits.map_err(chain)?;
        let core = counted.core_percent.map_err(chain)?;
        if kind == "limits" {
            found = (limits.memory().map(|(name, mib)| (name, Mib(mib))).collect(), core);
        }
    }
    Ok(found)
}

/// Volumes that are GPUs' device files of the node.
fn device_volumes(spec: &Value) -> Vec<(String, String)> {
    let volumes = list(spec, "/volumes").filter_map(|volume| {
        let path = volume.pointer("/hostPath/path")?.as_str()?;
        path.starts_with(DEVICES).then(|| (name(volume), path.to_owned()))
    });
    volumes.collect()
}

/// What a pod's selectors leave: its nodeSelector, else what every term of its required affinity says.
fn nodes(spec: &Value) -> Nodes {
    if let Some(word) = spec.pointer("/nodeSelector").and_then(|selector| selector.get(LABEL)) {
        return word.as_str().map_or(Nodes::Any, |word| Nodes::Only(Word::of_label(word)));
    }
    let terms = list(spec, REQUIRED_TERMS);
    let mut words: Vec<Option<Word>> = Vec::new();
    for term in terms {
        let mut expressions = list(term, "/matchExpressions");
        let ours = expressions.find(|e| text(e, "key") == LABEL && text(e, "operator") == "In");
        let values = ours.into_iter().flat_map(|e| list(e, "/values"));
        let before = words.len();
        words.extend(values.map(|value| value.as_str().map(Word::of_label)));
        if words.len() == before {
            return Nodes::Any;
        }
    }
    match words.first() {
        Some(Some(first)) if words.iter().all(|word| *word == Some(*first)) => Nodes::Only(*first),
        _ => Nodes::Any,
    }
}
