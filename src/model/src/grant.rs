//! What the daemon gave a container.

use std::path::Path;

use mpsgate_host::door_place::Kind;
use serde::{Deserialize, Serialize};

use crate::{ComputeShare, GpuUuid, GrantKey, Mib, Priority};

/// How firmly a grant's memory limit is enforced. A firmer level is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Guarantee {
    /// Not at all: the container shares its cards by agreement, without MPS. An mpsgate that does
    /// not know this word must refuse the ledger that has it: it would start MPS under these
    /// containers.
    None,
    /// By the MPS limit alone, which the client's own library keeps: per process, the lower one of
    /// its variable and of the server's limit. A client can drop it.
    Mps,
    /// By the same, and mpsgated ends a container whose processes take more in sum. This holds only
    /// while the watchdog sees the memory of the card's processes, so it is reported and never
    /// recorded. `mps+gate` was a level above it, for a server that limits a client by itself. No
    /// driver's does, so the word `mps+gate` of an older mpsgate means this level.
    #[serde(rename = "mps+watchdog", alias = "mps+gate")]
    MpsWatchdog,
    /// By the driver, which limits the container's cgroup: all its processes in sum, whatever they
    /// do with their environment (r615 and newer, cgroup v2). It is reported while it is seen to
    /// hold, and never recorded here: see
    /// [`Entry::cgroup_limit`](crate::ledger::Entry::cgroup_limit).
    Cgroup,
}

crate::words!(Guarantee:
    None = "none", Mps = "mps", MpsWatchdog = "mps+watchdog", Cgroup = "cgroup",
);

/// One card of a grant, with each name that an injection may need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedCard {
    /// NVML's UUID.
    pub uuid: GpuUuid,
    /// NVML's index at the time of the grant.
    pub index: u32,
    /// Minor of `/dev/nvidia<minor>`.
    pub minor: u32,
}

/// A character device that the container gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Path inside the container.
    pub path: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// Profilers and debuggers open it, CUDA does not. NVIDIA's own specifications leave it out where
/// the driver has not made it.
pub const UVM_TOOLS: &str = "/dev/nvidia-uvm-tools";

impl DeviceNode {
    /// Whether a container works without this node.
    #[must_use]
    pub fn is_optional(&self) -> bool {
        self.path == UVM_TOOLS
    }
}

/// The edits that the node's CDI specifications have for a card.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CdiEdits {
    /// Variables.
    pub env: Vec<(String, String)>,
    /// Device nodes.
    pub devices: Vec<DeviceNode>,
    /// Files of the driver.
    pub mounts: Vec<CdiMount>,
    /// Programs that the runtime runs.
    pub hooks: Vec<CdiHook>,
    /// Supplementary groups.
    pub gids: Vec<u32>,
}

/// Whether the node's CDI specifications name the card, and with which edits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cdi {
    /// No specification of the node names the card.
    #[default]
    Absent,
    /// The edits for the card.
    Edits(CdiEdits),
    /// There are specifications, and they cannot be used.
    Problem(String),
}

/// One mount of a CDI specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CdiMount {
    /// Host path.
    pub source: String,
    /// Path inside the container.
    pub destination: String,
    /// Mount options.
    pub options: Vec<String>,
}

/// One hook of a CDI specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CdiHook {
    /// OCI's name of the stage: `createContainer`, …
    pub stage: String,
    /// Program.
    pub path: String,
    /// Arguments with `argv[0]`.
    pub args: Vec<String>,
    /// Environment.
    pub env: Vec<String>,
    /// Seconds.
    pub timeout_s: Option<u32>,
}

/// What the daemon gave a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Which instance of which container.
    pub key: GrantKey,
    /// The cards, each once; exactly one under MPS, because a CUDA process has one pipe directory.
    pub cards: Vec<GrantedCard>,
    /// GPU memory on each card.
    pub memory: Mib,
    /// Host uid of the CUDA processes; under MPS the uid of the card's server.
    pub uid: u32,
    /// Share of the card's SMs, where the container asked for one.
    pub compute: Option<ComputeShare>,
    /// Scheduling priority among the card's clients.
    pub priority: Priority,
    /// Host directory that holds its door; empty without MPS.
    pub client_dir: String,
    /// Device nodes: the cards', and the driver's shared ones.
    pub devices: Vec<DeviceNode>,
    /// How firmly the limit holds.
    pub guarantee: Guarantee,
    /// The user who started it, of a plain process, as [`user_shown`](crate::user_shown) shows the
    /// user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl Grant {
    /// The name by which people see and type it: `web`, `alice/train`.
    #[must_use]
    pub fn name(&self) -> String {
        self.key.name(self.user.as_deref())
    }

    /// Whether its CUDA processes are clients of an MPS server.
    #[must_use]
    pub fn uses_mps(&self) -> bool {
        self.guarantee != Guarantee::None
    }

    /// The kind of its door, where the gate serves one for it.
    #[must_use]
    pub fn door(&self) -> Option<Kind> {
        let door = Path::new(&self.client_dir);
        let above = door.parent()?.file_name()?;
        let is_its_own = door.file_name()? == self.key.instance.as_str();
        Kind::ALL.into_iter().find(|kind| is_its_own && above == kind.directory())
    }

    /// Whether the gate serves a door for it.
    #[must_use]
    pub fn has_door(&self) -> bool {
        self.door().is_some()
    }
}

impl CdiEdits {
    /// Adds the edits of another card; an edit that both cards have is kept once.
    pub fn merge(&mut self, other: Self) {
        fn add<T: PartialEq>(to: &mut Vec<T>, from: Vec<T>) {
            for one in from {
                if !to.contains(&one) {
                    to.push(one);
                }
            }
        }
        add(&mut self.env, other.env);
        add(&mut self.devices, other.devices);
        add(&mut self.mounts, other.mounts);
        add(&mut self.hooks, other.hooks);
        add(&mut self.gids, other.gids);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::grant;

    #[test]
    fn a_door_is_known_by_where_it_lies() {
        let mut grant = grant(1, 1, 0, 1);
        let (name, other) = (grant.key.instance.to_string(), "2".repeat(32));
        for (path, door) in [
            (format!("/run/mpsgate/mps/0/containers/{name}"), Some(Kind::Container)),
            // A plain process's, or a container's of an older version.
            (format!("/run/mpsgate/mps/0/clients/{name}"), Some(Kind::Process)),
            (format!("/run/mpsgate/mps/0/clients/{other}"), None),
            (format!("/run/mpsgate/mps/0/elsewhere/{name}"), None),
            ("/run/mpsgate/mps/0/client".to_owned(), None),
            (name.clone(), None),
            (String::new(), None),
        ] {
            grant.client_dir.clone_from(&path);
            assert_eq!((grant.door(), grant.has_door()), (door, door.is_some()), "{path}");
        }
    }
}
