//! `mpsgate`: parse, run, print one error, exit.

use std::process::ExitCode;

fn main() -> ExitCode {
    mpsgate_cli::main(std::env::args_os()).into()
}
