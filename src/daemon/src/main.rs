//! `mpsgated`: the command line; everything else is in the library.

use std::process::ExitCode;

use clap::Parser;
use mpsgate_daemon::{Arguments, DaemonError, Options, run};

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
    match run(&Options { config: arguments.config }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            error.exit_code().into()
        }
    }
}

/// Three lines on standard error, which is the journal under systemd.
fn report(error: &DaemonError) {
    eprintln!("error: {error}");
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        eprintln!("cause: {next}");
        cause = next.source();
    }
    eprintln!("hint: {}", error.hint());
}
