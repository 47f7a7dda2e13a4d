//! What the state must know of the node's processes, cgroups and device nodes.

use std::collections::{BTreeMap, BTreeSet};

use mpsgate_model::DeviceNode;
use mpsgate_model::ledger::{CgroupId, ProcessId};

/// Whom that is asked. A parameter, so that tests need no processes.
pub trait Machine {
    /// Whether a process lives.
    fn is_alive(&self, process: &ProcessId) -> bool;
    /// What a process is called, in a sentence.
    fn describe(&self, pid: u32) -> String;
    /// Whether a cgroup has no process, but for those in directories below it with the inodes
    /// `others`. Not where that cannot be read: memory in use is never given away.
    fn is_empty_but_for(&self, cgroup: &CgroupId, others: &BTreeSet<u64>) -> bool;
    /// The pids in a cgroup and below it.
    fn processes(&self, cgroup: &CgroupId) -> BTreeSet<u32>;
    /// Whether its directory may be the one that was named, and not one made anew.
    fn may_be_same(&self, cgroup: &CgroupId) -> bool;
    /// NVIDIA's character majors, by name.
    fn majors(&self) -> BTreeMap<String, u32>;
    /// Whether a device node is there.
    fn has(&self, node: &DeviceNode) -> bool;
}
