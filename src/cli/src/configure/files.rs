//! The files of engines: reading, and replacing them whole. The only place of this program that writes.
#![expect(
    clippy::disallowed_methods,
    reason = "configure --write and --undo change engines' settings, and do it here"
)]

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use mpsgate_config::find_runtime;
use mpsgate_configure::{Change, Source};

use super::SetUpError;

/// Links that are followed, as many as the kernel does.
const LINKS: usize = 40;

/// The file system.
#[derive(Debug)]
pub(super) struct Disk;

impl Source for Disk {
    fn read(&self, path: &Path) -> io::Result<Option<String>> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, directory: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        files.sort();
        files
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
        let now = Disk
            .read(&self.real)
            .map_err(|source| SetUpError::Read { path: self.real.clone(), source })?;
        if now != self.before {
            return Err(SetUpError::Raced { path: self.real.clone() });
        }
        for directory in &self.directories {
            fs::create_dir(directory)
                .or_else(exists)
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

fn exists(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
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
                let (Some(parent), Some(name)) = (path_now.parent(), path_now.file_name()) else {
                    break;
                };
                return Ok(fs::canonicalize(parent)
                    .map_or_else(|_| path_now.clone(), |parent| parent.join(name)));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Err(failed(io::Error::other("it leads through more than 40 links")))
}

/// Replaces a file whole, with the owner and mode that it has.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), SetUpError> {
    write(path, text, 0o644).map_err(|source| SetUpError::Write { path: path.to_owned(), source })
}

/// Replaces a file that only root may read: settings can hold passwords of registries.
pub(super) fn replace_private(path: &Path, text: &str) -> Result<(), SetUpError> {
    write(path, text, 0o600).map_err(|source| SetUpError::Write { path: path.to_owned(), source })
}

/// Replaces a file of ours whole, whoever's it was and whatever its mode; makes its directory.
pub(crate) fn replace_bytes(path: &Path, bytes: &[u8], mode: u32) -> Result<(), SetUpError> {
    let failed = |source| SetUpError::Write { path: path.to_owned(), source };
    let directory = path.parent().unwrap_or_else(|| Path::new("/"));
    fs::create_dir(directory).or_else(exists).map_err(failed)?;
    let write = || -> io::Result<()> {
        let mut new =
            tempfile::Builder::new().prefix(".mpsgate-").suffix(".new").tempfile_in(directory)?;
        new.write_all(bytes)?;
        new.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        new.as_file().sync_all()?;
        new.persist(path).map_err(|error| error.error)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(failed)
}

fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let directory = path.parent().unwrap_or_else(|| Path::new("/"));
    // Hidden, and of a name that no engine takes for settings.
    let mut new =
        tempfile::Builder::new().prefix(".mpsgate-").suffix(".new").tempfile_in(directory)?;
    new.write_all(text.as_bytes())?;
    let old: Option<Metadata> = fs::metadata(path).ok();
    if let Some(old) = &old {
        fchown(new.as_file(), Some(old.uid()), Some(old.gid()))?;
    }
    let mode = old.map_or(mode, |old| old.mode() & 0o7777);
    new.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    new.as_file().sync_all()?;
    new.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

/// Removes a file, and then those of `directories` that are empty, the innermost first.
pub(super) fn remove(path: &Path, directories: &[PathBuf]) -> Result<(), SetUpError> {
    match fs::remove_file(path) {
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

/// Whether what engines shall call is there, and the real runtime below it: else no container would start.
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
