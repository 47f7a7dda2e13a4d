//! `mpsgate-scheduler`: the command line; everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    mpsgate_edge::run(std::env::args_os(), |arguments| {
        mpsgate_scheduler::run(arguments).map(|()| mpsgate_edge::ExitCode::Done)
    })
    .into()
}
