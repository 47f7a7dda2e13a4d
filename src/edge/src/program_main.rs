//! `main` of every program.

use std::ffi::OsString;

use clap::Parser;
use clap::error::ErrorKind;

use crate::{ExitCode, Remedy, report};

/// Parses `argv` (with the program's name first), runs `body`, prints the error that it ends with,
/// and returns its exit code.
pub fn run<A: Parser, E: Remedy>(
    argv: impl IntoIterator<Item = OsString>,
    body: impl FnOnce(A) -> Result<ExitCode, E>,
) -> ExitCode {
    let arguments = match A::try_parse_from(argv) {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    body(arguments).unwrap_or_else(|error| {
        report(&error);
        error.exit_code()
    })
}

/// Prints help, version or what is wrong with the arguments. clap's own status for the last is 2,
/// which here means that something was tried and failed.
fn usage(error: &clap::Error) -> ExitCode {
    // If even this cannot be printed, the exit code is still right.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::Done,
        _ => ExitCode::Usage,
    }
}
