//! A look at every directory of a container's cgroup, however deep it is.
//!
//! The tree is the container's own work. So nothing here grows with it but eight bytes a level: one
//! directory is open at a time, steps go by name from the directory before and back by `..`, which
//! needs no path of a length that the kernel refuses, and a directory is read on from where it was
//! left.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

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
    let mut here = match rustix::fs::openat(CWD, root, DIRECTORY, Mode::empty()) {
        Ok(here) => here,
        Err(errno) if is_gone(errno) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    if holds(&here, wanted)? {
        return Ok(true);
    }
    // Where each directory from the root to here is to be read on.
    let mut places = vec![0_u64];
    while let Some(place) = places.last_mut() {
        match next_child(&here, place, without)? {
            Some(child) => {
                here = child;
                if holds(&here, wanted)? {
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
