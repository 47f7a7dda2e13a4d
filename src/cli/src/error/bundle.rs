//! Why there is no bundle.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Why `doctor --bundle` wrote nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// Something has that name; a symbolic link counts.
    #[error("{} exists and is not replaced", path.display())]
    Exists {
        /// As it was named.
        path: PathBuf,
    },
    /// It cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// As it was named.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl BundleError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Exists { path } => {
                format!("name another file, or move it away: mv {0} {0}.old", path.display())
            }
            Self::Write { path, source } => {
                let directory = match path.parent() {
                    Some(parent) if parent != std::path::Path::new("") => parent,
                    _ => std::path::Path::new("."),
                };
                match source.kind() {
                    ErrorKind::PermissionDenied => "run it with sudo, or as root".to_owned(),
                    ErrorKind::NotFound => format!("mkdir -p {}", directory.display()),
                    _ => format!("is there room? df -h {}", directory.display()),
                }
            }
        }
    }
}
