//! A container's cgroup: which directory controls its devices, and how a process joins it.

use std::path::{Component, Path, PathBuf};

use mpsgate_model::ledger::CgroupId;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use std::os::unix::fs::MetadataExt;

/// A container's cgroup as its devices see it: v1's `devices` hierarchy, or the one of v2.
pub(super) struct Cgroup {
    /// Path and inode.
    pub(super) id: CgroupId,
    /// The file that a process writes itself into.
    pub(super) procs: PathBuf,
}

const MOUNT: &str = "/sys/fs/cgroup";

/// The cgroup of a process; `None` where the kernel shows none.
pub(super) fn of(pid: u32) -> Option<Cgroup> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let unified = statfs(MOUNT).is_ok_and(|fs| fs.filesystem_type() == CGROUP2_SUPER_MAGIC);
    let directory = directory(&text, unified)?;
    let inode = std::fs::metadata(&directory).ok()?.ino();
    Some(Cgroup {
        procs: directory.join("cgroup.procs"),
        id: CgroupId { path: directory.to_str()?.to_owned(), inode },
    })
}

/// The directory from the text of `/proc/<pid>/cgroup`: lines `hierarchy:controllers:path`. The path
/// begins with `/..` where the process is outside our own cgroup namespace: it cannot be reached then.
pub(crate) fn directory(text: &str, unified: bool) -> Option<PathBuf> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let mount = if unified {
            (hierarchy == "0" && controllers.is_empty()).then(|| PathBuf::from(MOUNT))?
        } else {
            controllers
                .split(',')
                .any(|c| c == "devices")
                .then(|| Path::new(MOUNT).join("devices"))?
        };
        let below = Path::new(path.trim_start_matches('/'));
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        is_plain.then(|| mount.join(below))
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
        // podman 5.4.2 with crun 1.21 and systemd: the processes are in a child of the scope; captured.
        assert_eq!(
            directory("0::/machine.slice/libpod-0627c152.scope/container\n", true),
            Some("/sys/fs/cgroup/machine.slice/libpod-0627c152.scope/container".into())
        );
        assert_eq!(directory("0::/b\n", false), None);
        assert_eq!(directory("garbage", true), None);
        assert_eq!(directory("0::/../../elsewhere\n", true), None, "of another namespace");
    }
}
