//! `mpsgate`, the operator's command.
//!
//! Owns what a person types and reads: arguments, tables, JSON documents, errors with their
//! remedies. The answer goes to stdout, everything else to stderr. `enable`, `disable`, `mps` and
//! `reload` ask the daemon; `configure --write` and `--undo` change an engine's settings;
//! `node-install` puts programs onto a pod's node, and `node-remove` takes them away;
//! `doctor --bundle` writes an archive; everything else only looks. The doctor starts the OCI
//! runtime and the MPS control binary to ask for their versions, `configure` an engine to ask for
//! its version and to have it read what would be written.
//!
//! ```text
//! args ─► status, top, cards, mps, reload ─► api::Client ─► mpsgated
//!      ├► explain ─► policy            (no daemon, GPU or root)
//!      ├► configure ─► mpsgate-configure: text in, text out
//!      ├► usage ─► mpsgated's files of each day
//!      ├► doctor: each check: gather ─► decide ─► report
//!      ├► run ─► mpsgated, and then the command itself
//!      ├► slurm ─► mpsgated, and what slurmd reads
//!      ├► run-probe, qualify ─► cuda_client ─► mpsgate-runtime   (containers for probe)
//!      └► probe ─► libcuda               (inside a container)
//! ```

mod args;
mod completions;
mod configure;
mod cuda_client;
mod daemon_call;
mod doctor;
mod enable;
mod error;
mod explain;
#[doc(hidden)]
pub mod fuzz;
mod mps;
mod node_install;
mod node_namespaces;
mod node_remove;
mod node_snapshot;
mod probe;
mod qualify;
mod reload;
mod resize;
mod run;
mod run_probe;
mod slurm;
mod status;
mod top;
mod usage;

use std::ffi::OsString;

use clap::CommandFactory;
use mpsgate_edge::ExitCode;

use crate::args::{Cli, Command};
pub use crate::error::{
    AskError, BundleError, CliError, CudaError, InputError, NodeInstallError, NodeRemoveError,
    RunError, RunProbeError, SetUpError, SlurmError, UsageError,
};
pub use crate::node_snapshot::SnapshotError;

/// The command line as clap's description, for pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line `argv` (with the program's name first) and says how it ended.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    mpsgate_edge::run(argv, |cli: Cli| run(cli.command))
}

fn run(command: Command) -> Result<ExitCode, CliError> {
    match command {
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Usage(args) => usage::run(&args),
        Command::Enable(args) => {
            enable::enable(&args.card)?;
            qualify::after_enable(&args);
            Ok(ExitCode::Done)
        }
        Command::Qualify(args) => qualify::run(&args),
        Command::Disable(args) => enable::disable(&args),
        Command::Resize(args) => resize::resize(&args),
        Command::Run(args) => run::run(&args),
        Command::Slurm { action } => slurm::run(&action),
        Command::Mps { action } => mps::run(&action),
        Command::Reload(args) => reload::run(&args),
        Command::Configure(args) => configure::run(&args),
        Command::NodeInstall(args) => node_install::run(&args),
        Command::NodeRemove(args) => node_remove::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::RunProbe(args) => run_probe::run(&args),
        Command::Completions(args) => completions::run(&args),
    }
}
