//! Walks to a directory of mpsgate, component by component, and lists it: no link is followed, and
//! nothing is opened that others than root could have exchanged.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use crate::error::MpsError;

pub(super) const DIRECTORY: OFlag =
    OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
/// The action of a walk at a missing directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// Makes it with mode 0711.
    Make,
    /// Returns an error.
    Fail,
}

/// Walks from `/` to `path`. No component may be a link, or be writable for others: who can rename
/// a parent owns everything below it.
pub(super) fn open_trusted(path: &Path, missing: Missing) -> Result<OwnedFd, MpsError> {
    let mut at = PathBuf::from("/");
    let mut dir =
        open(&at, DIRECTORY, Mode::empty()).map_err(|errno| MpsError::fs("open", &at, errno))?;
    let names: Vec<_> = path.iter().skip(1).collect();
    for (depth, name) in names.iter().enumerate() {
        at.push(name);
        let last = depth + 1 == names.len();
        dir = match missing {
            Missing::Make if last => make_own(&dir, &at, name, 0o711)?,
            _ => pass_through(&dir, &at, name, missing)?,
        };
        if last {
            check_own(&dir, &at)?;
        }
    }
    Ok(dir)
}

fn pass_through(
    parent: &OwnedFd,
    path: &Path,
    name: &OsStr,
    missing: Missing,
) -> Result<OwnedFd, MpsError> {
    let made = missing == Missing::Make && make_dir(parent, path, name)?;
    let dir = open_child(parent, path, name)?;
    if made {
        fchmod(&dir, Mode::from_bits_truncate(0o711))
            .map_err(|errno| MpsError::fs("set mode of", path, errno))?;
    }
    let stat = fstat(&dir).map_err(|errno| MpsError::fs("look at", path, errno))?;
    if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
        return Err(MpsError::ForeignOwner { path: path.into(), found: stat.st_uid, expected: 0 });
    }
    let sticky = stat.st_mode & 0o1000 != 0;
    if stat.st_mode & 0o022 != 0 && !sticky {
        return Err(MpsError::WritableByOthers { path: path.into(), mode: stat.st_mode & 0o7777 });
    }
    Ok(dir)
}

/// Makes or opens a directory that must belong to this user, with exactly this mode.
pub(super) fn make_own(
    parent: &OwnedFd,
    path: &Path,
    name: &OsStr,
    mode: u32,
) -> Result<OwnedFd, MpsError> {
    let made = make_dir(parent, path, name)?;
    let dir = open_child(parent, path, name)?;
    let found = check_own(&dir, path)?;
    if made || found != mode {
        // The umask may have removed bits of a new one; an old one may be stricter or looser.
        fchmod(&dir, Mode::from_bits_truncate(mode))
            .map_err(|errno| MpsError::fs("set mode of", path, errno))?;
    }
    Ok(dir)
}

fn make_dir(parent: &OwnedFd, path: &Path, name: &OsStr) -> Result<bool, MpsError> {
    match mkdirat(parent, name, Mode::S_IRWXU) {
        Ok(()) => Ok(true),
        Err(Errno::EEXIST) => Ok(false),
        Err(errno) => Err(MpsError::fs("create directory", path, errno)),
    }
}

pub(super) fn open_child(parent: &OwnedFd, path: &Path, name: &OsStr) -> Result<OwnedFd, MpsError> {
    openat(parent, name, DIRECTORY, Mode::empty())
        .map_err(|errno| not_a_directory(path, parent, Path::new(name), errno))
}

/// Returns a planted file or link as an error of its own, apart from other failures to open.
fn not_a_directory(
    path: &Path,
    parent: impl std::os::fd::AsFd,
    name: &Path,
    errno: Errno,
) -> MpsError {
    if matches!(errno, Errno::ELOOP | Errno::ENOTDIR)
        && let Ok(stat) = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)
    {
        return MpsError::Planted { path: path.into(), found: words(&stat) };
    }
    MpsError::fs("open directory", path, errno)
}

pub(super) fn words(stat: &FileStat) -> &'static str {
    match kind(stat) {
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFREG => "a regular file",
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFSOCK => "a socket",
        SFlag::S_IFIFO => "a FIFO",
        _ => "something else",
    }
}

pub(super) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

/// The directory's mode, after its owner and mode were checked.
pub(super) fn check_own(dir: &OwnedFd, path: &Path) -> Result<u32, MpsError> {
    let stat = fstat(dir).map_err(|errno| MpsError::fs("look at", path, errno))?;
    let expected = geteuid().as_raw();
    if stat.st_uid != expected {
        return Err(MpsError::ForeignOwner { path: path.into(), found: stat.st_uid, expected });
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o022 != 0 {
        return Err(MpsError::WritableByOthers { path: path.into(), mode });
    }
    Ok(mode)
}

pub(super) fn lstat(dir: &OwnedFd, name: &str) -> Result<Option<FileStat>, Errno> {
    match fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Names in a directory, sorted.
pub(super) fn entries(dir: &OwnedFd, path: &Path) -> Result<BTreeSet<CString>, MpsError> {
    let again = openat(dir, ".", DIRECTORY, Mode::empty())
        .map_err(|errno| MpsError::fs("read directory", path, errno))?;
    let mut listing =
        Dir::from_fd(again).map_err(|errno| MpsError::fs("read directory", path, errno))?;
    let mut names = BTreeSet::new();
    for entry in listing.iter() {
        let entry = entry.map_err(|errno| MpsError::fs("read directory", path, errno))?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.insert(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

pub(super) fn unlink(dir: &OwnedFd, name: &CString, parent: &Path) -> Result<(), MpsError> {
    unlinkat(dir, name.as_c_str(), UnlinkatFlags::NoRemoveDir).map_err(|errno| {
        MpsError::fs("remove", parent.join(OsStr::from_bytes(name.to_bytes())), errno)
    })
}
