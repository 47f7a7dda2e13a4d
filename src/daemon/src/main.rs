//! `mpsgated`: the command line; everything else is in the library.

use std::process::ExitCode;
use std::time::Duration;

use mpsgate_daemon::{Arguments, Command, DaemonError, Options, PROGRAM, run};
use mpsgate_edge::print;
use mpsgate_mps::launch;
use mpsgate_mps::supervisor::{Answer, Options as HoldOptions, Request, ask, serve};

fn main() -> ExitCode {
    mpsgate_edge::run(std::env::args_os(), |arguments: Arguments| {
        match arguments.command {
            Some(Command::Hold { control, gate, dir, mps, check }) => {
                hold(HoldOptions { dir, mps, control, gate, launcher: PROGRAM.into() }, check)?;
            }
            Some(Command::Launch { card, mps, command }) => {
                return Err(DaemonError::Launch(launch(&mps, card, &command)));
            }
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
fn hold(options: HoldOptions, check: bool) -> Result<(), DaemonError> {
    if !check {
        // Where mpsgated started it, it has mpsgated's, and with that its terminal's signals. It
        // fails where it is first in a session of its own.
        let _ = rustix::process::setsid();
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
