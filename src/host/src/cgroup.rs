//! The cgroups of processes.

mod proc_cgroup;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::FsWord;
use serde::{Deserialize, Serialize};

pub use self::proc_cgroup::Paths;
use crate::process::shown;
use crate::procfs;

/// Where the hierarchies are mounted.
pub const MOUNT: &str = "/sys/fs/cgroup";
/// `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const UNIFIED: FsWord = 0x6367_7270;
/// `CGROUP_SUPER_MAGIC`: a hierarchy of v1.
const LEGACY: FsWord = 0x0027_e0eb;

/// A cgroup by path and inode, so that a new directory under the same path is another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupId {
    /// Absolute path of the directory.
    pub path: String,
    /// Inode of the directory.
    pub inode: u64,
}

impl CgroupId {
    /// The cgroup of a directory; `None` if it is not there, or its path is not text.
    #[must_use]
    pub fn of(directory: &Path) -> Option<Self> {
        let inode = std::fs::metadata(directory).ok()?.ino();
        Some(Self { path: directory.to_str()?.to_owned(), inode })
    }
}

/// Whether the directory is still the one that was named.
///
/// # Errors
/// The kernel's error; a directory that is gone is no error.
pub fn is_same(cgroup: &CgroupId) -> io::Result<bool> {
    match std::fs::symlink_metadata(&cgroup.path) {
        Ok(found) => Ok(found.is_dir() && found.ino() == cgroup.inode),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether this machine has only v2.
#[must_use]
pub fn is_unified() -> bool {
    filesystem(Path::new(MOUNT)).is_ok_and(|found| found == UNIFIED)
}

/// Whether a directory is on a file system of cgroups.
///
/// # Errors
/// The kernel's error.
pub fn is_one(directory: &Path) -> io::Result<bool> {
    Ok(matches!(filesystem(directory)?, UNIFIED | LEGACY))
}

fn filesystem(path: &Path) -> io::Result<FsWord> {
    Ok(rustix::fs::statfs(path)?.f_type)
}

/// `/proc/PID/cgroup` of a living process, by the first of its living threads: see [`shown`].
/// `None` if it cannot be read, as for a process whose path is longer than a page.
#[must_use]
pub fn text_of(pid: u32) -> Option<String> {
    shown(pid, |thread| procfs::text(thread.join("cgroup")).ok())
}

/// One line of `/proc/PID/cgroup` (cgroups(7)): `hierarchy:controllers:path`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership<'a> {
    /// Controllers or a name of a hierarchy of v1, with commas between them; empty for v2's.
    pub controllers: &'a str,
    /// The path from the root of this process's cgroup namespace.
    pub path: &'a str,
}

impl<'a> Membership<'a> {
    /// `None` if the line has another form.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        Some(Self { controllers, path })
    }

    /// Whether a controller of v1 is in this hierarchy.
    #[must_use]
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.split(',').any(|name| name == controller)
    }

    /// The path below the hierarchy's mount. `None` if the process is outside this process's cgroup
    /// namespace: such a path begins with `/..` and cannot be reached. Also `None` if it is not
    /// text, as for a cgroup that a container has named so: another one's path could look the same.
    #[must_use]
    pub fn below(&self) -> Option<&'a Path> {
        let is_text = !self.path.contains(char::REPLACEMENT_CHARACTER);
        let below = Path::new(self.path.trim_start_matches('/'));
        let mut parts = below.components();
        (is_text && parts.all(|part| matches!(part, Component::Normal(_)))).then_some(below)
    }
}

/// The directory that controls a process's devices, from the text of `/proc/PID/cgroup`: in v1's
/// hierarchy `devices`, or in v2's hierarchy. `None` if there is none, or it is outside this
/// process's cgroup namespace.
#[must_use]
pub fn of_devices(text: &str, unified: bool) -> Option<PathBuf> {
    text.lines().filter_map(Membership::parse).find_map(|line| {
        let mount = match unified {
            true => line.controllers.is_empty().then(|| PathBuf::from(MOUNT)),
            false => line.has("devices").then(|| Path::new(MOUNT).join("devices")),
        };
        Some(mount?.join(line.below()?))
    })
}

/// Moves a cgroup's path from the usual mount to `cgroups`, where the hierarchies are mounted.
#[must_use]
pub fn below(cgroups: &Path, path: &Path) -> PathBuf {
    path.strip_prefix(MOUNT).map_or_else(|_| path.to_owned(), |path| cgroups.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_hierarchy_that_controls_devices() {
        let directory = |text: &str, unified| {
            of_devices(text, unified).map(|path| path.to_string_lossy().into_owned())
        };
        for (text, unified, expected) in [
            (
                "12:pids:/a\n5:devices:/docker/x:y\n0::/b\n",
                false,
                Some("/sys/fs/cgroup/devices/docker/x:y"),
            ),
            ("5:cpu,devices:/c\n", false, Some("/sys/fs/cgroup/devices/c")),
            ("0::/s.slice/c.scope\n", true, Some("/sys/fs/cgroup/s.slice/c.scope")),
            // podman 5.4.2 with crun 1.21 and systemd: the processes are in a child of the scope;
            // captured.
            (
                "0::/machine.slice/libpod-0627c152.scope/container\n",
                true,
                Some("/sys/fs/cgroup/machine.slice/libpod-0627c152.scope/container"),
            ),
            ("0::/b\n", false, None),
            ("garbage", true, None),
            // In another namespace.
            ("0::/../../elsewhere\n", true, None),
            // Not text.
            ("0::/s.slice/\u{fffd}/c\n", true, None),
            ("9:memory:/a/\u{fffd}\n5:devices:/a\n", false, Some("/sys/fs/cgroup/devices/a")),
        ] {
            assert_eq!(directory(text, unified).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_line_names_controllers_and_a_path_that_may_hold_colons() {
        let line = Membership::parse("5:cpu,devices:/docker/x:y");
        assert!(line.is_some_and(|line| line.has("devices") && !line.has("dev")));
        assert_eq!(line.and_then(|line| line.below()), Some(Path::new("docker/x:y")));
        assert_eq!(Membership::parse("0::/"), Some(Membership { controllers: "", path: "/" }));
        assert_eq!(Membership::parse("garbage"), None);
        let outside = Membership::parse("0::/../../elsewhere");
        assert!(outside.is_some_and(|line| line.below().is_none()));
    }
}
