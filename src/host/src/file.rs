//! Replacing a file whole: the new text is written beside it and then renamed. A reader sees the
//! old text or the new one, and a write that fails leaves the old one and nothing beside it.
//!
//! A process that is killed in between leaves a file beside. If one process writes
//! ([`Writers::One`]), its next write removes the file. If several may write ([`Writers::Many`]),
//! the file has its writer's pid in its name and is locked while the writer lives, so that
//! [`remove_leftovers`] recognises those of dead writers. The pid alone would not suffice: engines
//! in several PID namespaces may keep their process documents in one `/tmp`.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::crash::Steps;

/// What is left of a new file after a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Perhaps nothing: for files that a boot makes anew, as everything on a tmpfs.
    Atomic,
    /// The old text or the new one.
    Whole,
    /// The new text, once the call has returned.
    Synced,
}

/// How many processes may write beside the file at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// One, as the caller ensures: the file beside is `.NAME.new`.
    One,
    /// Several: the file beside has the writer's pid in its name and is locked.
    Many,
}

/// The properties of a new file.
#[derive(Debug, Clone, Copy)]
pub struct New {
    /// Its mode, whatever the umask.
    pub mode: u32,
    /// Its user and group; `None` for the process's own.
    pub owner: Option<(u32, u32)>,
    /// What a power cut may do to it.
    pub durability: Durability,
    /// Who else may be writing.
    pub writers: Writers,
    /// Crash points, passed once the file beside is `created`, `written` and `renamed`.
    pub steps: Steps,
}

impl New {
    /// A file of this process's user, with one writer and no crash points.
    #[must_use]
    pub const fn of(mode: u32, durability: Durability) -> Self {
        Self { mode, owner: None, durability, writers: Writers::One, steps: Steps::NONE }
    }
}

/// Puts `bytes` in the place of `path`, whatever is there except a directory; a link is replaced,
/// not followed.
///
/// # Errors
/// The kernel's error. The old file is then still there, unless only its directory could not be
/// synced.
pub fn replace(path: &Path, bytes: &[u8], new: &New) -> io::Result<()> {
    let (directory, name) = open_parent(path)?;
    replace_at(directory.as_fd(), name, bytes, new)
}

/// The same in a directory that the caller has open: the owner of a directory above it could put
/// another one in its place.
///
/// # Errors
/// As [`replace`].
pub fn replace_at(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    bytes: &[u8],
    new: &New,
) -> io::Result<()> {
    write(directory, name, bytes, new, |beside| {
        rustix::fs::renameat(directory, beside, directory, name)?;
        Ok(Beside::Gone)
    })
}

/// Puts `bytes` at `path` if nothing is there.
///
/// # Errors
/// The kernel's error; `AlreadyExists` if something is there, which is left alone.
pub fn create(path: &Path, bytes: &[u8], new: &New) -> io::Result<()> {
    let (directory, name) = open_parent(path)?;
    let directory = directory.as_fd();
    write(directory, name, bytes, new, |beside| {
        // `link` fails where `rename` would replace, on every file system.
        rustix::fs::linkat(directory, beside, directory, name, AtFlags::empty())?;
        Ok(Beside::Left)
    })
}

/// Makes a directory; an existing one is left as it is.
///
/// # Errors
/// The kernel's error.
pub fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Syncs a directory, so that removals and renames in it outlast a power cut.
///
/// # Errors
/// The kernel's error.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The name that the only writer uses beside `path`.
#[must_use]
pub fn beside(path: &Path) -> PathBuf {
    path.with_file_name(beside_one(path.file_name().unwrap_or_default()))
}

/// The name under which process `writer`, one of several, writes a file that a rename turns into
/// `name`.
#[must_use]
pub fn temporary_name(name: &str, writer: u32) -> String {
    format!(".{name}.mpsgate-{writer}")
}

/// The process that writes under a temporary name; `None` for other names.
#[must_use]
pub fn temporary_writer(name: &str) -> Option<u32> {
    let (of, writer) = name.strip_prefix('.')?.rsplit_once(".mpsgate-")?;
    let plain = !of.is_empty() && writer.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| writer.parse().ok())?
}

/// Removes temporary files whose writers have ended. A file that cannot be removed does no harm.
/// Returns those that are gone.
pub fn remove_leftovers(directory: &Path) -> Vec<PathBuf> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let own = rustix::process::geteuid().as_raw();
    let mut removed = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let Some(writer) = entry.file_name().to_str().and_then(temporary_writer) else { continue };
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() || meta.uid() != own {
            continue;
        }
        // The lock is held until the name is gone.
        let file = meta.is_file().then(|| open_to_look(&entry.path()));
        let dead = match &file {
            Some(Ok(file)) => file.try_lock().is_ok(),
            Some(Err(_)) => false,
            // A node that the hook makes below /dev. It cannot be locked.
            None => !Path::new("/proc").join(writer.to_string()).exists(),
        };
        if dead && std::fs::remove_file(entry.path()).is_ok() {
            removed.push(entry.path());
        }
    }
    removed
}

fn open_to_look(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

fn open_parent(path: &Path) -> io::Result<(File, &OsStr)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((File::open(parent.unwrap_or_else(|| Path::new(".")))?, name))
}

fn beside_one(name: &OsStr) -> String {
    format!(".{}.new", name.to_string_lossy())
}

/// Whether the file beside still has its first name.
enum Beside {
    Gone,
    Left,
}

fn write(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    bytes: &[u8],
    new: &New,
    place: impl FnOnce(&str) -> io::Result<Beside>,
) -> io::Result<()> {
    let beside = match new.writers {
        Writers::One => beside_one(name),
        Writers::Many => temporary_name(&name.to_string_lossy(), std::process::id()),
    };
    let mut file = open_beside(directory, &beside, new.writers)?;
    new.steps.pass("created");
    let placed = || -> io::Result<Beside> {
        // First, because it clears bits of the mode.
        if let Some((uid, gid)) = new.owner {
            fchown(&file, Some(uid), Some(gid))?;
        }
        file.set_permissions(Permissions::from_mode(new.mode))?;
        file.write_all(bytes)?;
        if new.durability != Durability::Atomic {
            file.sync_all()?;
        }
        new.steps.pass("written");
        place(&beside)
    };
    let placed = placed();
    if placed.is_ok() {
        new.steps.pass("renamed");
    }
    // Not after a rename: a process in another PID namespace may have made its own file of that
    // name since.
    if !matches!(placed, Ok(Beside::Gone)) {
        // A full disk leaves a partial file.
        let removed = rustix::fs::unlinkat(directory, beside.as_str(), AtFlags::empty());
        placed?;
        removed?;
    }
    if new.durability == Durability::Synced {
        rustix::fs::fsync(directory)?;
    }
    Ok(())
}

/// Opens a file that was not there. A file that is there was left by a killed writer of that name.
/// It is never overwritten, since it may be the file itself under a second name.
fn open_beside(directory: BorrowedFd<'_>, name: &str, writers: Writers) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let create = || rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR);
    loop {
        let file: File = match create() {
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
                create()?.into()
            }
            other => other?.into(),
        };
        // Between the two calls a clean-up may have taken the file for a dead writer's.
        let is_ours =
            || Ok::<_, io::Error>(file.try_lock().is_ok() && file.metadata()?.nlink() > 0);
        if writers == Writers::One || is_ours()? {
            return Ok(file);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::fs::{create_dir, hard_link, read, read_dir, write};
    use std::os::unix::fs::symlink;

    use super::*;

    const NEW: New = New::of(0o640, Durability::Synced);
    const MANY: New = New { writers: Writers::Many, ..NEW };

    fn count(directory: &Path) -> usize {
        read_dir(directory).unwrap().count()
    }

    #[test]
    fn a_file_is_replaced_whole_with_the_mode_that_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for new in [NEW, MANY, New { durability: Durability::Atomic, ..NEW }] {
            for text in [b"first".as_slice(), b"second"] {
                replace(&path, text, &new).unwrap();
                assert_eq!(read(&path).unwrap(), text);
                assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o640);
                assert_eq!(count(dir.path()), 1, "nothing is left beside it");
            }
        }
    }

    #[test]
    fn a_link_is_replaced_and_what_it_led_to_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join("f"), dir.path().join("elsewhere"));
        write(&elsewhere, "old").unwrap();
        for new in [NEW, MANY] {
            let _ = std::fs::remove_file(&path);
            symlink(&elsewhere, &path).unwrap();
            symlink(&elsewhere, beside(&path)).unwrap();
            replace(&path, b"new", &new).unwrap();
            let _ = std::fs::remove_file(beside(&path));
            assert_eq!(
                (read(&path).unwrap(), read(&elsewhere).unwrap()),
                (b"new".to_vec(), b"old".to_vec())
            );
        }
    }

    #[test]
    fn what_fails_leaves_the_old_one_and_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        create_dir(&path).unwrap();
        for new in [NEW, MANY] {
            let error = replace(&path, b"new", &new).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::IsADirectory, "{error}");
            assert_eq!(count(dir.path()), 1);
        }
        replace(Path::new("/"), b"new", &NEW).unwrap_err();
    }

    #[test]
    fn what_is_there_is_not_created_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        create(&path, b"first", &NEW).unwrap();
        let error = create(&path, b"second", &NEW).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        assert_eq!((read(&path).unwrap(), count(dir.path())), (b"first".to_vec(), 1));
    }

    #[test]
    fn a_leftover_is_no_obstacle_and_not_written_into() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write(&path, "old").unwrap();
        // Killed between giving the file its name and removing the other one.
        hard_link(&path, beside(&path)).unwrap();
        create(&path, b"new", &NEW).unwrap_err();
        assert_eq!((read(&path).unwrap(), count(dir.path())), (b"old".to_vec(), 1));
        write(dir.path().join(temporary_name("f", std::process::id())), "half").unwrap();
        replace(&path, b"whole", &MANY).unwrap();
        assert_eq!((read(&path).unwrap(), count(dir.path())), (b"whole".to_vec(), 1));
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // The processes with these pids here are not the writers.
        let dead = temporary_name("config.json", 1);
        let alive = temporary_name("config.json", 4_194_305);
        for name in [dead.as_str(), &alive, "config.json", ".config.json.swp"] {
            write(at(name), "").unwrap();
        }
        create_dir(at(&temporary_name("folder", 4_194_305))).unwrap();
        // As the hook's nodes, which are recognised by their pid.
        let node = |pid| at(&temporary_name("195-2", pid));
        for pid in [4_194_305, 1] {
            rustix::fs::mknodat(
                rustix::fs::CWD,
                node(pid),
                rustix::fs::FileType::Fifo,
                Mode::RUSR,
                0,
            )
            .unwrap();
        }
        let writing = File::create(at(&alive)).unwrap();
        writing.try_lock().unwrap();
        let mut removed = remove_leftovers(dir.path());
        removed.sort();
        assert_eq!(removed, [node(4_194_305), at(&dead)]);
        assert!(!at(&dead).exists());
        assert!(!node(4_194_305).exists() && node(1).exists());
        assert_eq!(count(dir.path()), 5);
    }

    #[test]
    fn only_a_temporary_name_names_its_writer() {
        assert_eq!(temporary_writer(&temporary_name("config.json", 12)), Some(12));
        assert_eq!(temporary_writer(&temporary_name("a.mpsgate-3", 4)), Some(4));
        for name in [
            "config.json",
            "config.json.mpsgate-1",
            ".mpsgate-1",
            "..mpsgate-1",
            ".c.mpsgate-",
            ".c.mpsgate-+1",
            ".c.mpsgate-1x",
            ".c.mpsgate-99999999999",
        ] {
            assert_eq!(temporary_writer(name), None, "{name}");
        }
    }
}
