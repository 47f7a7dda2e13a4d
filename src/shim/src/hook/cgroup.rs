//! A container's cgroup: which directory controls its devices, and how a process joins it.

use std::path::PathBuf;

use mpsgate_host::cgroup::{self, CgroupId};

/// A container's cgroup as its devices see it: v1's `devices` hierarchy, or the one of v2.
pub(super) struct Cgroup {
    /// Path and inode.
    pub(super) id: CgroupId,
    /// The file that a process writes itself into.
    pub(super) procs: PathBuf,
}

/// The cgroup of a process; `None` where the kernel shows none.
pub(super) fn of(pid: u32) -> Option<Cgroup> {
    let directory = cgroup::of_devices(&cgroup::text_of(pid)?, cgroup::is_unified())?;
    Some(Cgroup { procs: directory.join("cgroup.procs"), id: CgroupId::of(&directory)? })
}
