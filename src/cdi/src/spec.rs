//! The file format, CDI 1.1.0.

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
    #[allow(
        dead_code,
        reason = "every version up to 1.1.0 reads the same; newer fields are refused by name"
    )]
    cdi_version: String,
    pub(crate) kind: String,
    #[allow(dead_code, reason = "for other readers")]
    #[serde(default)]
    annotations: Option<Ignored>,
    #[serde(default)]
    devices: Vec<Device>,
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
    name: String,
    #[allow(dead_code, reason = "for other readers")]
    #[serde(default)]
    annotations: Option<Ignored>,
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
    #[allow(dead_code, reason = "CDI mounts are binds, by their options")]
    #[serde(rename = "type")]
    kind: Option<String>,
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
