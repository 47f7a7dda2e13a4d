//! The ledger on disk: one file, replaced whole, under a lock that only one daemon can hold.
//!
//! The directory lies on a tmpfs (`/run`), so the file lives exactly as long as the containers can:
//! a reboot ends both. It is written to a temporary name and renamed; a reader sees the old or the
//! new ledger, never half of one. `fsync` is asked for all the same and costs nothing on tmpfs.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mpsgate_host::crash_steps;
use mpsgate_host::file::{self, Durability, New};
use mpsgate_host::format::{self, FormatError};
use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;

/// The format that this version writes. A change that an older version would misread raises it.
pub const FORMAT: u32 = 1;

/// Largest file that is read, in bytes: about 50,000 grants.
const SIZE_LIMIT: u64 = 64 << 20;

const FILE: &str = "ledger.json";
const LOCK: &str = "lock";

/// Why the ledger cannot be read or written. The file is then as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerFileError {
    /// A system call failed.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Another daemon holds the directory.
    #[error("another mpsgated holds {path}")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The directory is no longer the one that was locked.
    #[error("{path} was replaced while mpsgated ran")]
    Replaced {
        /// The directory.
        path: PathBuf,
    },
    /// Not the JSON of a ledger: cut off, or something else.
    #[error("{path} is no ledger")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
    /// Two entries under one key.
    #[error("{path} holds one container twice")]
    Duplicate {
        /// The file.
        path: PathBuf,
    },
    /// Written by a newer mpsgated.
    #[error("{path} has format {found}, this mpsgated knows {FORMAT}")]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Larger than any ledger that mpsgated writes.
    #[error("{path} has {bytes} bytes, a ledger has at most {SIZE_LIMIT}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
}

impl LedgerFileError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Io { path, .. } => format!(
                "check that {} is a writable tmpfs: df -h {0}",
                path.parent().unwrap_or_else(|| Path::new("/run")).display()
            ),
            Self::Replaced { path } => format!(
                "find out who did it (ls -ld {}), put the old one back, or restart mpsgated once no \
                 container has GPU memory",
                path.display()
            ),
            Self::Locked { path } => format!("find it with: fuser {}", path.display()),
            Self::Corrupt { path, .. } | Self::Duplicate { path } | Self::TooLarge { path, .. } => {
                format!(
                    "stop every container that has GPU memory, then move the file away: mv {0} {0}.bad",
                    path.display()
                )
            }
            Self::NewerFormat { .. } => {
                "install the mpsgate version that wrote it, or stop every container that has GPU \
                 memory and remove the file"
                    .to_owned()
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
struct OnDisk<L> {
    format: u32,
    /// Counts the writes, for people who compare two copies of the file.
    generation: u64,
    #[serde(flatten)]
    ledger: L,
}

/// The ledger's directory, locked for this process.
#[derive(Debug)]
pub struct LedgerFile {
    directory: PathBuf,
    /// Device and inode of the directory. mpsgated does not write to a link or another directory in
    /// its place.
    identity: (u64, u64),
    generation: u64,
    _lock: File,
}

impl LedgerFile {
    /// Locks `directory`, which must exist, and reads the ledger in it; an absent file is an empty
    /// ledger. The lock ends with the process.
    ///
    /// # Errors
    /// See [`LedgerFileError`]; an unreadable file is never overwritten.
    pub fn open(directory: &Path) -> Result<(Self, Ledger), LedgerFileError> {
        let lock_path = directory.join(LOCK);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(O_NOFOLLOW)
            .open(&lock_path)
            .map_err(io_error("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LedgerFileError::Locked { path: lock_path });
            }
            Err(TryLockError::Error(e)) => return Err(io_error("lock", &lock_path)(e)),
        }
        let (generation, ledger) = read(&directory.join(FILE))?;
        let identity = identity(directory)?;
        Ok((Self { directory: directory.to_owned(), identity, generation, _lock: lock }, ledger))
    }

    /// Replaces the file by `ledger`.
    ///
    /// # Errors
    /// Where writing fails; the old file is then still there.
    pub fn store(&mut self, ledger: &Ledger) -> Result<(), LedgerFileError> {
        let text = self.text(ledger)?;
        self.put(&text)
    }

    /// The next text of the file, for [`Self::put`].
    ///
    /// # Errors
    /// None that a ledger is known to bring about.
    pub fn text(&self, ledger: &Ledger) -> Result<Vec<u8>, LedgerFileError> {
        let generation = self.generation + 1;
        serde_json::to_vec(&OnDisk { format: FORMAT, generation, ledger })
            .map_err(|source| LedgerFileError::Corrupt { path: self.directory.join(FILE), source })
    }

    /// Replaces the file by its next text.
    ///
    /// # Errors
    /// Where writing fails; the old file is then still there.
    pub fn put(&mut self, text: &[u8]) -> Result<(), LedgerFileError> {
        match identity(&self.directory) {
            Ok(found) if found == self.identity => {}
            // An error of looking at the directory says more than the failed write would.
            Err(LedgerFileError::Io { .. }) => {}
            _ => return Err(LedgerFileError::Replaced { path: self.directory.clone() }),
        }
        let target = self.directory.join(FILE);
        let new = New {
            steps: crash_steps!("ledger": "created", "written", "renamed"),
            ..New::of(0o600, Durability::Whole)
        };
        file::replace(&target, text, &new).map_err(io_error("write", &target))?;
        self.generation += 1;
        Ok(())
    }
}

/// Device and inode of a directory, not of what a link in its place leads to.
fn identity(directory: &Path) -> Result<(u64, u64), LedgerFileError> {
    let found = directory.symlink_metadata().map_err(io_error("look at", directory))?;
    if !found.is_dir() {
        return Err(LedgerFileError::Replaced { path: directory.to_owned() });
    }
    Ok((found.dev(), found.ino()))
}

// `libc`'s value on Linux for every architecture that NVIDIA's driver supports but arm64.
#[cfg(target_arch = "x86_64")]
const O_NOFOLLOW: i32 = 0o400_000;
#[cfg(not(target_arch = "x86_64"))]
const O_NOFOLLOW: i32 = 0o100_000;

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LedgerFileError {
    let path = path.to_owned();
    move |source| LedgerFileError::Io { action, path, source }
}

fn read(path: &Path) -> Result<(u64, Ledger), LedgerFileError> {
    let file = match OpenOptions::new().read(true).custom_flags(O_NOFOLLOW).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((0, Ledger::default())),
        Err(e) => return Err(io_error("open", path)(e)),
    };
    let bytes = file.metadata().map_err(io_error("read", path))?.len();
    if bytes > SIZE_LIMIT {
        return Err(LedgerFileError::TooLarge { path: path.to_owned(), bytes });
    }
    let mut text = Vec::new();
    file.take(SIZE_LIMIT).read_to_end(&mut text).map_err(io_error("read", path))?;
    parse(&text, path)
}

/// Reads a ledger from the bytes of its file; `path` only names it in errors.
///
/// # Errors
/// Where the bytes are no ledger, or one of a newer format.
pub fn parse(text: &[u8], path: &Path) -> Result<(u64, Ledger), LedgerFileError> {
    let OnDisk::<Ledger> { generation, ledger, .. } =
        format::read(text, FORMAT).map_err(|error| match error {
            FormatError::Other { found, .. } => {
                LedgerFileError::NewerFormat { path: path.to_owned(), found }
            }
            FormatError::Content(source) => {
                LedgerFileError::Corrupt { path: path.to_owned(), source }
            }
        })?;
    if ledger.has_duplicates() {
        return Err(LedgerFileError::Duplicate { path: path.to_owned() });
    }
    Ok((generation, ledger))
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        reason = "test code fails by panicking"
    )]
    use super::*;
    use crate::Mib;
    use crate::ledger::tests::grant;
    use crate::ledger::{Capacity, ProcessId};

    fn one_entry() -> Ledger {
        let mut ledger = Ledger::default();
        let capacity = Capacity { memory: Mib(100), max_clients: 48 };
        let holder = ProcessId { pid: 1, start_time: 2 };
        ledger.reserve(grant(1, 1, 0, 60), holder, &[capacity], 3).unwrap();
        ledger
    }

    #[test]
    fn what_was_stored_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, empty) = LedgerFile::open(dir.path()).unwrap();
        assert_eq!(empty, Ledger::default());
        file.store(&one_entry()).unwrap();
        drop(file);
        assert_eq!(LedgerFile::open(dir.path()).unwrap().1, one_entry());
    }

    #[test]
    fn only_one_daemon_holds_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let _held = LedgerFile::open(dir.path()).unwrap();
        assert!(matches!(LedgerFile::open(dir.path()), Err(LedgerFileError::Locked { .. })));
    }

    #[test]
    fn a_cut_off_ledger_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, _) = LedgerFile::open(dir.path()).unwrap();
        file.store(&one_entry()).unwrap();
        drop(file);
        let path = dir.path().join(FILE);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = LedgerFile::open(dir.path()).unwrap_err();
            assert!(matches!(error, LedgerFileError::Corrupt { .. }), "{length}: {error}");
            assert_eq!(std::fs::read(&path).unwrap(), &whole[..length]);
        }
    }

    #[test]
    fn a_newer_format_is_refused_whatever_else_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), r#"{"format":2,"grants":"elsewhere"}"#).unwrap();
        let error = LedgerFile::open(dir.path()).unwrap_err();
        assert!(matches!(error, LedgerFileError::NewerFormat { found: 2, .. }), "{error}");
    }

    #[test]
    fn a_container_twice_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let entry = serde_json::to_value(&one_entry().entries()[0]).unwrap();
        let text = serde_json::json!({
            "format": 1, "generation": 1, "entries": [entry.clone(), entry], "promises": []
        });
        std::fs::write(dir.path().join(FILE), text.to_string()).unwrap();
        let error = LedgerFile::open(dir.path()).unwrap_err();
        assert!(matches!(error, LedgerFileError::Duplicate { .. }), "{error}");
    }

    #[test]
    fn a_directory_that_was_replaced_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (place, elsewhere) = (dir.path().join("ledger"), dir.path().join("elsewhere"));
        std::fs::create_dir(&place).unwrap();
        std::fs::create_dir(&elsewhere).unwrap();
        let (mut file, _) = LedgerFile::open(&place).unwrap();
        std::fs::rename(&place, dir.path().join("away")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &place).unwrap();
        let error = file.store(&one_entry()).unwrap_err();
        assert!(matches!(error, LedgerFileError::Replaced { .. }), "{error}");
        assert_eq!(elsewhere.read_dir().unwrap().count(), 0);
        std::fs::remove_file(&place).unwrap();
        std::fs::rename(dir.path().join("away"), &place).unwrap();
        file.store(&one_entry()).unwrap();
    }

    #[test]
    fn a_symlink_in_its_place_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("elsewhere");
        std::fs::write(&target, "{}").unwrap();
        std::os::unix::fs::symlink(&target, dir.path().join(FILE)).unwrap();
        assert!(matches!(LedgerFile::open(dir.path()), Err(LedgerFileError::Io { .. })));
    }
}
