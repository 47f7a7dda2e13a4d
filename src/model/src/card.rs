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

/// Why a living control daemon does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WedgeCause {
    /// Somebody stopped the daemon (SIGSTOP, a frozen cgroup shows as unknown).
    Stopped,
    /// Its log FIFO is full and nobody reads it: one malformed record ends the thread that does,
    /// for good, and after some hundred lines the daemon blocks in its own log (measured).
    /// `MpsInstance::drain_log` in `mps` gets it going again.
    LogBlocked,
    /// Somebody stopped the card's server, which the daemon waits for.
    ServerStopped {
        /// The server's pid.
        server: i32,
    },
    /// Nothing could be found out: it waits for somebody, or works.
    Unknown,
}

/// Who may create contexts on a card: NVML's compute modes. A word is that of `nvidia-smi -c`; a
/// lease has the name in small letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// Removed from CUDA; still a value that old settings may hold.
    ExclusiveThread,
    /// Nobody.
    Prohibited,
    /// One process: under MPS the server, so that nobody gets past it.
    ExclusiveProcess,
}

crate::words!(ComputeMode:
    Default = "DEFAULT", ExclusiveThread = "EXCLUSIVE_THREAD", Prohibited = "PROHIBITED",
    ExclusiveProcess = "EXCLUSIVE_PROCESS",
);
