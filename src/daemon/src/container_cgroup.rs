//! Cgroups of containers: whether a process is in one, and whether one is empty.
//!
//! The same for v1 and v2: membership is read from `cgroup.procs` of the directory and of all below
//! it, because a container's init may sit in a child (crun under systemd), and a container may
//! make children of its own: as many and as deep as it likes (see [`tree`]).

pub(crate) mod dmem;
pub(crate) mod kill;
mod tree;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use mpsgate_host::cgroup::{CgroupId, is_one};
pub(crate) use mpsgate_host::cgroup::{Paths, is_same};

/// Whether `pid`, in our own pid namespace, is in the cgroup or below it.
pub(crate) fn contains(cgroup: &CgroupId, pid: u32) -> io::Result<bool> {
    let path = proven(cgroup)?;
    tree::any(path, &BTreeSet::new(), &mut |procs| {
        procs.lines().any(|line| line.parse() == Ok(pid))
    })
}

/// Pids of all processes in it and below it, in our own pid namespace.
///
/// # Errors
/// As [`contains`].
pub(crate) fn members(cgroup: &CgroupId) -> io::Result<BTreeSet<u32>> {
    proven(cgroup)?;
    processes(cgroup)
}

/// Its directory, where that is the kernel's and still the one that was named.
fn proven(cgroup: &CgroupId) -> io::Result<&Path> {
    let path = Path::new(&cgroup.path);
    if !is_one(path)? {
        return Err(io::Error::other("it is not on a cgroup filesystem"));
    }
    if !is_same(cgroup)? {
        return Err(io::Error::other("its inode is another one"));
    }
    Ok(path)
}

/// The most cgroups that a look at a tree reads by path.
pub(crate) const MOST_PATHS: usize = 1024;

/// The paths of a directory of cgroups and of those below, each before those below it, without
/// those of the inodes `without`; `None` where there are more than `most`, or one that no path can
/// name.
pub(crate) fn paths(
    root: &Path,
    without: &BTreeSet<u64>,
    most: usize,
) -> io::Result<Option<Vec<PathBuf>>> {
    tree::paths(root, without, most)
}

/// Whether a directory is one with such an inode, or below one.
pub(crate) fn lies_in(path: &Path, inodes: &BTreeSet<u64>) -> bool {
    use std::os::unix::fs::MetadataExt;
    path.ancestors().any(|above| above.metadata().is_ok_and(|it| inodes.contains(&it.ino())))
}

/// Pids of all processes in it and below it, in our own pid namespace; none where it is gone.
pub(crate) fn processes(cgroup: &CgroupId) -> io::Result<BTreeSet<u32>> {
    own_processes(cgroup, &BTreeSet::new())
}

/// The same, but for those in directories below it with these inodes: other containers' with a
/// grant.
pub(crate) fn own_processes(
    cgroup: &CgroupId,
    others: &BTreeSet<u64>,
) -> io::Result<BTreeSet<u32>> {
    let mut pids = BTreeSet::new();
    if is_same(cgroup)? {
        tree::any(Path::new(&cgroup.path), others, &mut |procs| {
            pids.extend(procs.lines().filter_map(|line| line.parse::<u32>().ok()));
            false
        })?;
    }
    Ok(pids)
}

/// Whether it has no process, but for those in directories below it with the inodes `others`: other
/// containers' with a grant. A directory that is gone or was made anew has none.
pub(crate) fn is_empty_but_for(cgroup: &CgroupId, others: &BTreeSet<u64>) -> io::Result<bool> {
    let path = Path::new(&cgroup.path);
    if !is_same(cgroup)? {
        return Ok(true);
    }
    // v2 answers for the whole tree in one line.
    if others.is_empty()
        && let Ok(events) = std::fs::read_to_string(path.join("cgroup.events"))
        && let Some(populated) = events.lines().find_map(|line| line.strip_prefix("populated "))
    {
        return Ok(populated == "0");
    }
    tree::any(path, others, &mut |procs| !procs.trim().is_empty()).map(|found| !found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Directories and `cgroup.procs` as v1 has them, on a filesystem of ours.
    fn tree(procs: &[(&str, &str)]) -> (tempfile::TempDir, CgroupId) {
        let root = tempfile::tempdir().unwrap();
        for (below, text) in procs {
            let directory = root.path().join(below);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup.procs"), text).unwrap();
        }
        let inode = root.path().metadata().unwrap().ino();
        let path = root.path().to_str().unwrap().to_owned();
        (root, CgroupId { path, inode })
    }

    fn is_empty(cgroup: &CgroupId) -> io::Result<bool> {
        is_empty_but_for(cgroup, &BTreeSet::new())
    }

    #[test]
    fn another_grants_processes_below_are_not_its_own() {
        let (root, cgroup) = tree(&[("", ""), ("w", "16\n"), ("w/deep", "17\n"), ("x", "")]);
        let others = [root.path().join("w").metadata().unwrap().ino()].into();
        assert!(!is_empty(&cgroup).unwrap() && is_empty_but_for(&cgroup, &others).unwrap());
        assert_eq!(own_processes(&cgroup, &others).unwrap(), BTreeSet::new());
        fs::write(root.path().join("cgroup.events"), "populated 1\n").unwrap();
        assert!(is_empty_but_for(&cgroup, &others).unwrap(), "v2's word is for the whole tree");
        fs::write(root.path().join("x/cgroup.procs"), "18\n").unwrap();
        assert!(!is_empty_but_for(&cgroup, &others).unwrap());
    }

    #[test]
    fn a_process_anywhere_below_keeps_it() {
        let (_kept, empty) = tree(&[("", ""), ("a/b", "")]);
        assert!(is_empty(&empty).unwrap());
        let (_kept, busy) = tree(&[("", ""), ("a", "16\n"), ("a/b", "17\n")]);
        assert!(!is_empty(&busy).unwrap());
        assert_eq!(processes(&busy).unwrap(), [16, 17].into());
    }

    #[test]
    fn v2_says_it_for_the_whole_tree() {
        let (root, cgroup) = tree(&[("", ""), ("a", "17\n")]);
        for (events, empty) in
            [("populated 1\nfrozen 0\n", false), ("populated 0\nfrozen 0\n", true)]
        {
            fs::write(root.path().join("cgroup.events"), events).unwrap();
            assert_eq!(is_empty(&cgroup).unwrap(), empty);
        }
    }

    #[test]
    fn its_processes_are_those_of_the_whole_tree() {
        let (root, mut cgroup) = tree(&[("", "17\n"), ("a", ""), ("a/b", "3\n17\n4\n")]);
        assert_eq!(processes(&cgroup).unwrap(), [3, 4, 17].into());
        cgroup.inode += 1;
        assert_eq!(processes(&cgroup).unwrap(), BTreeSet::new(), "another one of that name");
        drop(root);
        assert_eq!(processes(&cgroup).unwrap(), BTreeSet::new());
    }

    #[test]
    fn one_that_is_gone_or_made_anew_is_empty() {
        let (root, mut cgroup) = tree(&[("", "17\n")]);
        assert!(!is_empty(&cgroup).unwrap());
        cgroup.inode += 1;
        assert!(is_empty(&cgroup).unwrap());
        cgroup.inode -= 1;
        drop(root);
        assert!(is_empty(&cgroup).unwrap());
    }

    #[test]
    fn a_directory_elsewhere_is_no_cgroup() {
        let (_root, cgroup) = tree(&[("", "17\n")]);
        assert!(
            contains(&cgroup, 17).unwrap_err().to_string().contains("not on a cgroup filesystem")
        );
    }
}
