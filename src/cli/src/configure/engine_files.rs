//! The files of engines: reading, and replacing them whole. The only place of this program that
//! writes.
#![expect(
    clippy::disallowed_methods,
    reason = "configure --write and --undo change engines' settings, and do it here"
)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use mpsgate_config::{find_runtime, paths};
use mpsgate_configure::{Change, ConfigureError, Disk, Source};
use mpsgate_host::file::{self, Durability, New, Writers};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::SetUpError;

/// Links that are followed, as many as the kernel does.
const LINKS: usize = 40;

/// The node's files.
pub(crate) const DISK: Disk = Disk { programs: paths::RUNTIME_SEARCH };

/// The file system as it would be without what `--write` wrote.
#[derive(Debug)]
pub(super) struct WithoutUs(pub(super) BTreeMap<PathBuf, Option<String>>);

impl Source for WithoutUs {
    fn read(&self, path: &Path) -> io::Result<Option<String>> {
        match real(path).ok().and_then(|real| self.0.get(&real)) {
            Some(text) => Ok(text.clone()),
            None => DISK.read(path),
        }
    }

    fn list(&self, directory: &Path) -> Vec<PathBuf> {
        let mut files = DISK.list(directory);
        files.retain(|path| {
            real(path).ok().and_then(|real| self.0.get(&real)).is_none_or(Option::is_some)
        });
        files
    }

    fn walk(&self, directory: &Path) -> Result<Vec<PathBuf>, ConfigureError> {
        DISK.walk(directory)
    }

    fn has_program(&self, name: &str) -> bool {
        DISK.has_program(name)
    }
}

/// One file to be replaced.
#[derive(Debug)]
pub(super) struct Target {
    /// As it was named.
    named: PathBuf,
    /// What is replaced, behind all links.
    pub(super) real: PathBuf,
    pub(super) before: Option<String>,
    pub(super) after: String,
    /// Directories that are missing, the outermost first.
    pub(super) directories: Vec<PathBuf>,
}

impl Target {
    /// Looks whether it can be written, before anything is.
    pub(super) fn of(change: &Change) -> Result<Self, SetUpError> {
        let real = real(&change.path)?;
        if let Ok(metadata) = fs::metadata(&real)
            && metadata.mode() & 0o222 == 0
        {
            return Err(SetUpError::ReadOnly { path: real, mode: metadata.mode() & 0o7777 });
        }
        let ancestors = real.ancestors().skip(1);
        let mut directories: Vec<PathBuf> =
            ancestors.take_while(|path| !path.exists()).map(Path::to_owned).collect();
        directories.reverse();
        let nearest = directories
            .first()
            .and_then(|path| path.parent())
            .or_else(|| real.parent())
            .unwrap_or_else(|| Path::new("/"));
        // A read-only file system and missing rights show here, not in the middle of several files.
        tempfile::tempfile_in(nearest)
            .map_err(|source| SetUpError::Write { path: real.clone(), source })?;
        let (before, after) = (change.before.clone(), change.after.clone());
        Ok(Self { named: change.path.clone(), real, before, after, directories })
    }

    pub(super) fn write(&self) -> Result<(), SetUpError> {
        let now = DISK
            .read(&self.real)
            .map_err(|source| SetUpError::Read { path: self.real.clone(), source })?;
        if now != self.before {
            return Err(SetUpError::Raced { path: self.real.clone() });
        }
        if let Some(directory) = self.directories.last() {
            Directory::make(directory)
                .map_err(|source| SetUpError::Write { path: directory.clone(), source })?;
        }
        replace(&self.real, &self.after)
    }

    /// What was done, for people.
    pub(super) fn sentence(&self) -> String {
        if self.named == self.real {
            format!("Written: {}\n", self.real.display())
        } else {
            format!(
                "Written: {}, to which {} is a link\n",
                self.real.display(),
                self.named.display()
            )
        }
    }
}

/// The file behind all links, which need not be there.
fn real(path: &Path) -> Result<PathBuf, SetUpError> {
    let failed = |source| SetUpError::Read { path: path.to_owned(), source };
    let mut path_now = path.to_owned();
    for _ in 0..LINKS {
        match fs::read_link(&path_now) {
            Ok(target) => {
                path_now = path_now.parent().unwrap_or_else(|| Path::new("/")).join(target)
            }
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::NotFound) => {
                // Links among the directories, as far as these are there.
                return resolved(&path_now).map_err(failed);
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Err(failed(io::Error::other("it leads through more than 40 links")))
}

/// A path without links among its directories, as far as these are there.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let mut missing = Vec::new();
    let mut there = path;
    while let (Some(parent), Some(name)) = (there.parent(), there.file_name()) {
        missing.push(name);
        there = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        match fs::canonicalize(there) {
            Ok(real) => {
                return Ok(missing.iter().rev().fold(real, |path, name| path.join(name)));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(path.to_owned())
}

/// Replaces a file whole, with the owner and mode that it has. No directory on its way may be a
/// link: they were looked through when it was planned, and a link that is there now was put there
/// since.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), SetUpError> {
    write(path, text, 0o644).map_err(|source| SetUpError::Write { path: path.to_owned(), source })
}

/// Replaces a file that only root may read: settings can hold passwords of registries.
pub(super) fn replace_private(path: &Path, text: &str) -> Result<(), SetUpError> {
    let written = resolved(path).and_then(|path| write(&path, text, 0o600));
    written.map_err(|source| SetUpError::Write { path: path.to_owned(), source })
}

/// Replaces a file of ours whole, whoever's it was and whatever its mode; makes its directory. No
/// part of the path may be a link.
pub(crate) fn replace_bytes(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SetUpError> {
    let failed = |source| SetUpError::Write { path: path.to_owned(), source };
    let write = || -> io::Result<()> {
        Directory::make(path.parent().unwrap_or_else(|| Path::new("/")))?.replace(
            name_of(path)?,
            bytes,
            |_| (None, mode),
        )
    };
    write().map_err(failed)
}

/// Looks whether [`replace_bytes`] can do it, before anything is written. A file that may not be
/// changed (chattr(1)) or is a mount of its own shows only when it is replaced.
pub(crate) fn check_place(path: &Path) -> Result<(), SetUpError> {
    let failed = |source| SetUpError::Write { path: path.to_owned(), source };
    let mut nearest = Path::new("/");
    let ancestors: Vec<&Path> = path.ancestors().collect();
    for at in ancestors.into_iter().rev() {
        match fs::symlink_metadata(at) {
            Ok(found) if found.is_symlink() => {
                let target = fs::read_link(at).map_err(failed)?;
                return Err(SetUpError::Link { path: at.to_owned(), target });
            }
            Ok(found) if at != path && found.is_dir() => nearest = at,
            Ok(found) if at == path && found.is_file() => {}
            Ok(_) => return Err(SetUpError::Place { path: at.to_owned() }),
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(source) => return Err(failed(source)),
        }
    }
    tempfile::tempfile_in(nearest).map(drop).map_err(failed)
}

fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let directory = Directory::open(path.parent().unwrap_or_else(|| Path::new("/")))?;
    directory.replace(name_of(path)?, text.as_bytes(), |old| match old {
        // No bit of it makes anybody another user: the file may be one that its owner linked there.
        Some(old) => (Some((old.st_uid, old.st_gid)), old.st_mode & 0o777),
        None => (None, mode),
    })
}

fn name_of(path: &Path) -> io::Result<&OsStr> {
    path.file_name().ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))
}

/// A directory that is held, not named: whoever owns one above it may put another in its place, and
/// nothing is written there.
#[derive(Debug)]
struct Directory(OwnedFd);

impl Directory {
    /// Through no link.
    fn open(path: &Path) -> io::Result<Self> {
        Self::walk(path, false)
    }

    /// Makes what is missing.
    fn make(path: &Path) -> io::Result<Self> {
        Self::walk(path, true)
    }

    fn walk(path: &Path, make: bool) -> io::Result<Self> {
        const FLAGS: OFlags =
            OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
        let start = if path.is_absolute() { "/" } else { "." };
        let mut at = rustix::fs::open(start, FLAGS, Mode::empty())?;
        for part in path.components() {
            let name = match part {
                Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
                Component::ParentDir => OsStr::new(".."),
                Component::Normal(name) => name,
            };
            let next = match rustix::fs::openat(&at, name, FLAGS, Mode::empty()) {
                Err(Errno::NOENT) if make => {
                    match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                    rustix::fs::openat(&at, name, FLAGS, Mode::empty())?
                }
                opened => opened?,
            };
            at = next;
        }
        Ok(Self(at))
    }

    /// What is there under a name, itself and not what it may lead to.
    fn stat(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Replaces a file of it whole, with the owner and mode that `like` says of the one that is
    /// there.
    fn replace(
        &self,
        name: &OsStr,
        bytes: &[u8],
        like: impl Fn(Option<&Stat>) -> (Option<(u32, u32)>, u32),
    ) -> io::Result<()> {
        let old = self.stat(name)?;
        if old
            .as_ref()
            .is_some_and(|old| FileType::from_raw_mode(old.st_mode) != FileType::RegularFile)
        {
            return Err(io::Error::other(
                "something that is no file is in its place since a moment",
            ));
        }
        let (owner, mode) = like(old.as_ref());
        // Several may be at it, and the name is hidden: no engine takes it for settings.
        let writers = Writers::Many;
        let new = New { owner, writers, ..New::of(mode, Durability::Synced) };
        file::replace_at(self.0.as_fd(), name, bytes, &new)
    }
}

/// Removes a file, and then those of `directories` that are empty, the innermost first.
pub(crate) fn remove(path: &Path, directories: &[PathBuf]) -> Result<(), SetUpError> {
    let unlink = || -> io::Result<()> {
        let directory = Directory::open(path.parent().unwrap_or_else(|| Path::new("/")))?;
        Ok(rustix::fs::unlinkat(&directory.0, name_of(path)?, AtFlags::empty())?)
    };
    match unlink() {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            return Err(SetUpError::Write { path: path.to_owned(), source });
        }
        _ => {}
    }
    for directory in directories.iter().rev() {
        // One that somebody uses by now stays.
        let _ = fs::remove_dir(directory);
    }
    Ok(())
}

/// Makes the folder for undo's files.
pub(super) fn make_private_dir(path: &Path) -> Result<(), SetUpError> {
    let failed = |source| SetUpError::Write { path: path.to_owned(), source };
    fs::create_dir_all(path).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(failed)
}

/// Removes the folder of undo's files.
pub(super) fn remove_dir(path: &Path) -> Result<(), SetUpError> {
    fs::remove_dir_all(path).map_err(|source| SetUpError::Write { path: path.to_owned(), source })
}

/// Whether what engines shall call is there, and the real runtime below it: else no container would
/// start.
pub(super) fn check_programs(program: &Path, runtime: &Path) -> Result<(), SetUpError> {
    let is_program = |path: &Path| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
    };
    if !is_program(program) {
        return Err(SetUpError::NoProgram { path: program.to_owned() });
    }
    match find_runtime(runtime, fs::metadata(program).ok().as_ref()) {
        Some(path) if is_program(&path) => Ok(()),
        _ => Err(SetUpError::NoRuntime { runtime: runtime.to_owned() }),
    }
}

#[cfg(test)]
mod tests;
