//! The node snapshot that mpsgated writes: read by the doctor and, with `--node`, by explain.

use std::io;
use std::path::{Path, PathBuf};

use mpsgate_api::NodeSnapshot;
use mpsgate_host::format::FormatError;

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Opening or reading failed.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// No snapshot, or another version's.
    #[error("{} is no node snapshot", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: FormatError,
    },
}

impl SnapshotError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Read { path, .. } => format!("see: ls -l {}", path.display()),
            Self::Content { .. } => {
                "mpsgated writes it anew when it starts: systemctl restart mpsgated".to_owned()
            }
        }
    }
}

/// Reads a snapshot.
///
/// # Errors
/// Any [`SnapshotError`]; a missing file is `Read` with `NotFound`.
pub(crate) fn load(path: &Path) -> Result<NodeSnapshot, SnapshotError> {
    let text = std::fs::read(path)
        .map_err(|source| SnapshotError::Read { path: path.to_owned(), source })?;
    NodeSnapshot::parse(&text)
        .map_err(|source| SnapshotError::Content { path: path.to_owned(), source })
}
