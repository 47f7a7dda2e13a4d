//! The files below `/run/mpsgate`, all of root, through which daemon and shim exchange data.
//!
//! The shim reads the snapshot only if a spec shows a signal, so that ordinary containers never
//! depend on it. If it is absent or unreadable, every card counts as managed.

use std::collections::BTreeMap;

use mpsgate_host::format::{self, FormatError};
use mpsgate_model::{DeviceNode, Grant, NodeCard};
use mpsgate_policy::{Cards, Majors, Node, Schedule, SharedMemory};
use serde::{Deserialize, Serialize};

/// Format of both files.
pub const FILES_FORMAT: u32 = 1;

/// The facts of the node that the shim needs to evaluate a specification; the daemon writes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSnapshot {
    /// [`FILES_FORMAT`].
    pub format: u32,
    /// Inode of the IPC namespace that the MPS control daemons live in.
    pub ipc_inode: u64,
    /// Device and inode of the MPS servers' `/dev/shm`; absent if there is nothing.
    pub shm: Option<(u64, u64)>,
    /// How they share memory with their clients: a word of [`SharedMemory`].
    pub shared_memory: String,
    /// Whether a kubelet runs here: then local requests are not trusted by default.
    pub kubelet: bool,
    /// All cards.
    pub cards: Vec<NodeCard>,
    /// NVIDIA's character majors by name as in `/proc/devices` (`nvidia`, `nvidia-uvm`,
    /// `nvidia-caps`, …).
    pub majors: BTreeMap<String, u32>,
    /// Names of swarm resource variables, from the NVIDIA toolkit's `swarm-resource`.
    pub swarm_resources: Vec<String>,
    /// Prefixes of annotations that name CDI devices, from the NVIDIA toolkit's
    /// `annotation-prefixes`.
    pub annotation_prefixes: Vec<String>,
    /// Device nodes of managed cards that other drivers have made: `/dev/dri`, `/dev/vfio`,
    /// `/dev/dxg`.
    pub other_nodes: Vec<DeviceNode>,
    /// Whether mpsgate's device plugin serves here: a pod's annotations then have no effect without
    /// its token.
    pub device_plugin: bool,
    /// Whether its cards are shared without MPS.
    pub share: bool,
}

impl NodeSnapshot {
    /// Reads the file's bytes.
    ///
    /// # Errors
    /// If another version wrote them, or they are not a file of mpsgate.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        format::read(bytes, FILES_FORMAT)
    }
}

/// The part of it that a decision needs.
impl From<NodeSnapshot> for Node {
    fn from(snapshot: NodeSnapshot) -> Self {
        let mut majors = Majors::default();
        for (name, major) in &snapshot.majors {
            majors.insert(name, *major);
        }
        Self {
            cards: Cards::Known(snapshot.cards),
            majors,
            ipc_inode: Some(snapshot.ipc_inode),
            shm: snapshot.shm,
            shared_memory: SharedMemory::of_word(&snapshot.shared_memory),
            swarm_resources: snapshot.swarm_resources,
            annotation_prefixes: snapshot.annotation_prefixes,
            other_nodes: snapshot.other_nodes,
            schedule: if snapshot.share { Schedule::Share } else { Schedule::Mps },
            device_plugin: snapshot.device_plugin,
        }
    }
}

/// A grant as it was applied to a container: the hook checks it, and `exec` adds it to a process.
/// The shim writes it at `create`, the daemon removes it when the grant ends. Its file's name is
/// [`mpsgate_model::GrantKey::record_name`].
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

impl ExecRecord {
    /// Reads the file's bytes.
    ///
    /// # Errors
    /// If another version wrote them, or they are not a file of mpsgate.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        format::read(bytes, FILES_FORMAT)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn a_decision_sees_the_node_as_the_daemon_wrote_it() {
        let snapshot: NodeSnapshot = serde_json::from_str(
            r#"{"format": 1, "ipc_inode": 7, "shm": null, "shared_memory": "", "kubelet": false,
                "cards": [{"uuid": "GPU-5d4f8ba4-5a3e-4b9b-8f6e-2a1c3e5d7f90", "index": 1,
                           "minor": 2, "managed": true}],
                "majors": {"nvidia": 195, "nvidia-uvm": 510, "nvidia-caps": 511},
                "swarm_resources": ["DOCKER_RESOURCE_GPU"], "annotation_prefixes": [],
                "other_nodes": [], "device_plugin": false, "share": false}"#,
        )
        .unwrap();
        let card = snapshot.cards.first().unwrap().clone();
        let majors = Majors { caps: Some(511), others: vec![510], ..Majors::default() };
        let node = Node {
            cards: Cards::Known(vec![NodeCard {
                uuid: card.uuid,
                index: 1,
                minor: 2,
                managed: true,
            }]),
            majors,
            ipc_inode: Some(7),
            shm: None,
            shared_memory: SharedMemory::Unknown,
            swarm_resources: vec!["DOCKER_RESOURCE_GPU".to_owned()],
            annotation_prefixes: Vec::new(),
            other_nodes: Vec::new(),
            schedule: Schedule::Mps,
            device_plugin: false,
        };
        assert_eq!(Node::from(snapshot), node);
    }
}
