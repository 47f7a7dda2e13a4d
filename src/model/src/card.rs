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
    /// The daemon was stopped (by SIGSTOP; a frozen cgroup shows as unknown).
    Stopped,
    /// Its log FIFO is full and not read: one malformed record ends the reading thread for good,
    /// and after some hundred lines the daemon blocks in its own log (measured).
    /// `MpsInstance::drain_log` of `mps` unblocks it.
    LogBlocked,
    /// The card's server, which the daemon waits for, was stopped.
    ServerStopped {
        /// The server's pid.
        server: i32,
    },
    /// The cause is unknown: it waits for a process, or works.
    Unknown,
}

/// NVML's compute modes: which processes may create contexts on a card. Its word is that of
/// `nvidia-smi -c`; a lease has the name in small letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// Removed from CUDA; still a value that old settings may hold.
    ExclusiveThread,
    /// No process.
    Prohibited,
    /// One process. Under MPS that is the server, so that no process bypasses it.
    ExclusiveProcess,
}

crate::words!(ComputeMode:
    Default = "DEFAULT", ExclusiveThread = "EXCLUSIVE_THREAD", Prohibited = "PROHIBITED",
    ExclusiveProcess = "EXCLUSIVE_PROCESS",
);
