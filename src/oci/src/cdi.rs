//! The file format of the Container Device Interface 1.1.0 (`SPEC.md`): the device nodes, mounts,
//! hooks and variables that a device needs in a container. An unknown field is an error, because
//! what it asks for would silently be missing.
#![allow(clippy::zero_sized_map_values, reason = "of an annotation only counts that it is there")]

mod version;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// A CDI specification.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Spec {
    cdi_version: String,
    /// `vendor/class` of its devices.
    pub kind: String,
    #[serde(default)]
    annotations: BTreeMap<String, IgnoredAny>,
    #[serde(default)]
    devices: Vec<Device>,
    /// What every one of its devices needs.
    #[serde(default)]
    pub container_edits: ContainerEdits,
}

impl Spec {
    /// What this device needs in addition; `None` if there is no device of that name.
    #[must_use]
    pub fn edits_of(&self, device: &str) -> Option<&ContainerEdits> {
        let named = |found: &&Device| found.name == device;
        self.devices.iter().find(named).map(|found| &found.container_edits)
    }

    /// Checks the version: whether it is known, and whether it has everything that the file uses.
    ///
    /// # Errors
    /// The mistake, as half a sentence.
    pub fn check_version(&self) -> Result<(), String> {
        version::check(self)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Device {
    name: String,
    #[serde(default)]
    annotations: BTreeMap<String, IgnoredAny>,
    #[serde(default)]
    container_edits: ContainerEdits,
}

/// Changes of a container.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ContainerEdits {
    /// `NAME=VALUE`.
    pub env: Vec<String>,
    /// Device nodes.
    pub device_nodes: Vec<DeviceNode>,
    /// Binds.
    pub mounts: Vec<Mount>,
    /// OCI hooks.
    pub hooks: Vec<Hook>,
    /// Groups of the process.
    pub additional_gids: Vec<u32>,
    /// Rules of CPU cache and memory bandwidth.
    pub intel_rdt: Option<IgnoredAny>,
    /// Network devices.
    pub net_devices: Vec<IgnoredAny>,
}

/// A device node. Its access, mode and owner are ignored.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeviceNode {
    /// In the container.
    pub path: String,
    /// On the host, where it differs.
    pub host_path: Option<String>,
    /// `c`, `u`, `b` or `p`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Major number.
    pub major: Option<u32>,
    /// Minor number.
    pub minor: Option<u32>,
    #[serde(rename = "permissions")]
    _permissions: Option<String>,
    #[serde(rename = "fileMode")]
    _file_mode: Option<u32>,
    #[serde(rename = "uid")]
    _uid: Option<u32>,
    #[serde(rename = "gid")]
    _gid: Option<u32>,
}

/// A bind, by its options.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Mount {
    /// Its source.
    pub host_path: String,
    /// Its destination.
    pub container_path: String,
    /// Options as in mount(8).
    #[serde(default)]
    pub options: Vec<String>,
    /// The type; it needs a newer version of the format.
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// An OCI hook.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Hook {
    /// Its stage.
    pub hook_name: String,
    /// The program.
    pub path: String,
    /// Arguments, the name first.
    #[serde(default)]
    pub args: Vec<String>,
    /// `NAME=VALUE`.
    #[serde(default)]
    pub env: Vec<String>,
    /// Timeout in seconds.
    pub timeout: Option<u32>,
}
