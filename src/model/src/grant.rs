//! What the daemon gave a container.

use std::path::Path;

use mpsgate_host::door::Kind;
use serde::{Deserialize, Serialize};

use crate::{ComputeShare, GpuUuid, GrantKey, Mib, Priority};

/// How firmly a grant's memory limit holds; a firmer one is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Guarantee {
    /// Nothing does: the container shares its cards by agreement, without MPS. An mpsgate that does
    /// not know the word refuses what holds it, and must: it would bring MPS up under these
    /// containers.
    None,
    /// The MPS limit alone, which the client's own library keeps: per process, the lower one of its
    /// variable and of what the server says. A client can drop it.
    Mps,
    /// The same, and mpsgated ends a container whose processes take more in sum. Holds while the
    /// watchdog sees the memory of the card's processes, so it is told by the moment and never
    /// recorded. `mps+gate` was a level above it, for a server that holds a client by itself. No
    /// driver's does, so what an older mpsgate wrote under that word means this one.
    #[serde(rename = "mps+watchdog", alias = "mps+gate")]
    MpsWatchdog,
    /// The driver holds the container's cgroup to the grant, all its processes in sum, whatever
    /// they do with their environment (r615 and newer, cgroup v2). Told while it is seen to hold,
    /// and never recorded here: see [`Entry::cgroup_limit`](crate::ledger::Entry::cgroup_limit).
    Cgroup,
}

crate::words!(Guarantee:
    None = "none", Mps = "mps", MpsWatchdog = "mps+watchdog", Cgroup = "cgroup",
);

/// One card of a grant, named in each way that an injection may need.
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

/// Profilers and debuggers open it, CUDA does not: NVIDIA's own specifications leave it out where
/// the driver has not made it.
pub const UVM_TOOLS: &str = "/dev/nvidia-uvm-tools";

impl DeviceNode {
    /// Whether a container works without it.
    #[must_use]
    pub fn is_optional(&self) -> bool {
        self.path == UVM_TOOLS
    }
}

/// What the node's CDI specifications say that a card needs in a container.
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

/// The answer to what a card needs in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cdi {
    /// No specification of the node names the card.
    #[default]
    Absent,
    /// These edits.
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
    /// Share of the card's SMs, where one was asked for.
    pub compute: Option<ComputeShare>,
    /// Scheduling priority among the card's clients.
    pub priority: Priority,
    /// Host directory that holds its door; empty without MPS.
    pub client_dir: String,
    /// Device nodes: the cards', and the driver's shared ones.
    pub devices: Vec<DeviceNode>,
    /// How firmly the limit holds.
    pub guarantee: Guarantee,
    /// Of a plain process that a user has started: the user, as
    /// [`user_shown`](crate::user_shown) shows him.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

impl Grant {
    /// How it is shown and taken: `web`, `alice/train`.
    #[must_use]
    pub fn name(&self) -> String {
        self.key.name(self.user.as_deref())
    }

    /// Whether its CUDA processes are clients of an MPS server.
    #[must_use]
    pub fn uses_mps(&self) -> bool {
        self.guarantee != Guarantee::None
    }

    /// The kind of its door, where its end of the channel is one, which the gate serves.
    #[must_use]
    pub fn door(&self) -> Option<Kind> {
        let door = Path::new(&self.client_dir);
        let above = door.parent()?.file_name()?;
        let is_its_own = door.file_name()? == self.key.instance.as_str();
        Kind::ALL.into_iter().find(|kind| is_its_own && above == kind.directory())
    }

    /// Whether it has one.
    #[must_use]
    pub fn has_door(&self) -> bool {
        self.door().is_some()
    }
}

impl CdiEdits {
    /// Adds what another card needs; what both need comes once.
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
