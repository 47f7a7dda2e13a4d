//! `mpsgate mps ask`: what NVIDIA's control daemon says, for who looks for a fault. It asks by
//! itself: mpsgated may be down. Who else asks is kept waiting by the lock of the control channel.

use std::path::Path;

use mpsgate_config::{Config, paths};
use mpsgate_edge::{ExitCode, print};
use mpsgate_model::NodeCard;
use mpsgate_mps::protocol::Command;
use mpsgate_mps::{MpsDirectories, MpsInstance};

use crate::args::MpsAskArgs;
use crate::error::AskError;
use crate::{CliError, node_snapshot};

pub(crate) fn run(args: &MpsAskArgs) -> Result<ExitCode, CliError> {
    let words: Vec<&str> = args.command.iter().map(String::as_str).collect();
    let command = Command::reading(&words)
        .ok_or_else(|| AskError::NotReading { command: args.command.join(" ") })?;
    let config = Config::load(Path::new(paths::CONFIG_FILE))?;
    let card = directory(&args.gpu)?;
    let text = MpsDirectories::new(Path::new(paths::MPS_DIR), card)
        // The UUID only matters to a daemon that is started, and none is.
        .map(|dirs| MpsInstance::new(card, "", &config.mps.control, dirs))
        .and_then(|mps| mps.channel().ask_for_text(&command))
        .map_err(AskError::Mps)?;
    print::answer(&text)?;
    Ok(ExitCode::Done)
}

/// The number of a GPU's directory: the minor of its device node, as mpsgated has written it down.
fn directory(gpu: &str) -> Result<u32, CliError> {
    let cards = node_snapshot::load(Path::new(paths::NODE_SNAPSHOT))?.cards;
    let is_it = |card: &NodeCard| card.uuid.as_str() == gpu || card.index.to_string() == gpu;
    let found = cards.iter().find(|card| is_it(card)).map(|card| card.minor);
    found.ok_or_else(|| AskError::NoCard { gpu: gpu.to_owned() }.into())
}
