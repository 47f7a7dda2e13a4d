//! The file format of the Container Device Interface 1.1.0 (`SPEC.md`): which device nodes, mounts,
//! hooks and variables a device needs in a container. A field that is not known is an error,
//! because what it asks for would silently be missing.
#![allow(clippy::zero_sized_map_values, reason = "of an annotation only counts that it is there")]

mod version;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// A file.
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
    /// What any of its devices needs.
    #[serde(default)]
    pub container_edits: ContainerEdits,
}

impl Spec {
    /// What this device needs beside; `None` where there is none of that name.
    #[must_use]
    pub fn edits_of(&self, device: &str) -> Option<&ContainerEdits> {
        let named = |found: &&Device| found.name == device;
        self.devices.iter().find(named).map(|found| &found.container_edits)
    }

    /// Checks its version: whether it is known, and has what the file uses.
    ///
    /// # Errors
    /// What is wrong with it, as half a sentence.
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
    /// Of CPU cache and memory bandwidth.
    pub intel_rdt: Option<IgnoredAny>,
    /// Network devices.
    pub net_devices: Vec<IgnoredAny>,
}

/// A device node. What it may be opened for, its mode and its owner are read past.
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
    /// Of its number.
    pub major: Option<u32>,
    /// Of its number.
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
    /// As of mount(8).
    #[serde(default)]
    pub options: Vec<String>,
    /// It tells the version.
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
    /// With its name first.
    #[serde(default)]
    pub args: Vec<String>,
    /// `NAME=VALUE`.
    #[serde(default)]
    pub env: Vec<String>,
    /// In seconds.
    pub timeout: Option<u32>,
}
