//! `[kubernetes]`.

use std::path::PathBuf;

use super::Switch;

/// `[kubernetes]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Kubernetes {
    /// Whether the device plugin serves.
    pub device_plugin: Switch,
    /// MiB per device of further resources, `mpsgate.io/gpu-mem-<N>mi`.
    pub memory_units_mib: Vec<u32>,
    /// GiB of nos' slices, `nvidia.com/gpu-<N>gb`.
    pub slices_gib: Vec<u32>,
    /// The uid that a container with a slice must have.
    pub slices_uid: SlicesUid,
    /// Whether claims of Dynamic Resource Allocation are served; `auto` is off.
    pub dra: Switch,
    /// Whether claims that kube-scheduler makes of `resources.limits` are served.
    pub dra_extended_resources: bool,
    /// How the API server is reached.
    pub kubeconfig: Kubeconfig,
    /// The node's name in the cluster.
    pub node_name: NodeName,
}

/// `kubernetes.node_name`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NodeName {
    /// The value of the variable `NODE_NAME`, else the host's name in lower case.
    #[default]
    Auto,
    /// This name.
    Named(String),
}

/// `kubernetes.slices_uid`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlicesUid {
    /// Any uid.
    #[default]
    Any,
    /// Only this uid.
    Only(u32),
}

/// `kubernetes.kubeconfig`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Kubeconfig {
    /// By the service account of mpsgated's pod; not at all outside of a pod.
    #[default]
    Auto,
    /// Not at all.
    Off,
    /// By this file, which is read at each connection.
    File(PathBuf),
}

impl Default for Kubernetes {
    fn default() -> Self {
        Self {
            device_plugin: Switch::Auto,
            memory_units_mib: Vec::new(),
            slices_gib: Vec::new(),
            slices_uid: SlicesUid::Any,
            dra: Switch::Auto,
            dra_extended_resources: false,
            kubeconfig: Kubeconfig::Auto,
            node_name: NodeName::Auto,
        }
    }
}
