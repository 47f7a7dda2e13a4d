//! What is read of the API server's objects: only the fields that mpsgate uses, as Kubernetes 1.20
//! to today name them.
//!
//! Not k8s-openapi's types: those hold whole pods, and refuse what a newer server writes
//! differently. Their metadata also has `managedFields`, of which whoever may write an object
//! chooses the depth.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::read::{Meta, Object, member, member_as, nullable};

/// In an `impl Object`: its names, and where they stand in it.
macro_rules! named {
    ($kind:literal, $group:literal, $plural:literal) => {
        const KIND: &'static str = $kind;
        const GROUP: &'static str = $group;
        const PLURAL: &'static str = $plural;
        fn name(&self) -> Option<&str> {
            self.metadata.name.as_deref()
        }
        fn version(&self) -> Option<&str> {
            self.metadata.resource_version.as_deref()
        }
    };
    ($kind:literal, $group:literal, $plural:literal, namespaced) => {
        named!($kind, $group, $plural);
        fn namespace(&self) -> Option<&str> {
            self.metadata.namespace.as_deref()
        }
    };
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct WirePod {
    pub(crate) metadata: Meta,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) spec: PodSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) status: PodStatus,
}

impl Object for WirePod {
    named!("Pod", "api/v1", "pods", namespaced);

    /// What it asks for counts on its node, as far as it can be read.
    fn part(json: &str, ours: bool) -> Option<Self> {
        let spec = member(json, "spec").filter(|_| ours)?;
        let spec = serde_json::from_str(spec).ok().or_else(|| PodSpec::lenient(spec))?;
        let metadata = Meta::lenient(member(json, "metadata")?);
        Some(Self { metadata, spec, status: member_as(json, "status").unwrap_or_default() })
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    pub(crate) node_name: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) security_context: SecurityContext,
    pub(crate) restart_policy: Option<String>,
    pub(crate) runtime_class_name: Option<String>,
    /// Labels that its node must have.
    #[serde(deserialize_with = "nullable")]
    pub(crate) node_selector: BTreeMap<String, String>,
    /// Kubernetes 1.26: while there is one, no scheduler looks at it.
    #[serde(deserialize_with = "nullable")]
    pub(crate) scheduling_gates: Vec<serde::de::IgnoredAny>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) containers: Vec<ContainerSpec>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) init_containers: Vec<ContainerSpec>,
    /// Kubernetes 1.34, and before it where a gate was on.
    #[serde(deserialize_with = "nullable")]
    pub(crate) resource_claims: Vec<PodClaim>,
}

impl PodSpec {
    /// What can be read of one that cannot be read as a whole: each container that can be. `None`
    /// where there is none.
    fn lenient(json: &str) -> Option<Self> {
        let containers = |name: &str| -> Vec<ContainerSpec> {
            let all = member(json, name).and_then(|all| serde_json::from_str(all).ok());
            let all: Vec<&RawValue> = all.unwrap_or_default();
            all.into_iter().filter_map(|one| serde_json::from_str(one.get()).ok()).collect()
        };
        let spec = Self {
            node_name: member_as(json, "nodeName"),
            security_context: member_as(json, "securityContext").unwrap_or_default(),
            restart_policy: member_as(json, "restartPolicy"),
            runtime_class_name: member_as(json, "runtimeClassName"),
            node_selector: member_as(json, "nodeSelector").unwrap_or_default(),
            scheduling_gates: member_as(json, "schedulingGates").unwrap_or_default(),
            containers: containers("containers"),
            init_containers: containers("initContainers"),
            resource_claims: member_as(json, "resourceClaims").unwrap_or_default(),
        };
        (!spec.containers.is_empty() || !spec.init_containers.is_empty()).then_some(spec)
    }
}

/// A claim that a pod names, or has of a template. The latter's name is in its status alone.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodClaim {
    pub(crate) resource_claim_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerSpec {
    pub(crate) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) security_context: SecurityContext,
    pub(crate) restart_policy: Option<String>,
    /// Kubernetes 1.34: each says when a container starts again that its policy would leave.
    #[serde(deserialize_with = "nullable")]
    pub(crate) restart_policy_rules: Vec<serde::de::IgnoredAny>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) resources: Resources,
}

/// A pod's or a container's.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SecurityContext {
    pub(crate) run_as_user: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Resources {
    #[serde(deserialize_with = "nullable")]
    pub(crate) limits: BTreeMap<String, Quantity>,
}

/// The API server writes strings; the grammar allows a bare number too.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Quantity {
    Text(String),
    Number(serde_json::Number),
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    pub(crate) phase: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) start_time: Option<serde::de::IgnoredAny>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) init_container_statuses: Vec<ContainerStatus>,
    /// Of those that a template made.
    #[serde(deserialize_with = "nullable")]
    pub(crate) resource_claim_statuses: Vec<PodClaim>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerStatus {
    pub(crate) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) state: ContainerState,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ContainerState {
    pub(crate) running: Option<serde::de::IgnoredAny>,
    pub(crate) terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Terminated {
    pub(crate) exit_code: i32,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct WireNode {
    pub(crate) metadata: Meta,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) status: NodeStatus,
}

impl Object for WireNode {
    named!("Node", "api/v1", "nodes");

    /// What of mpsgate's stands on it. No pod is sent to it.
    fn part(json: &str, _ours: bool) -> Option<Self> {
        let metadata = Meta::lenient(member(json, "metadata")?);
        Some(Self { metadata, status: member_as(json, "status").unwrap_or_default() })
    }
}

/// A node as a place for pods. To one that cannot be read none is sent, so nothing of it counts.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub(crate) struct NodePlace(pub(crate) WireNode);

impl Object for NodePlace {
    const KIND: &'static str = WireNode::KIND;
    const GROUP: &'static str = WireNode::GROUP;
    const PLURAL: &'static str = WireNode::PLURAL;
    fn name(&self) -> Option<&str> {
        self.0.name()
    }
    fn version(&self) -> Option<&str> {
        self.0.version()
    }
}

/// What its spec says is compared, and not read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireSlice {
    /// Absent in a list.
    #[serde(default)]
    pub(crate) api_version: String,
    #[serde(default)]
    pub(crate) kind: String,
    pub(crate) metadata: KeptMeta,
    #[serde(default)]
    pub(crate) spec: Value,
}

impl Object for WireSlice {
    named!("ResourceSlice", "apis/resource.k8s.io/v1", "resourceslices");
}

/// Metadata of what is written back as a whole: what the API server keeps by itself is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct KeptMeta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) generate_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resource_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finalizers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct WireRuntimeClass {
    pub(crate) metadata: Meta,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) handler: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) scheduling: Scheduling,
}

impl Object for WireRuntimeClass {
    named!("RuntimeClass", "apis/node.k8s.io/v1", "runtimeclasses");
}

/// What is read of an object that was written: that it was.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct WireEvent {
    pub(crate) metadata: Meta,
}

impl Object for WireEvent {
    named!("Event", "api/v1", "events", namespaced);
}

/// A claim whose status was written: nobody reads what came of it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct WrittenClaim {
    metadata: Meta,
}

impl Object for WrittenClaim {
    named!("ResourceClaim", "apis/resource.k8s.io/v1", "resourceclaims", namespaced);
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireLease {
    #[serde(default)]
    pub(crate) api_version: String,
    #[serde(default)]
    pub(crate) kind: String,
    pub(crate) metadata: KeptMeta,
    #[serde(default, deserialize_with = "timely")]
    pub(crate) spec: Option<LeaseSpec>,
}

/// A time that cannot be read, such as one of the year 10000, is none: nobody counts by what is
/// written, and whoever writes it must not keep the lease from everybody.
fn timely<'de, D: Deserializer<'de>>(from: D) -> Result<Option<LeaseSpec>, D::Error> {
    let mut spec = Value::deserialize(from)?;
    if let Some(fields) = spec.as_object_mut() {
        let can_be_read = |time: &Value| MicroTime::deserialize(time).is_ok();
        fields.retain(|name, value| !name.ends_with("Time") || can_be_read(value));
    }
    serde_json::from_value(spec).map_err(D::Error::custom)
}

impl Object for WireLease {
    named!("Lease", "apis/coordination.k8s.io/v1", "leases", namespaced);
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Scheduling {
    #[serde(deserialize_with = "nullable")]
    pub(crate) node_selector: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeStatus {
    #[serde(deserialize_with = "nullable")]
    pub(crate) capacity: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) allocatable: BTreeMap<String, Quantity>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) addresses: Vec<NodeAddress>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) conditions: Vec<NodeCondition>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeAddress {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) address: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeCondition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) reason: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) message: String,
}
