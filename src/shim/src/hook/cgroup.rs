//! A container's cgroup: which directory controls its devices, and how a process joins it.

use std::path::{Path, PathBuf};

use mpsgate_host::cgroup::{self, CgroupId, MOUNT, Membership};

/// A container's cgroup as its devices see it: v1's `devices` hierarchy, or the one of v2.
pub(super) struct Cgroup {
    /// Path and inode.
    pub(super) id: CgroupId,
    /// The file that a process writes itself into.
    pub(super) procs: PathBuf,
}

/// The cgroup of a process; `None` where the kernel shows none.
pub(super) fn of(pid: u32) -> Option<Cgroup> {
    let directory = directory(&cgroup::text_of(pid)?, cgroup::is_unified())?;
    Some(Cgroup { procs: directory.join("cgroup.procs"), id: CgroupId::of(&directory)? })
}

/// The directory from the text of `/proc/<pid>/cgroup`.
pub(crate) fn directory(text: &str, unified: bool) -> Option<PathBuf> {
    text.lines().filter_map(Membership::parse).find_map(|line| {
        let mount = match unified {
            true => line.controllers.is_empty().then(|| PathBuf::from(MOUNT)),
            false => line.has("devices").then(|| Path::new(MOUNT).join("devices")),
        };
        Some(mount?.join(line.below()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_hierarchy_that_controls_devices() {
        let hybrid = "12:pids:/a\n5:devices:/docker/x:y\n0::/b\n";
        assert_eq!(directory(hybrid, false), Some("/sys/fs/cgroup/devices/docker/x:y".into()));
        let joint = "5:cpu,devices:/c\n";
        assert_eq!(directory(joint, false), Some("/sys/fs/cgroup/devices/c".into()));
        assert_eq!(
            directory("0::/s.slice/c.scope\n", true),
            Some("/sys/fs/cgroup/s.slice/c.scope".into())
        );
        // podman 5.4.2 with crun 1.21 and systemd: the processes are in a child of the scope;
        // captured.
        assert_eq!(
            directory("0::/machine.slice/libpod-0627c152.scope/container\n", true),
            Some("/sys/fs/cgroup/machine.slice/libpod-0627c152.scope/container".into())
        );
        assert_eq!(directory("0::/b\n", false), None);
        assert_eq!(directory("garbage", true), None);
        assert_eq!(directory("0::/../../elsewhere\n", true), None, "of another namespace");
    }
}
