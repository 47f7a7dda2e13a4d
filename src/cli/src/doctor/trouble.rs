//! The files of the node that is looked at, and why one of them tells nothing.

use std::error::Error;
use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};

use mpsgate_model::printable;

/// Why a fact is missing: an error with its causes, and its remedy where it knows one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) what: String,
    pub(super) hint: Option<String>,
}

/// `None` inside means: is not there.
pub(super) type Known<T> = Result<T, Trouble>;

impl Trouble {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None }
    }

    pub(super) fn of(error: &dyn Error, hint: impl Into<Option<String>>) -> Self {
        Self { what: printable::chain(error), hint: hint.into() }
    }

    /// An I/O error and the file that it is about.
    pub(super) fn io(action: &str, path: &Path, error: &io::Error) -> Self {
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        Self {
            what: format!("cannot {action} {}: {error}", path.display()),
            hint: denied.then(|| "run it with sudo, or as root".to_owned()),
        }
    }
}

/// `path` of the node whose root is `root`. A name without `/` stays what it is.
pub(super) fn below(root: &Path, path: impl AsRef<Path>) -> PathBuf {
    path.as_ref()
        .strip_prefix("/")
        .map_or_else(|_| path.as_ref().to_owned(), |rest| root.join(rest))
}

/// What is in a directory, as far as it can be read.
pub(super) fn entries(path: &Path) -> impl Iterator<Item = DirEntry> + use<> {
    std::fs::read_dir(path).into_iter().flatten().flatten()
}

/// Reads a small file of `/proc`, `/sys` or `/run`; `None` where there is none.
pub(super) fn read(path: &Path) -> Known<Option<String>> {
    there(mpsgate_host::procfs::text(path)).map_err(|error| Trouble::io("read", path, &error))
}

/// Reads one that should be there.
pub(super) fn need(path: &Path) -> Known<String> {
    read(path)?.ok_or_else(|| Trouble::new(format!("{} is missing", path.display())))
}

/// `None` for what is not there.
pub(super) fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
