//! `mpsgate run-probe`: `mpsgate probe` in a container with a grant of its own.
//!
//! Neither engine nor image is needed: the container sees this node's own programs and libraries,
//! read-only, and goes through mpsgate-runtime as every other does. What it left is taken away,
//! whatever happens.

use mpsgate_edge::{ExitCode, print};

use crate::CliError;
use crate::args::{Output, RunProbeArgs};
use crate::cuda_client::{self, Bundle, Container, Runs, Runtime};
use crate::error::RunProbeError;

/// Where runc keeps its containers when nobody says otherwise.
const ROOT: &str = "/run/runc";

pub(crate) fn run(args: &RunProbeArgs) -> Result<ExitCode, CliError> {
    let ended = cuda_client::signals()?;
    let own = std::env::current_exe().map_err(RunProbeError::Own)?;
    let output: &[&str] = if args.output == Output::Json { &["-o", "json"] } else { &[] };
    let probe = Container {
        program: &own,
        memory: &args.memory,
        gpu: args.gpu.as_deref(),
        library: &args.library,
        uid: 0,
        runs: Runs::Probe { by: &[], args: output },
    };
    let bundle = Bundle::write(&probe).map_err(RunProbeError::Bundle)?;
    print::progress(&format!(
        "a container with {} of GPU memory allocates what it can",
        args.memory
    ));
    let runtime = Runtime { program: &args.program, root: ROOT, ended: &ended };
    let failed = |source| RunProbeError::Start { program: args.program.clone(), source };
    let id = format!("mpsgate-probe-{}", std::process::id());
    let mut client = runtime.start(id, bundle, None).map_err(failed)?;
    let status = client.ended().map_err(failed)?.ok_or(RunProbeError::Ended)?;
    Ok(match status.code() {
        Some(0) => ExitCode::Done,
        Some(1) => ExitCode::No,
        Some(code) if code == ExitCode::Unavailable as i32 => ExitCode::Unavailable,
        _ => ExitCode::Failed,
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_failure_says_what_failed_and_what_to_do() {
        let from = |kind: io::ErrorKind| io::Error::from(kind);
        for (error, what, hint) in [
            (RunProbeError::Signals(from(io::ErrorKind::InvalidInput)), "SIGTERM", "sandbox"),
            (RunProbeError::Own(from(io::ErrorKind::NotFound)), "where this program lies", "/proc"),
            (RunProbeError::Bundle(from(io::ErrorKind::StorageFull)), "bundle in /run", "df -h"),
            (RunProbeError::Bundle(from(io::ErrorKind::PermissionDenied)), "bundle", "sudo"),
        ] {
            assert!(error.to_string().contains(what), "{error}");
            assert!(error.hint().is_some_and(|text| text.contains(hint)), "{error}");
        }
    }
}
