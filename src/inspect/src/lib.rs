//! `kubectl inspect cgpu`: GPU memory of a cluster, card by card, as the API server has it.
//!
//! Owns the table that ACK's and gpushare's inspect tools print, byte for byte, and its additions.
//! Must never write to the API server, or ask a node. Called by: a person, through kubectl, and by
//! scripts that read the table.
//!
//! ```text
//! args ─► kubernetes::seen ─► view ◄─ annotations      (whose is which memory)
//!                              │  ◄─ beyond           (more than a card has)
//!                              ├► summary, details ─► table   (text)
//!                              └► document                    (JSON)
//! ```

mod annotations;
mod args;
mod beyond;
mod details;
mod document;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod node_rows;
mod summary;
mod table;

use std::ffi::OsString;

use clap::CommandFactory;
use mpsgate_edge::{ExitCode, print};
use mpsgate_kubernetes::seen;
use mpsgate_model::printable::plain;

use crate::args::{Cli, Output};
pub use crate::error::InspectError;
use crate::node_rows::View;

/// The command line as clap's description, for pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line `argv` (with the program's name first) and returns its exit code.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    mpsgate_edge::run(argv, |cli: Cli| run(&cli))
}

fn run(cli: &Cli) -> Result<ExitCode, InspectError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(InspectError::Runtime)?;
    let seen = runtime.block_on(seen(&cli.access(), cli.node.as_deref()))?;
    let (view, warnings) = View::of(&seen, cli.node.is_some());
    for warning in warnings {
        print::note(&format!("warning: {}\n", plain(&warning)));
    }
    if view.is_empty() {
        print::note(&format!("note: {}\n", plain(&nothing(cli.node.as_deref()))));
    }
    let coloured = print::coloured();
    print::answer(&match (cli.output, cli.details) {
        (Output::Json, _) => document::render(&view)?,
        (output, true) => details::render(&view, output == Output::Wide, coloured),
        (output, false) => summary::render(&view, output == Output::Wide, coloured),
    })?;
    Ok(ExitCode::Done)
}

/// The published tool prints an empty table here; the reason goes to stderr.
fn nothing(node: Option<&str>) -> String {
    let subject = node.map_or_else(
        || "no node of the cluster shares".to_owned(),
        |node| format!("node {node} does not share"),
    );
    format!(
        "{subject} GPU memory: none has the resource {} or the annotation {}",
        mpsgate_model::GPU_MEMORY,
        mpsgate_kubernetes::CARDS
    )
}
