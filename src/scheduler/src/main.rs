//! `mpsgate-scheduler`: the command line; everything else is in the library.

use std::process::ExitCode;

use clap::Parser;
use mpsgate_scheduler::{Arguments, run};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are answers, not errors.
            let code = if error.use_stderr() {
                mpsgate_config::ExitCode::Usage
            } else {
                mpsgate_config::ExitCode::Done
            };
            let _ = error.print();
            return code.into();
        }
    };
    let Err(error) = run(arguments) else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let mut cause = std::error::Error::source(&error);
    while let Some(next) = cause {
        eprintln!("cause: {next}");
        cause = next.source();
    }
    eprintln!("hint: {}", error.hint());
    error.exit_code().into()
}
