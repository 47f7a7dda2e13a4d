//! The command line of `mpsgate-gate`.

use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use mpsgate_config::paths;

/// The containers' doors to the MPS control daemon of one GPU
///
/// Each container with a grant has a socket of its own. The gate speaks the first words of a CUDA
/// client with the control daemon, and passes its answer on. Nothing else passes: a container
/// cannot send commands to the control daemon, and cannot keep it from answering others. mpsgated
/// tells the gate of containers by files. SIGTERM and SIGINT end it when the clients that wait are
/// served.
///
/// One gate serves one GPU. With --every-card it starts a gate for each GPU that mpsgated asks for:
/// as the container "gate" of mpsgated's pod, where no systemd starts them.
#[derive(Debug, Parser)]
#[command(
    name = "mpsgate-gate",
    version,
    verbatim_doc_comment,
    after_long_help = "\
Example:
  mpsgate-gate --card 0
  mpsgate-gate --every-card

Exit status:
  0   ended by SIGTERM or SIGINT
  2   an error; the reason is in the journal
  64  wrong arguments"
)]
pub struct Arguments {
    /// The number of the GPU, as nvidia-smi shows it
    #[arg(long, value_name = "N", required_unless_present = "every_card")]
    pub card: Option<u32>,
    /// Start a gate for each GPU that mpsgated asks for, and keep it running
    #[arg(long, conflicts_with = "card")]
    pub every_card: bool,
    /// The directory of all GPUs' MPS directories
    #[arg(long, value_name = "DIR", default_value = paths::MPS_DIR)]
    pub mps: PathBuf,
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
