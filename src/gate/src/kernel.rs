//! What the doors ask of the kernel: one read of `/proc` each.

use mpsgate_host::cgroup::{self, CgroupId, Paths};
use mpsgate_host::process;

use crate::doors::Kernel;

/// The one that we run on. It has to show the node's pids and cgroups: the gate is in the node's
/// own namespaces of both.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThisKernel;

impl Kernel for ThisKernel {
    fn start_time(&self, pid: u32) -> Option<u64> {
        process::identify(pid).map(|process| process.start_time)
    }

    fn innermost(&self, pid: u32, cgroups: &[&CgroupId]) -> Option<usize> {
        let paths = Paths::of(&cgroup::text_of(pid)?)?;
        paths.innermost(cgroups.iter().enumerate().map(|(at, cgroup)| (*cgroup, at)))
    }
}
