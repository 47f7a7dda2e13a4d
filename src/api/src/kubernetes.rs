//! How it stands with kubelet and with the API server, for `status`.

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
    /// Those of them that can be had.
    pub healthy: u64,
    /// Containers that were given a token since mpsgated started.
    pub allocations: u64,
    /// What is wrong.
    pub problem: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

/// How it stands with the API server of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiServerStatus {
    /// The node's name there.
    pub node: String,
    /// Pods that are bound to it, as far as is known.
    pub pods: u64,
    /// Why it is not followed, or not told.
    pub problem: Option<String>,
    /// What to do about that.
    pub hint: Option<String>,
    /// Events that were not written, because too many waited.
    pub events_dropped: u64,
    /// Pods of the node that cannot be read, each with its reason.
    #[serde(default)]
    pub left_out: Vec<String>,
}

/// How it stands with claims of Dynamic Resource Allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimsStatus {
    /// Since when kubelet knows the driver, in milliseconds since 1970; absent while it does not.
    pub registered_ms: Option<u64>,
    /// Claims that are prepared for pods of this node.
    pub prepared: u64,
    /// What is wrong.
    pub problem: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}
