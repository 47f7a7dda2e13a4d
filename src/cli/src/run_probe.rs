//! `mpsgate run-probe`: `mpsgate probe` in a container with a grant of its own.
//!
//! Neither engine nor image is needed: the container sees this node's own programs and libraries,
//! read-only, and goes through mpsgate-runtime as every other does. What it left is taken away,
//! whatever happens.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mpsgate_edge::{ExitCode, print};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::CliError;
use crate::args::{Output, RunProbeArgs};
use crate::container::{Bundle, Container, Runs};
use crate::error::RunProbeError;

/// Where runc keeps its containers when nobody says otherwise.
const ROOT: &str = "/run/runc";
/// Between two looks at the container and at signals.
const POLL: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &RunProbeArgs) -> Result<ExitCode, CliError> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(RunProbeError::Signals)?;
    }
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
    let id = format!("mpsgate-probe-{}", std::process::id());
    let mut runtime =
        start(&args.program, &["run", "--bundle", &bundle.path().to_string_lossy(), &id])?;
    let status = wait(&mut runtime, &args.program, &id, &ended)?;
    Ok(match status.code() {
        Some(0) => ExitCode::Done,
        Some(1) => ExitCode::No,
        Some(code) if code == ExitCode::Unavailable as i32 => ExitCode::Unavailable,
        _ => ExitCode::Failed,
    })
}

fn start(program: &Path, arguments: &[&str]) -> Result<Child, RunProbeError> {
    let started = Command::new(program)
        .args(["--root", ROOT])
        .args(arguments)
        .stdin(Stdio::null())
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .spawn();
    started.map_err(|source| RunProbeError::Start { program: program.to_owned(), source })
}

/// Until the container has ended. A signal to us would not reach it: as the first of its PID
/// namespace it takes none but SIGKILL.
fn wait(
    runtime: &mut Child,
    program: &Path,
    id: &str,
    ended: &AtomicBool,
) -> Result<ExitStatus, RunProbeError> {
    let failed = |source| RunProbeError::Start { program: program.to_owned(), source };
    loop {
        if let Some(status) = runtime.try_wait().map_err(failed)? {
            return Ok(status);
        }
        if ended.load(Ordering::Relaxed) {
            // It may not have come so far, or be gone already.
            let _ = start(program, &["delete", "--force", id])?.wait();
            let _ = runtime.kill();
            let _ = runtime.wait();
            let _ = start(program, &["delete", "--force", id])?.wait();
            return Err(RunProbeError::Ended);
        }
        std::thread::sleep(POLL);
    }
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
