//! `kubectl-inspect-cgpu`: parse, run, print one error, exit.

use std::process::ExitCode;

fn main() -> ExitCode {
    mpsgate_inspect::main(std::env::args_os()).into()
}
