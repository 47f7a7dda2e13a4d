//! Everything that ends the command, with its exit code and its remedy.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io;

use mpsgate_config::ExitCode;
use mpsgate_kubernetes::SeenError;
use mpsgate_model::printable::plain;

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The API server was not found, not reached, or said no.
    #[error(transparent)]
    Seen(#[from] SeenError),
    /// The program cannot wait for the network.
    #[error("cannot prepare to wait for the network")]
    Runtime(#[source] io::Error),
    /// The answer cannot be written.
    #[error("cannot write the answer to stdout")]
    Stdout(#[source] io::Error),
    /// The answer is no JSON document: a slip of ours.
    #[error("cannot write the answer as JSON")]
    Render(#[source] serde_json::Error),
}

impl InspectError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Seen(error) => Some(error.hint()),
            Self::Runtime(_) => Some("check the limit of open files: ulimit -n".to_owned()),
            Self::Stdout(_) => {
                Some("check the disk that stdout is redirected to: df -h".to_owned())
            }
            // Nobody but us can do anything about it.
            Self::Render(_) => None,
        }
    }

    /// What the command exits with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Seen(error) => match error {
                SeenError::NoKubeconfig { .. }
                | SeenError::Kubeconfig { .. }
                | SeenError::Client { .. } => ExitCode::BadConfig,
                SeenError::NoNode { .. } => ExitCode::No,
                SeenError::Read { .. } if error.status().is_none() => ExitCode::Unavailable,
                _ => ExitCode::Failed,
            },
            Self::Runtime(_) | Self::Stdout(_) | Self::Render(_) => ExitCode::Failed,
        }
    }

    /// `error:`, `cause:` and `hint:` lines. Causes that a line already holds are not repeated.
    pub(crate) fn render(&self) -> String {
        let mut text = format!("error: {}\n", plain(&self.to_string()));
        let mut cause = self.source();
        while let Some(source) = cause {
            // An API server, or what stands in its place, may answer anything.
            let line = plain(&source.to_string());
            if !text.contains(&line) {
                // Writing to a String does not fail.
                let _ = writeln!(text, "cause: {line}");
            }
            cause = source.source();
        }
        if let Some(hint) = self.hint() {
            let _ = writeln!(text, "hint: {}", plain(&hint));
        }
        text
    }
}
