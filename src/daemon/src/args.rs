//! The command line of `mpsgated`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};
use mpsgate_config::paths;

/// The node daemon of mpsgate: it grants GPU memory to containers
///
/// mpsgated runs an MPS control daemon for each managed GPU, keeps the ledger of grants, and
/// answers mpsgate-runtime, mpsgate-hook and mpsgate(8) on a socket. Control daemons, grants and
/// containers survive when mpsgated ends, restarts or is upgraded. SIGHUP reloads the settings, as
/// mpsgate reload does. SIGTERM and SIGINT end it.
#[derive(Debug, Parser)]
#[command(
    name = "mpsgated",
    version,
    verbatim_doc_comment,
    after_long_help = "\
Example:
  mpsgated --config /etc/mpsgate/config.toml

Exit status:
  0   ended by SIGTERM or SIGINT
  2   an error; the reason is in the journal
  64  wrong arguments
  78  the settings cannot be used"
)]
pub struct Arguments {
    /// The settings of mpsgate, if any
    #[arg(long, value_name = "FILE", default_value = paths::CONFIG_FILE)]
    pub config: PathBuf,
    /// How long kubelet waits for a GPU to be asked first
    ///
    /// Kubelet is not told of a GPU that was never asked (mpsgate qualify) before it was, or
    /// before this time is over. For a node where something asks, as with the chart. A GPU with
    /// grants, or with memory that is promised to pods, does not wait, and neither does a
    /// simulated one.
    #[arg(
        long,
        verbatim_doc_comment,
        value_name = "SECONDS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u16).range(0..=3600)
    )]
    pub qualify_first: u16,
    /// What to do instead of serving the node
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What the program does instead.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Supervise MPS control daemons where no systemd has a unit for each
    ///
    /// For pods (mps.supervisor = "holder"), and for hosts without systemd or with one before 240,
    /// where mpsgated starts it. The supervisor starts the control daemon of a GPU when mpsgated
    /// requests it, and is its parent, so mpsgated can be replaced without ending CUDA processes.
    /// When the supervisor ends, it ends its control daemons: on SIGTERM it sends quit to each. It
    /// needs root, /run/mpsgate, and the pid and IPC namespaces of the host.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Example:
  mpsgated hold
  mpsgated hold --check && kubectl uncordon NODE

Exit status:
  0   ended by SIGTERM or SIGINT, with its control daemons; with --check: it answers
  2   an error
  64  wrong arguments
  69  with --check: no supervisor answers"
    )]
    Hold {
        /// The program to start
        ///
        /// It is the same as mps.control in the settings of mpsgated. No other program is started.
        #[arg(
            long,
            verbatim_doc_comment,
            value_name = "FILE",
            default_value = "/usr/bin/nvidia-cuda-mps-control"
        )]
        control: PathBuf,
        /// The gates' program, which is started for each GPU that mpsgated asks for
        ///
        /// On a host. In a pod gates are another container.
        #[arg(long, verbatim_doc_comment, value_name = "FILE")]
        gate: Option<PathBuf>,
        /// The directory of the supervisor's socket
        #[arg(long, hide = true, value_name = "DIR", default_value = paths::HOLD_DIR)]
        dir: PathBuf,
        /// The directory of all GPUs' MPS directories
        #[arg(long, hide = true, value_name = "DIR", default_value = paths::MPS_DIR)]
        mps: PathBuf,
        /// Only say whether a supervisor answers, and how many control daemons it has
        #[arg(long)]
        check: bool,
    },
    /// Become the MPS control daemon of a GPU, in a mount namespace of its own
    ///
    /// The units and the supervisor start it. It takes the GPU's daemon.lock, leaves the mount
    /// namespace of the node, and mounts a tmpfs where the control daemon keeps its sockets, so
    /// that no user of the node reaches them. If a step fails, nothing is started.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Example:
  mpsgated launch --card 0 -- /usr/bin/nvidia-cuda-mps-control -f

Exit status:
  2   an error: no control daemon was started
  64  wrong arguments"
    )]
    Launch {
        /// The number of the GPU's device node, /dev/nvidiaN
        #[arg(long, value_name = "N")]
        card: u32,
        /// The directory of all GPUs' MPS directories
        #[arg(long, hide = true, value_name = "DIR", default_value = paths::MPS_DIR)]
        mps: PathBuf,
        /// The control program, by its path, and its arguments
        #[arg(last = true, required = true, value_name = "PROGRAM")]
        command: Vec<OsString>,
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
