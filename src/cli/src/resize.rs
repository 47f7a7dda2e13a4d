//! `mpsgate resize`: one call, answered when the container has its memory.

use mpsgate_api::{ApiError, Call, Reply, Resize};
use mpsgate_edge::{ExitCode, print};

use crate::args::ResizeArgs;
use crate::{CliError, daemon_call};

pub(crate) fn resize(args: &ResizeArgs) -> Result<ExitCode, CliError> {
    let call = Resize { container: args.container.clone(), memory: args.memory };
    let Reply::Resized { lines } = daemon_call::ask(&args.daemon.socket, Call::Resize(call))?
    else {
        return Err(ApiError::Unexpected.into());
    };
    print::answer(&format!("{}\n", lines.join("\n")))?;
    Ok(ExitCode::Done)
}
