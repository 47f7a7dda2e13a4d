//! `mpsgate completions`: made of the same types as the arguments.

use clap::CommandFactory;
use mpsgate_edge::{ExitCode, print};

use crate::CliError;
use crate::args::{Cli, CompletionsArgs};

pub(crate) fn run(args: &CompletionsArgs) -> Result<ExitCode, CliError> {
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    print::answer(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::Done)
}
