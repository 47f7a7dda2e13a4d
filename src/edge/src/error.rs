//! Errors that end a program.

use std::error::Error;
use std::io;

use crate::ExitCode;

/// An error that ends a program, with its remedy.
pub trait Remedy: Error {
    /// The remedy; `None` where only the developers can do anything.
    fn hint(&self) -> Option<String>;

    /// The exit code of the program.
    fn exit_code(&self) -> ExitCode;
}

/// Failures of the edge itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EdgeError {
    /// The answer cannot be written.
    #[error("cannot write the answer to stdout")]
    Stdout(#[source] io::Error),
    /// The answer has no JSON form: a mistake in mpsgate.
    #[error("cannot write the answer as JSON")]
    Json(#[source] serde_json::Error),
    /// The log cannot be opened.
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
