//! The machine, as the node's state asks for it.

use std::collections::{BTreeMap, BTreeSet};

use mpsgate_model::DeviceNode;
use mpsgate_model::ledger::{CgroupId, ProcessId};
use mpsgate_node::Machine;

use crate::{container_cgroup, device_nodes, process_end};

/// The one that we run on. Each question is a read of `/proc`, `/dev` or a cgroup.
pub(crate) struct ThisMachine;

impl Machine for ThisMachine {
    fn is_alive(&self, process: &ProcessId) -> bool {
        process_end::is_alive(process)
    }

    fn describe(&self, pid: u32) -> String {
        process_end::describe(pid)
    }

    fn is_empty_but_for(&self, cgroup: &CgroupId, others: &BTreeSet<u64>) -> bool {
        container_cgroup::is_empty_but_for(cgroup, others).unwrap_or(false)
    }

    fn processes(&self, cgroup: &CgroupId) -> BTreeSet<u32> {
        container_cgroup::processes(cgroup).unwrap_or_default()
    }

    fn may_be_same(&self, cgroup: &CgroupId) -> bool {
        container_cgroup::is_same(cgroup).unwrap_or(true)
    }

    fn majors(&self) -> BTreeMap<String, u32> {
        device_nodes::majors()
    }

    fn has(&self, node: &DeviceNode) -> bool {
        device_nodes::exists(node)
    }
}
