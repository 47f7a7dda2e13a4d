//! The node snapshot that mpsgated writes: read by the doctor and, with `--node`, by explain.

use std::io;
use std::path::{Path, PathBuf};

use mpsgate_api::{FILES_FORMAT, NodeSnapshot};

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
    /// Not JSON, or without what every snapshot has.
    #[error("{} is no node snapshot", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        #[source]
        source: serde_json::Error,
    },
    /// Written by another version.
    #[error("{} has format {found}, this mpsgate knows {FILES_FORMAT}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
}

impl SnapshotError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Read { path, .. } => format!("see: ls -l {}", path.display()),
            Self::Content { .. } | Self::Format { .. } => {
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
    #[derive(serde::Deserialize)]
    struct Header {
        format: u32,
    }
    let content = |source| SnapshotError::Content { path: path.to_owned(), source };
    let text = std::fs::read(path)
        .map_err(|source| SnapshotError::Read { path: path.to_owned(), source })?;
    // The format is read first: a newer file may differ in anything else.
    let Header { format } = serde_json::from_slice(&text).map_err(content)?;
    if format != FILES_FORMAT {
        return Err(SnapshotError::Format { path: path.to_owned(), found: format });
    }
    serde_json::from_slice(&text).map_err(content)
}
