//! The cgroups of a process, by one read of `/proc/PID/cgroup`.

use std::path::{Path, PathBuf};

use super::{CgroupId, MOUNT, Membership, is_same, is_unified};

/// The directories of a process, one for each hierarchy and each controller's name of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Paths(Vec<PathBuf>);

impl Paths {
    /// `None` if `/proc` names no path: the process has ended, or the path is longer than the
    /// kernel shows (ENAMETOOLONG), is not text, or is outside this process's cgroup namespace.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        Self::parse(text, is_unified())
    }

    fn parse(text: &str, unified: bool) -> Option<Self> {
        let mut paths = Vec::new();
        for line in text.lines() {
            let line = Membership::parse(line)?;
            let (controllers, below) = (line.controllers, line.below()?);
            match (controllers, unified) {
                ("", true) => paths.push(Path::new(MOUNT).join(below)),
                ("", false) => paths.push(Path::new(MOUNT).join("unified").join(below)),
                _ => paths.extend(
                    controllers.split(',').map(|name| Path::new(MOUNT).join(name).join(below)),
                ),
            }
        }
        (!paths.is_empty()).then_some(Self(paths))
    }

    /// The one of several cgroups that the process is in: the innermost, if they are nested. A
    /// directory that was made anew belongs to none of them.
    #[must_use]
    pub fn innermost<'a, T>(&self, cgroups: impl Iterator<Item = (&'a CgroupId, T)>) -> Option<T> {
        let holds = |cgroup: &CgroupId| self.0.iter().any(|path| path.starts_with(&cgroup.path));
        let held = cgroups.filter(|(cgroup, _)| holds(cgroup) && is_same(cgroup).unwrap_or(true));
        held.max_by_key(|(cgroup, _)| cgroup.path.len()).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_process_is_in_the_directories_of_its_hierarchies() {
        let is_in = |text: &str, unified, path: &str| {
            let paths = Paths::parse(text, unified);
            paths.is_some_and(|Paths(paths)| paths.contains(&PathBuf::from(path)))
        };
        let hybrid = "9:cpu,cpuacct:/a\n5:devices:/docker/x:y/in\n1:name=systemd:/s\n0::/b\n";
        for path in ["cpu/a", "cpuacct/a", "devices/docker/x:y/in", "unified/b"] {
            assert!(is_in(hybrid, false, &format!("/sys/fs/cgroup/{path}")), "{path}");
        }
        assert!(!is_in(hybrid, false, "/sys/fs/cgroup/b"), "the unified tree is elsewhere");
        assert!(is_in("0::/s.slice/c.scope\n", true, "/sys/fs/cgroup/s.slice/c.scope"));
        for nothing in ["", "garbage", "0::/../../elsewhere\n", "0::/s.slice/\u{fffd}\n"] {
            assert_eq!(Paths::parse(nothing, true), None, "{nothing}");
        }
    }

    #[test]
    fn of_cgroups_in_each_other_the_innermost_has_the_process() {
        let root = tempfile::tempdir().unwrap();
        let id = |below: &str| {
            let path = root.path().join(below);
            std::fs::create_dir_all(&path).unwrap();
            let inode = path.metadata().unwrap().ino();
            CgroupId { path: path.to_str().unwrap().to_owned(), inode }
        };
        let (inner, outer, other) = (id("v/w"), id("v"), id("v/ww"));
        let innermost_of = |below: &str, cgroups: &[(&CgroupId, u8)]| {
            Paths(vec![root.path().join(below)]).innermost(cgroups.iter().copied())
        };
        let all = [(&outer, 0), (&inner, 1), (&other, 2)];
        assert_eq!(innermost_of("v/w/deep/er", &all), Some(1));
        assert_eq!((innermost_of("v/x", &all), innermost_of("v/www", &all)), (Some(0), Some(0)));
        assert_eq!(innermost_of("elsewhere", &all), None);
        let anew = CgroupId { inode: inner.inode + 1, ..inner.clone() };
        assert_eq!(innermost_of("v/w", &[(&outer, 0), (&anew, 1)]), Some(0), "another's by now");
    }
}
