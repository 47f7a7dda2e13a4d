//! What is read of the API server's objects: only the fields that mpsgate uses, as Kubernetes 1.20
//! to today name them.
//!
//! Not k8s-openapi's types: those hold whole pods, and refuse what a newer server writes
//! differently.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::{ClusterResourceScope, NamespaceResourceScope};
use mpsgate_model::{Taint, Toleration};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// `null` where Go writes an empty list or map.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

macro_rules! resource {
    ($name:ident, $scope:ty, $group:literal, $kind:literal, $plural:literal) => {
        impl Resource for $name {
            type DynamicType = ();
            type Scope = $scope;
            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }
            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }
            fn version((): &()) -> Cow<'_, str> {
                "v1".into()
            }
            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct WirePod {
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) spec: PodSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) status: PodStatus,
}
resource!(WirePod, NamespaceResourceScope, "", "Pod", "pods");

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    pub(crate) node_name: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) security_context: SecurityContext,
    pub(crate) restart_policy: Option<String>,
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
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) spec: NodeSpec,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) status: NodeStatus,
}
resource!(WireNode, ClusterResourceScope, "", "Node", "nodes");

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSpec {
    #[serde(deserialize_with = "nullable")]
    pub(crate) taints: Vec<Taint>,
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
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: Value,
}
resource!(WireSlice, ClusterResourceScope, "resource.k8s.io", "ResourceSlice", "resourceslices");

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct WireRuntimeClass {
    pub(crate) metadata: ObjectMeta,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) handler: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) scheduling: Scheduling,
}
resource!(WireRuntimeClass, ClusterResourceScope, "node.k8s.io", "RuntimeClass", "runtimeclasses");

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Scheduling {
    #[serde(deserialize_with = "nullable")]
    pub(crate) node_selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) tolerations: Vec<Toleration>,
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
