//! `mpsgate-gate`: the command line; everything else is in the library.

use std::path::Path;
use std::process::ExitCode;

use mpsgate_config::LogLevel;
use mpsgate_edge::logging;
use mpsgate_gate::{
    Arguments, Bounds, GateError, Options, Store, confine, filter, lock, mount_view, serve,
    start_all,
};
use mpsgate_model::door_file::QUESTIONS;

fn main() -> ExitCode {
    mpsgate_edge::run(std::env::args_os(), |arguments: Arguments| {
        logging::to_journal("mpsgate-gate", LogLevel::Info)?;
        match arguments.card {
            Some(card) => gate(&arguments.mps, card)?,
            None => {
                let program = std::env::current_exe()
                    .map_err(GateError::system("find this program's file"))?;
                start_all(&program, &arguments.mps)?;
            }
        }
        Ok::<_, GateError>(mpsgate_edge::ExitCode::Done)
    })
    .into()
}

fn gate(mps: &Path, number: u32) -> Result<(), GateError> {
    let card = mps.join(number.to_string());
    let options =
        Options { card: card.clone(), mpsgated: card.join(QUESTIONS), bounds: Bounds::DEFAULT };
    let _lock = lock(&card.join("gate.lock"))?;
    let (store, kept) = Store::find(mps, number)?;
    confine::raise_nofile()?;
    // All before the first byte of a container. What it sees its unit has narrowed, if it has one.
    if !matches!(store, Store::Systemd) {
        mount_view::narrow(mps)?;
    }
    confine::confine()?;
    filter::install()?;
    serve(&options, store, kept)
}
