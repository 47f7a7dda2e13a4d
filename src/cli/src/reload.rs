//! `mpsgate reload`: one call, and what came of each setting that changed.

use mpsgate_api::{ApiError, Call, Reply};
use mpsgate_edge::{ExitCode, print};

use crate::args::ReloadArgs;
use crate::{CliError, daemon_call};

pub(crate) fn run(args: &ReloadArgs) -> Result<ExitCode, CliError> {
    let Reply::Reloaded { lines } = daemon_call::ask(&args.daemon.socket, Call::Reload)? else {
        return Err(ApiError::Unexpected.into());
    };
    let mut text = lines.join("\n");
    if lines.is_empty() {
        "no setting has changed".clone_into(&mut text);
    }
    text.push('\n');
    print::answer(&text)?;
    Ok(ExitCode::Done)
}
