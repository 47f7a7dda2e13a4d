//! Why `usage` has no answer.

use std::io;
use std::path::PathBuf;

use mpsgate_host::format::FormatError;

/// Why the days cannot be added up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsageError {
    /// A directory or file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A file is not what mpsgated of this version writes.
    #[error("{} cannot be used", .path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: FormatError,
    },
    /// There is no day of those asked for.
    #[error("there is no usage of {days}")]
    None {
        /// As they were asked for.
        days: String,
    },
}

impl UsageError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "run it with sudo, or as root".to_owned()
            }
            Self::Read { path, source } if source.kind() == io::ErrorKind::NotFound => format!(
                "mpsgated writes a day's first file after 30 s with a managed GPU: mpsgate status; ls {}",
                path.display()
            ),
            Self::Read { .. } => "mpsgate doctor".to_owned(),
            Self::Content { path, .. } => {
                format!(
                    "leave that day out with --from or --to, or move it away: mv {0} {0}.bad",
                    path.display()
                )
            }
            Self::None { .. } => {
                "ls /var/lib/mpsgate/usage shows the days that there are".to_owned()
            }
        }
    }
}
