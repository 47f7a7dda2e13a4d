//! Errors that end a program.

use std::error::Error;
use std::io;

use crate::ExitCode;

/// What ends a program: an error that knows what to do about it.
pub trait Remedy: Error {
    /// What to do about it; `None` where nobody but the developers can do anything.
    fn hint(&self) -> Option<String>;

    /// What the program exits with.
    fn exit_code(&self) -> ExitCode;
}

/// What the edge itself fails at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EdgeError {
    /// The answer cannot be written.
    #[error("cannot write the answer to stdout")]
    Stdout(#[source] io::Error),
    /// The answer is no JSON document: a slip of ours.
    #[error("cannot write the answer as JSON")]
    Json(#[source] serde_json::Error),
    /// Log lines go nowhere.
    #[error("cannot open the log")]
    Log(#[source] Box<dyn Error + Send + Sync>),
}

impl Remedy for EdgeError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Stdout(_) => {
                Some("check the disk that stdout is redirected to: df -h".to_owned())
            }
            Self::Json(_) => None,
            Self::Log(_) => Some("start it with a standard error that can be written".to_owned()),
        }
    }

    fn exit_code(&self) -> ExitCode {
        ExitCode::Failed
    }
}
