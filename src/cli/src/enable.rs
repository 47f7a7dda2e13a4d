//! `mpsgate enable` and `mpsgate disable`: one call each, answered when the card is ready.

use mpsgate_api::Call;
use mpsgate_edge::{ExitCode, print};

use crate::args::CardArgs;
use crate::{CliError, daemon_call};

pub(crate) fn enable(args: &CardArgs) -> Result<(), CliError> {
    print::progress(&format!("handing GPU {} to mpsgate; this may take a minute", args.gpu));
    let changed = daemon_call::change(&args.daemon.socket, Call::Enable { gpu: args.gpu.clone() })?;
    report(changed, || format!("GPU {} is managed already", args.gpu))
}

pub(crate) fn disable(args: &CardArgs) -> Result<ExitCode, CliError> {
    print::progress(&format!("taking GPU {} back from mpsgate", args.gpu));
    let changed =
        daemon_call::change(&args.daemon.socket, Call::Disable { gpu: args.gpu.clone() })?;
    report(changed, || format!("GPU {} is not managed", args.gpu))?;
    Ok(ExitCode::Done)
}

/// The daemon tells what changed, and nothing where nothing did.
fn report(changed: String, unchanged: impl FnOnce() -> String) -> Result<(), CliError> {
    let mut text = if changed.is_empty() { unchanged() } else { changed };
    text.push('\n');
    Ok(print::answer(&text)?)
}
