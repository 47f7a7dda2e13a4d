//! The fields of a review that are read, and no others.

use serde::de::{IgnoredAny, MapAccess};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::kept_fields::{Kept, Quantities};
use super::shape::{Element, Flag, List, Object, Shape, Text, Texts, deserialized_by_shape};
use mpsgate_policy::{clean, may_read_variable};

/// What gives a container its cards, where NVIDIA's runtime is the engine's.
pub(super) const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Review<'a> {
    #[serde(borrow)]
    pub(super) request: Object<Request<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Request<'a> {
    pub(super) uid: Text,
    pub(super) kind: Object<Kind>,
    pub(super) sub_resource: Text,
    pub(super) namespace: Text,
    pub(super) operation: Text,
    pub(super) user_info: Object<User>,
    /// As text: which object it is, the fields above say, and they may come after it.
    #[serde(borrow)]
    pub(super) object: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) old_object: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Kind {
    pub(super) kind: Text,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct User {
    pub(super) username: Text,
    pub(super) groups: List<Text>,
}

/// A pod, or a template of pods.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) metadata: Object<Metadata>,
    pub(super) spec: Object<Spec>,
}

/// Of any object.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Head {
    pub(super) metadata: Object<Metadata>,
}

/// Of a pod that may be of any length.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Bound {
    pub(super) spec: Object<Node>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Node {
    pub(super) node_name: Text,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    pub(super) labels: Kept,
    pub(super) annotations: Kept,
    pub(super) owner_references: List<Object<Owner>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Owner {
    controller: Flag,
}

/// The one that controls it.
impl Element<'_> for Owner {
    fn matters(&self) -> bool {
        self.controller.is(true)
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    #[serde(rename = "hostIPC")]
    pub(super) host_ipc: Flag,
    #[serde(rename = "hostPID")]
    pub(super) host_pid: Flag,
    pub(super) host_users: Flag,
    pub(super) node_name: Text,
    pub(super) scheduler_name: Text,
    pub(super) runtime_class_name: Text,
    pub(super) node_selector: Texts,
    pub(super) tolerations: List<Object<Toleration>>,
    pub(super) affinity: Object<Affinity>,
    pub(super) containers: List<Object<Container>>,
    pub(super) init_containers: List<Object<Container>>,
    pub(super) ephemeral_containers: List<Object<Container>>,
    pub(super) volumes: List<Volume>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Container {
    pub(super) name: Text,
    pub(super) image: Text,
    pub(super) security_context: Object<Security>,
    pub(super) env: List<Object<Variable>>,
    pub(super) resources: Object<Resources>,
    pub(super) volume_mounts: List<Object<Mount>>,
    pub(super) volume_devices: List<Object<Mount>>,
}

impl Element<'_> for Container {}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Security {
    pub(super) privileged: Flag,
    pub(super) capabilities: Object<Capabilities>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Capabilities {
    pub(super) add: List<Text>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Variable {
    pub(super) name: Text,
    value: Text,
    #[serde(rename = "valueFrom")]
    from: Option<IgnoredAny>,
}

impl Variable {
    /// Its text, where that stands in the pod: without any it is empty.
    pub(super) fn text(&self) -> Option<&str> {
        self.from.is_none().then(|| self.value.as_str())
    }
}

impl Element<'_> for Variable {
    fn matters(&self) -> bool {
        may_read_variable(self.name.as_str())
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Resources {
    pub(super) requests: Quantities,
    pub(super) limits: Quantities,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Mount {
    pub(super) name: Text,
    pub(super) mount_path: Text,
    pub(super) sub_path: Text,
    /// The same with references to the container's variables.
    pub(super) sub_path_expr: Text,
}

impl Element<'_> for Mount {
    fn matters(&self) -> bool {
        !self.name.as_str().is_empty()
    }
}

/// A volume. What it is, one key beside its name says; any key, as Kubernetes gets new ones.
#[derive(Debug, Default)]
pub(super) struct Volume {
    pub(super) name: Text,
    /// Cleaned.
    host_path: Option<String>,
    kind: Option<String>,
}

impl Volume {
    /// Its key. A volume that says nothing is an `emptyDir` by Kubernetes' defaults.
    pub(super) fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("emptyDir")
    }

    /// Where it is on the node.
    pub(super) fn host_path(&self) -> Option<&str> {
        self.host_path.as_deref()
    }
}

impl Element<'_> for Volume {
    fn matters(&self) -> bool {
        !self.name.as_str().is_empty()
    }
}

deserialized_by_shape! { Volume; }

impl<'de> Shape<'de> for Volume {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut volume = Self::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "name" => volume.name = map.next_value()?,
                "hostPath" => {
                    let host: Object<HostPath> = map.next_value()?;
                    volume.host_path = host.0.map(|host| clean(host.path.as_str()).into_owned());
                    if volume.host_path.is_some() {
                        volume.kind = Some(key);
                    }
                }
                _ => {
                    // A source that is null is none.
                    if map.next_value::<Option<IgnoredAny>>()?.is_some() {
                        volume.kind = Some(key);
                    }
                }
            }
        }
        Ok(volume)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct HostPath {
    pub(super) path: Text,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Affinity {
    pub(super) node_affinity: Object<NodeAffinity>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub(super) required: Object<Required>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Required {
    pub(super) node_selector_terms: List<Object<Term>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Term {
    pub(super) match_expressions: List<Object<Expression>>,
    pub(super) match_fields: List<Object<Expression>>,
}

impl Element<'_> for Term {}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Expression {
    pub(super) key: Text,
    pub(super) operator: Text,
    pub(super) values: List<Text>,
}

impl Element<'_> for Expression {
    fn matters(&self) -> bool {
        !self.key.as_str().is_empty()
    }
}

/// Compared with that of before, and not read.
#[derive(Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Toleration {
    key: Text,
    operator: Text,
    value: Text,
    effect: Text,
}

impl Element<'_> for Toleration {}

/// What makes pods.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Owning<'a> {
    pub(super) metadata: Object<Metadata>,
    #[serde(borrow)]
    pub(super) spec: Object<Making<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Making<'a> {
    /// As text: whether it has changed is a question of its bytes.
    #[serde(borrow)]
    pub(super) template: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) job_template: Object<JobTemplate<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct JobTemplate<'a> {
    #[serde(borrow)]
    pub(super) spec: Object<Job<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Job<'a> {
    #[serde(borrow)]
    pub(super) template: Option<&'a RawValue>,
}
