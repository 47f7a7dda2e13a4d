//! A card as every program knows it.

use std::fmt;

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

impl WedgeCause {
    /// Why the control daemon `pid` does not answer, as the end of a sentence that says that it
    /// does not, and what to do.
    #[must_use]
    pub fn explain(&self, pid: impl fmt::Display) -> (String, String) {
        const RESTART: &str = "once its containers have ended: mpsgate mps restart GPU";
        match self {
            Self::Stopped => (
                format!(": somebody stopped it, pid {pid}"),
                format!("let it go on: kill -CONT {pid}"),
            ),
            Self::ServerStopped { server } => (
                format!(": somebody stopped its MPS server, pid {server}"),
                format!("let it go on: kill -CONT {server}"),
            ),
            Self::LogBlocked => (
                ": its log was full".to_owned(),
                format!("systemctl restart mpsgated reads it; {RESTART}"),
            ),
            Self::Unknown => (
                String::new(),
                format!(
                    "end what else on this node speaks with it, such as nvidia-cuda-mps-control in \
                     a terminal; see what it does: cat /proc/{pid}/stack; {RESTART}"
                ),
            ),
        }
    }
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
