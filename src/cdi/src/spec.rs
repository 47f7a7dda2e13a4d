//! The file format, CDI 1.1.0.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Anything: a field whose content does not matter here.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Ignored(
    #[allow(dead_code, reason = "read, never looked at")] serde::de::IgnoredAny,
);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Spec {
    pub(crate) cdi_version: String,
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, Ignored>,
    #[serde(default)]
    pub(crate) devices: Vec<Device>,
    #[serde(default)]
    pub(crate) container_edits: ContainerEdits,
}

impl Spec {
    pub(crate) fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Device {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, Ignored>,
    #[serde(default)]
    pub(crate) container_edits: ContainerEdits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct ContainerEdits {
    pub(crate) env: Vec<String>,
    pub(crate) device_nodes: Vec<DeviceNode>,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) hooks: Vec<Hook>,
    pub(crate) additional_gids: Vec<u32>,
    pub(crate) intel_rdt: Option<Ignored>,
    pub(crate) net_devices: Vec<Ignored>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct DeviceNode {
    pub(crate) path: String,
    pub(crate) host_path: Option<String>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) major: Option<u32>,
    pub(crate) minor: Option<u32>,
    #[allow(dead_code, reason = "a granted node is always open for reading and writing")]
    permissions: Option<String>,
    #[allow(dead_code, reason = "as above")]
    file_mode: Option<u32>,
    #[allow(dead_code, reason = "as above")]
    uid: Option<u32>,
    #[allow(dead_code, reason = "as above")]
    gid: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Mount {
    pub(crate) host_path: String,
    pub(crate) container_path: String,
    #[serde(default)]
    pub(crate) options: Vec<String>,
    /// CDI mounts are binds, by their options; it tells the version.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Hook {
    pub(crate) hook_name: String,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) args: Vec<String>,
    #[serde(default)]
    pub(crate) env: Vec<String>,
    pub(crate) timeout: Option<u32>,
}
