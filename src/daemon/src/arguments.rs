//! The command line of `mpsgated`.

use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};
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
    /// Something else than being the node daemon
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What the program does instead.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Hold MPS control daemons for an mpsgated in another pod
    ///
    /// For nodes without systemd in reach (mps.supervisor = "holder"): starts a card's control daemon when
    /// mpsgated asks for it, and is its parent, so that mpsgated can be replaced without ending CUDA work.
    /// Ending it ends all that it holds: on SIGTERM it says quit to each. Needs root, the host's pid and
    /// IPC namespaces and /run/mpsgate.
    #[command(after_long_help = "\
Example:
  mpsgated hold
  mpsgated hold --check && kubectl uncordon NODE

Exit status:
  0   ended by SIGTERM or SIGINT, with what it held; with --check: it answers
  2   failed
  64  wrong arguments
  69  with --check: no holder answers")]
    Hold {
        /// The control program: the same as mps.control in mpsgated's settings, no other is started
        #[arg(long, value_name = "FILE", default_value = "/usr/bin/nvidia-cuda-mps-control")]
        control: PathBuf,
        /// Only say whether a holder answers on this node, and how many it holds
        #[arg(long)]
        check: bool,
    },
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
