//! A look at every directory of a container's cgroup, however deep it is.
//!
//! The tree is the container's own work. So nothing here grows with it but eight bytes a level: one
//! directory is open at a time, steps go by name from the directory before and back by `..`, which
//! needs no path of a length that the kernel refuses, and a directory is read on from where it was
//! left.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Holds at least one entry with the longest name.
const ENTRIES: usize = 1024;

/// Whether `wanted` holds for the `cgroup.procs` of the directory or of one below. Directories with
/// the inodes `without` are left out, with what is below them.
///
/// # Errors
/// What the kernel says of a directory that is there.
pub(super) fn any(
    root: &Path,
    without: &BTreeSet<u64>,
    wanted: &mut impl FnMut(&str) -> bool,
) -> io::Result<bool> {
    visit(root, without, &mut |here| holds(here, wanted))
}

/// The paths of the directory and of those below, each before those below it; `None` where there
/// are more than `most`, or one that no path can name. `without` as in [`any`].
///
/// # Errors
/// As [`any`].
pub(super) fn paths(
    root: &Path,
    without: &BTreeSet<u64>,
    most: usize,
) -> io::Result<Option<Vec<PathBuf>>> {
    let mut paths = Vec::new();
    let stopped = visit(root, without, &mut |here| {
        let path = match rustix::fs::readlink(format!("/proc/self/fd/{}", here.as_raw_fd()), vec![])
        {
            Ok(path) => PathBuf::from(OsString::from_vec(path.into_bytes())),
            Err(Errno::NAMETOOLONG) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        };
        // The kernel writes " (deleted)" behind one that has gone meanwhile.
        if path.starts_with(root) && path.is_dir() {
            paths.push(path);
        }
        Ok(paths.len() > most)
    })?;
    Ok((!stopped).then_some(paths))
}

/// Whether `stop` holds for the directory or one below.
fn visit(
    root: &Path,
    without: &BTreeSet<u64>,
    stop: &mut impl FnMut(&OwnedFd) -> io::Result<bool>,
) -> io::Result<bool> {
    let mut here = match rustix::fs::openat(CWD, root, DIRECTORY, Mode::empty()) {
        Ok(here) => here,
        Err(errno) if is_gone(errno) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    if stop(&here)? {
        return Ok(true);
    }
    // Where each directory from the root to here is to be read on.
    let mut places = vec![0_u64];
    while let Some(place) = places.last_mut() {
        match next_child(&here, place, without)? {
            Some(child) => {
                here = child;
                if stop(&here)? {
                    return Ok(true);
                }
                places.push(0);
            }
            None => {
                places.pop();
                if !places.is_empty() {
                    here = rustix::fs::openat(&here, "..", DIRECTORY, Mode::empty())?;
                }
            }
        }
    }
    Ok(false)
}

/// Removed, or being removed while it is read (ENODEV).
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NODEV)
}

/// Whether `wanted` holds for the processes of one directory.
fn holds(directory: &OwnedFd, wanted: &mut impl FnMut(&str) -> bool) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, "cgroup.procs", flags, Mode::empty()) {
        Ok(file) => file,
        Err(errno) if is_gone(errno) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    match io::read_to_string(std::fs::File::from(file)) {
        Ok(procs) => Ok(wanted(&procs)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(errno) if is_gone(errno) => Ok(false),
            // A threaded cgroup of v2 shows its processes at the directory where the threads begin.
            Some(Errno::OPNOTSUPP) => Ok(false),
            _ => Err(error),
        },
    }
}

/// Opens the next directory at or behind `place`, and moves that behind it.
fn next_child(
    directory: &OwnedFd,
    place: &mut u64,
    without: &BTreeSet<u64>,
) -> io::Result<Option<OwnedFd>> {
    // Linux counts the directories below into the links, where a file system counts any: two are
    // "." and the name, so that most directories need not be read.
    if *place == 0 && rustix::fs::fstat(directory)?.st_nlink == 2 {
        return Ok(None);
    }
    rustix::fs::seek(directory, SeekFrom::Start(*place))?;
    let mut buffer = [MaybeUninit::uninit(); ENTRIES];
    let mut entries = RawDir::new(directory.as_fd(), &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(errno) if is_gone(errno) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        *place = entry.next_entry_cookie();
        let name = entry.file_name();
        let is_name = !matches!(name.to_bytes(), b"." | b"..");
        if entry.file_type() != FileType::Directory || !is_name || without.contains(&entry.ino()) {
            continue;
        }
        match rustix::fs::openat(directory, name, DIRECTORY, Mode::empty()) {
            Ok(child) => return Ok(Some(child)),
            Err(errno) if is_gone(errno) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn all(root: &Path) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let any = any(root, &BTreeSet::new(), &mut |procs| {
            found.extend(procs.lines().map(str::to_owned));
            false
        });
        assert!(!any.unwrap());
        found
    }

    fn add(directory: &Path, pid: usize) {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("cgroup.procs"), format!("{pid}\n")).unwrap();
    }

    #[test]
    fn every_directory_is_looked_at_once_however_many_there_are() {
        let root = tempfile::tempdir().unwrap();
        let mut seen = 0;
        add(root.path(), 1);
        for n in 2..300 {
            add(&root.path().join(format!("{}/{n}/below", n % 7)), n);
            add(&root.path().join(format!("{}/{n}", n % 7)), n + 1000);
        }
        any(root.path(), &BTreeSet::new(), &mut |procs| {
            seen += usize::from(!procs.is_empty());
            false
        })
        .unwrap();
        assert_eq!((all(root.path()).len(), seen), (597, 597));
        let all = BTreeSet::new();
        assert!(any(root.path(), &all, &mut |procs| procs == "299\n").unwrap());
        let without = [root.path().join("5").metadata().unwrap().ino()].into();
        assert!(!any(root.path(), &without, &mut |procs| procs == "299\n").unwrap());
        assert!(!any(&root.path().join("none"), &all, &mut |_| true).unwrap());
    }

    #[test]
    fn the_paths_of_a_tree_come_from_the_top_down_and_no_more_than_are_wanted() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a/b/c", "d"] {
            fs::create_dir_all(root.path().join(name)).unwrap();
        }
        let without = BTreeSet::new();
        let found = paths(root.path(), &without, 5).unwrap().unwrap();
        let at =
            |name: &str| found.iter().position(|path| *path == root.path().join(name)).unwrap();
        assert_eq!(found.len(), 5);
        assert!(at("") == 0 && at("a") < at("a/b") && at("a/b") < at("a/b/c") && at("d") > 0);
        assert_eq!(paths(root.path(), &without, 4).unwrap(), None);
        let without = [root.path().join("a").metadata().unwrap().ino()].into();
        assert_eq!(paths(root.path(), &without, 5).unwrap().unwrap().len(), 2);
        assert_eq!(
            paths(&root.path().join("none"), &without, 5).unwrap().unwrap(),
            [""; 0].map(PathBuf::from)
        );
    }

    #[test]
    fn a_tree_that_no_path_can_name_is_read_to_its_end() {
        let root = tempfile::tempdir().unwrap();
        let name = "d".repeat(200);
        let mut here = rustix::fs::openat(CWD, root.path(), DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..100 {
            rustix::fs::mkdirat(&here, name.as_str(), Mode::RWXU).unwrap();
            here = rustix::fs::openat(&here, name.as_str(), DIRECTORY, Mode::empty()).unwrap();
        }
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let procs = rustix::fs::openat(&here, "cgroup.procs", flags, Mode::RWXU).unwrap();
        rustix::io::write(procs, b"77\n").unwrap();
        assert_eq!(all(root.path()), ["77".to_owned()].into());
    }
}
