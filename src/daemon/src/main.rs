//! `mpsgated`: the command line; everything else is in the library.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use mpsgate_config::paths;
use mpsgate_daemon::{Arguments, Command, DaemonError, Options, run};
use mpsgate_edge::print;
use mpsgate_mps::supervisor::{Answer, Options as HoldOptions, Request, ask, serve};

fn main() -> ExitCode {
    mpsgate_edge::run(std::env::args_os(), |arguments: Arguments| {
        match arguments.command {
            Some(Command::Hold { control, check }) => hold(control, check)?,
            None => run(&Options {
                config: arguments.config,
                qualify_first: Duration::from_secs(arguments.qualify_first.into()),
            })?,
        }
        Ok::<_, DaemonError>(mpsgate_edge::ExitCode::Done)
    })
    .into()
}

/// Nothing of the daemon runs: no settings, no log but standard error, no second thread.
fn hold(control: PathBuf, check: bool) -> Result<(), DaemonError> {
    let options = HoldOptions { dir: paths::HOLD_DIR.into(), mps: paths::MPS_DIR.into(), control };
    if !check {
        return serve(&options).map_err(DaemonError::Hold);
    }
    match ask(&options.dir, &Request::Check).map_err(DaemonError::Hold)? {
        Answer::Ready(held) => {
            let text = format!("a holder answers; control daemons that it holds: {held}\n");
            print::answer(&text).map_err(DaemonError::Edge)
        }
        _ => Ok(()),
    }
}
