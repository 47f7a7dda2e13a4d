//! The state of kubelet and the API server, for `status`.

use serde::{Deserialize, Serialize};

/// One resource that the device plugin serves to kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceStatus {
    /// Its name, as pods ask for it.
    pub resource: String,
    /// Since when kubelet reads its list, in milliseconds since 1970; absent while it does not.
    pub registered_ms: Option<u64>,
    /// Devices of the list.
    pub devices: u64,
    /// Those devices that are healthy.
    pub healthy: u64,
    /// Containers that got a token since mpsgated started.
    pub allocations: u64,
    /// The problem, if there is one.
    pub problem: Option<String>,
    /// The remedy.
    pub hint: Option<String>,
}

/// The state of the API server of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiServerStatus {
    /// The node's name in the cluster.
    pub node: String,
    /// Pods that are bound to it, as far as mpsgated knows.
    pub pods: u64,
    /// Why mpsgated cannot follow it, or cannot report to it.
    pub problem: Option<String>,
    /// The remedy.
    pub hint: Option<String>,
    /// Events that were dropped because too many waited.
    pub events_dropped: u64,
    /// Pods of the node that cannot be read, each with its reason.
    #[serde(default)]
    pub left_out: Vec<String>,
}

/// The state of claims of Dynamic Resource Allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimsStatus {
    /// Since when the driver is registered with kubelet, in milliseconds since 1970; absent if it
    /// is not.
    pub registered_ms: Option<u64>,
    /// Claims that are prepared for pods of this node.
    pub prepared: u64,
    /// The problem, if there is one.
    pub problem: Option<String>,
    /// The remedy.
    pub hint: Option<String>,
}
