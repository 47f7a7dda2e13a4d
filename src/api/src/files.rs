//! What daemon and shim tell each other through files below `/run/mpsgate`, all root's.
//!
//! The shim reads the snapshot only where a spec shows a signal, so that ordinary containers never
//! depend on it; absent or unreadable means: take every card for managed.

use std::collections::BTreeMap;

use mpsgate_allocation::{DeviceNode, GpuUuid, Grant};
use serde::{Deserialize, Serialize};

/// Format of both files.
pub const FILES_FORMAT: u32 = 1;

/// The name under which process `writer` of ours writes what becomes the file `name` by a rename.
#[must_use]
pub fn temporary_name(name: &str, writer: u32) -> String {
    format!(".{name}.mpsgate-{writer}")
}

/// The process that writes under a temporary name; `None` for every other name.
#[must_use]
pub fn temporary_writer(name: &str) -> Option<u32> {
    let (of, writer) = name.strip_prefix('.')?.rsplit_once(".mpsgate-")?;
    let plain = !of.is_empty() && writer.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| writer.parse().ok())?
}

/// What the shim must know of the node to judge a spec; written by the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSnapshot {
    /// [`FILES_FORMAT`].
    pub format: u32,
    /// Inode of the IPC namespace that the MPS control daemons live in.
    pub ipc_inode: u64,
    /// Whether a kubelet runs here: then local requests are not believed by default.
    pub kubelet: bool,
    /// All cards.
    pub cards: Vec<SnapshotCard>,
    /// NVIDIA's character majors by name as in `/proc/devices` (`nvidia`, `nvidia-uvm`,
    /// `nvidia-caps`, …).
    pub majors: BTreeMap<String, u32>,
    /// Our own directories, which no container may mount.
    pub protected: Vec<ProtectedDirectory>,
    /// Names of swarm resource variables, from the NVIDIA toolkit's `swarm-resource`.
    pub swarm_resources: Vec<String>,
    /// Nodes of managed cards that other drivers have made: `/dev/dri`, `/dev/vfio`, `/dev/dxg`. Absent in
    /// a file of an older version.
    #[serde(default)]
    pub other_nodes: Vec<DeviceNode>,
}

/// One card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotCard {
    /// NVML's UUID.
    pub uuid: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// Minor of its device node.
    pub minor: u32,
    /// Whether it is handed to mpsgate.
    pub managed: bool,
}

/// A directory by what it is, not by what it is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtectedDirectory {
    /// Where we made it, for messages.
    pub path: String,
    /// `st_dev`.
    pub dev: u64,
    /// `st_ino`.
    pub ino: u64,
}

/// A grant as it was applied to a container: what the hook checks, and what `exec` adds to a process.
/// Written by the shim at `create`, removed by the daemon when the grant ends. Its file's name is
/// [`mpsgate_allocation::GrantKey::record_name`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRecord {
    /// [`FILES_FORMAT`].
    pub format: u32,
    /// The grant.
    pub grant: Grant,
    /// Variables that are dropped from a process's own env.
    pub drop: Vec<String>,
    /// Variables that are set.
    pub set: Vec<(String, String)>,
    /// Nodes of managed cards that the container must not be able to open.
    pub closed: Vec<DeviceNode>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_temporary_name_names_its_writer() {
        assert_eq!(temporary_writer(&temporary_name("config.json", 12)), Some(12));
        assert_eq!(temporary_writer(&temporary_name("a.mpsgate-3", 4)), Some(4));
        for name in [
            "config.json",
            "config.json.mpsgate-1",
            ".mpsgate-1",
            "..mpsgate-1",
            ".c.mpsgate-",
            ".c.mpsgate-+1",
            ".c.mpsgate-1x",
            ".c.mpsgate-99999999999",
        ] {
            assert_eq!(temporary_writer(name), None, "{name}");
        }
    }
}
