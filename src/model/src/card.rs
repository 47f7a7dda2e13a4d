//! A card as every program knows it.

use serde::{Deserialize, Serialize};

use crate::GpuUuid;

/// A card of the node, as `node.json` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCard {
    /// NVML's UUID.
    pub uuid: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// Minor of its device node.
    pub minor: u32,
    /// Whether it is handed to mpsgate.
    pub managed: bool,
}
