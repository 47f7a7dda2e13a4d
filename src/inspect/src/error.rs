//! The errors that end the command, with exit code and remedy.

use std::io;

use mpsgate_edge::{EdgeError, ExitCode, Remedy};
use mpsgate_kubernetes::SeenError;

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The API server was not found or not reached, or refused.
    #[error(transparent)]
    Seen(#[from] SeenError),
    /// The program cannot wait for the network.
    #[error("cannot prepare to wait for the network")]
    Runtime(#[source] io::Error),
    /// The answer cannot be written.
    #[error(transparent)]
    Edge(#[from] EdgeError),
}

impl Remedy for InspectError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Seen(error) => Some(error.hint()),
            Self::Runtime(_) => Some("check the limit of open files: ulimit -n".to_owned()),
            Self::Edge(error) => error.hint(),
        }
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Seen(error) => match error {
                SeenError::NoKubeconfig { .. }
                | SeenError::Kubeconfig { .. }
                | SeenError::KubeconfigText { .. }
                | SeenError::Client { .. } => ExitCode::BadConfig,
                SeenError::NoNode { .. } => ExitCode::No,
                SeenError::Read { .. } if error.status().is_none() => ExitCode::Unavailable,
                _ => ExitCode::Failed,
            },
            Self::Runtime(_) => ExitCode::Failed,
            Self::Edge(error) => error.exit_code(),
        }
    }
}
