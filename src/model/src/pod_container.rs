//! The identity of a container in a pod.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ShareKey;

/// A container of a pod, as its engine names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodContainer {
    /// The pod's uid. A later pod of the same name has another uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// The container's name in the pod's specification.
    pub container: String,
}

/// Memory that kubelet handed out: to whom, and as which resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// The container.
    pub pod: PodContainer,
    /// Name of the resource, as kubelet counts it: `aliyun.com/gpu-mem`; [`CLAIM`](crate::CLAIM)
    /// for a claim.
    pub resource: String,
    /// The share, where the memory belongs to a claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareKey>,
}

impl fmt::Display for PodContainer {
    /// `default/web, container main`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, container {}", self.namespace, self.pod, self.container)
    }
}
