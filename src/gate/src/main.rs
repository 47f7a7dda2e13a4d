//! `mpsgate-gate`: the command line; everything else is in the library.

use std::process::ExitCode;

use mpsgate_config::LogLevel;
use mpsgate_edge::logging;
use mpsgate_gate::{Arguments, Bounds, GateError, Options, Store, confine, filter, lock, serve};
use mpsgate_model::door::QUESTIONS;

fn main() -> ExitCode {
    mpsgate_edge::run(std::env::args_os(), |arguments: Arguments| {
        logging::to_journal("mpsgate-gate", LogLevel::Info)?;
        let (store, kept) = Store::find();
        let card = arguments.mps.join(arguments.card.to_string());
        let options = Options {
            clients: card.join("clients"),
            // Not the daemon's own: the link is there once its memory limits are.
            control: card.join("client/control"),
            mpsgated: card.join(QUESTIONS),
            bounds: Bounds::DEFAULT,
        };
        let _lock = lock(&card.join("gate.lock"))?;
        confine::raise_nofile()?;
        // Before the first byte of a container.
        confine::confine()?;
        filter::install()?;
        serve(&options, store, kept)?;
        Ok::<_, GateError>(mpsgate_edge::ExitCode::Done)
    })
    .into()
}
