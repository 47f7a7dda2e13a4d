//! Why `mps ask` has no answer.

use std::io;

use mpsgate_mps::MpsError;
use mpsgate_mps::protocol::Command;

/// Why a control daemon was not asked, or did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// It would change something, or NVIDIA's program takes it otherwise.
    #[error("`{command}` is no command that only reads, so it is not passed on")]
    NotReading {
        /// As it was typed.
        command: String,
    },
    /// No GPU of the node has this UUID or index.
    #[error("this node has no GPU {gpu}")]
    NoCard {
        /// As it was typed.
        gpu: String,
    },
    /// The control daemon, or the way to it.
    #[error(transparent)]
    Mps(MpsError),
}

impl AskError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotReading { .. } => Some(format!(
                "one of: {}; to end MPS: mpsgate mps stop GPU",
                Command::READING.join(", ")
            )),
            Self::NoCard { .. } => Some("mpsgate status lists the GPUs".to_owned()),
            Self::Mps(MpsError::Fs { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Some("run it with sudo, or as root".to_owned())
            }
            Self::Mps(error) => error.hint(),
        }
    }
}
