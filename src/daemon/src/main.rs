//! `mpsgated`: the command line; everything else is in the library.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use mpsgate_config::paths;
use mpsgate_daemon::{Arguments, Command, DaemonError, Options, run};
use mpsgate_hold::{Answer, HoldError, Request};

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
    if let Some(Command::Hold { control, check }) = arguments.command {
        return hold(control, check);
    }
    match run(&Options { config: arguments.config }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            error.exit_code().into()
        }
    }
}

/// Nothing of the daemon runs: no settings, no log but standard error, no second thread.
fn hold(control: PathBuf, check: bool) -> ExitCode {
    let options =
        mpsgate_hold::Options { dir: paths::HOLD_DIR.into(), mps: paths::MPS_DIR.into(), control };
    let done = if check {
        mpsgate_hold::ask(&options.dir, &Request::Check).map(|answer| {
            if let Answer::Ready(held) = answer {
                println!("a holder answers; control daemons that it holds: {held}");
            }
        })
    } else {
        mpsgate_hold::serve(&options)
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    print(&error, &error.hint());
    match error {
        HoldError::Away { .. } => mpsgate_config::ExitCode::Unavailable.into(),
        _ => mpsgate_config::ExitCode::Failed.into(),
    }
}

/// Three lines on standard error, which is the journal under systemd.
fn report(error: &DaemonError) {
    print(error, &error.hint());
}

fn print(error: &dyn std::error::Error, hint: &str) {
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(next) = cause {
        eprintln!("cause: {next}");
        cause = next.source();
    }
    eprintln!("hint: {hint}");
}
