//! What the daemon gave a container.

use serde::{Deserialize, Serialize};

use crate::{ComputeShare, GpuUuid, GrantKey, Mib, Priority};

/// How firmly a grant's memory limit holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Guarantee {
    /// The MPS limit alone: per process, by the client's environment and the server's cap.
    Mps,
}

impl Guarantee {
    /// The word that status, metrics and pages use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mps => "mps",
        }
    }
}

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

/// What the daemon gave a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Which life of which container.
    pub key: GrantKey,
    /// The cards; exactly one under MPS, because a CUDA process has one pipe directory.
    pub cards: Vec<GrantedCard>,
    /// GPU memory on each card.
    pub memory: Mib,
    /// Host uid of the CUDA processes, which is the uid of the card's MPS server.
    pub uid: u32,
    /// Share of the card's SMs, where one was asked for.
    pub compute: Option<ComputeShare>,
    /// Scheduling priority among the card's clients.
    pub priority: Priority,
    /// Host directory that holds the client's end of the MPS channel.
    pub client_dir: String,
    /// Device nodes: the card's, and the driver's shared ones.
    pub devices: Vec<DeviceNode>,
    /// How firmly the limit holds.
    pub guarantee: Guarantee,
}
