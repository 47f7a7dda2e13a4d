//! What the doors ask of the kernel: a read or two of `/proc` each.

use mpsgate_host::cgroup::{self, CgroupId, Paths};
use mpsgate_host::process;

use crate::doors::{Kernel, Place};

/// The one that we run on. It has to show the node's pids and cgroups: the gate is in the node's
/// own namespaces of both.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThisKernel;

impl Kernel for ThisKernel {
    fn start_time(&self, pid: u32) -> Option<u64> {
        process::identify(pid).map(|process| process.start_time)
    }

    fn place(&self, pid: u32, cgroups: &[&CgroupId]) -> Place<usize> {
        let paths = cgroup::text_of(pid).and_then(|text| Paths::of(&text));
        let Some(paths) = paths else { return Place::Unreadable };
        let all = cgroups.iter().enumerate().map(|(at, cgroup)| (*cgroup, at));
        paths.innermost(all).map_or(Place::Elsewhere, Place::In)
    }
}
