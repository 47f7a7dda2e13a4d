//! The command line of `mpsgated`.

use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use mpsgate_config::paths;

/// The node daemon of mpsgate: gives containers GPU memory under MPS
///
/// Keeps one MPS control daemon for each managed GPU, a ledger of what each container was given, and the
/// socket by which mpsgate-runtime, mpsgate-hook and mpsgate(8) ask for it. Ending, restarting or upgrading
/// it leaves control daemons, grants and containers alone. SIGHUP makes it read its settings again, as
/// mpsgate reload does; SIGTERM and SIGINT end it.
#[derive(Debug, Parser)]
#[command(
    name = "mpsgated",
    version,
    after_long_help = "\
Example:
  mpsgated --config /etc/mpsgate/config.toml

Exit status:
  0   ended by SIGTERM or SIGINT
  2   failed; the reason is in the journal
  64  wrong arguments
  78  the settings cannot be used"
)]
pub struct Arguments {
    /// The settings; a missing file means: all defaults
    #[arg(long, value_name = "FILE", default_value = paths::CONFIG_FILE)]
    pub config: PathBuf,
}

/// The command line as clap's description, for pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        command().debug_assert();
    }
}
