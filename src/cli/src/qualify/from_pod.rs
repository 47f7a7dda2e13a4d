//! `mpsgate qualify --from-pod`: a container of mpsgated's pod has the node's own `mpsgate` ask.
//!
//! ```text
//!  --every: after 15 s, 30 s, … and then each so many seconds
//!     └─► a process ─► namespaces of pid 1 ─► /usr/bin/mpsgate qualify … ─► containers, in the pod's cgroup
//! ```
//!
//! Who waits stays in the pod's namespaces: `kubectl exec` joins those of a container's init.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mpsgate_edge::{ExitCode, print};
use mpsgate_model::Backoff;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::args::QualifyArgs;
use crate::cuda_client::PATH;
use crate::error::RunProbeError;
use crate::{CliError, cuda_client, node_namespaces};

/// What node-install has put there.
const OWN: &str = "/usr/bin/mpsgate";
/// Between the first two rounds: mpsgated starts at the same time, and a card that it has just
/// taken is to be asked before pods have it.
const FIRST: Duration = Duration::from_secs(15);
/// Between two looks at a signal or the child.
const POLL: Duration = Duration::from_millis(100);
/// For a child that was told to end: it removes its containers.
const END: Duration = Duration::from_secs(8);

/// Asks once, and is that command from then on; or again and again, until a signal.
pub(super) fn run(args: &QualifyArgs) -> Result<ExitCode, CliError> {
    let Some(every) = args.every else {
        node_namespaces::enter_all()?;
        let source = command(OWN.as_ref(), args).exec();
        return Err(RunProbeError::Start { program: OWN.into(), source }.into());
    };
    let own = std::env::current_exe().map_err(RunProbeError::Own)?;
    let every = Duration::from_secs(every.into());
    let ended = cuda_client::signals()?;
    let mut backoff = Backoff::new(FIRST.min(every), every);
    loop {
        match command(&own, args).arg("--from-pod").spawn() {
            Ok(child) => wait(child, &ended),
            Err(error) => print::note(&format!("cannot start {}: {error}\n", own.display())),
        }
        let until = Instant::now() + backoff.pause();
        while Instant::now() < until {
            if ended.load(Ordering::Relaxed) {
                return Ok(ExitCode::Done);
            }
            std::thread::sleep(POLL);
        }
    }
}

/// The same question, with an environment of ours.
fn command(program: &Path, args: &QualifyArgs) -> Command {
    let mut command = Command::new(program);
    command.arg("qualify");
    match &args.gpu {
        Some(gpu) => command.arg(gpu),
        None => command.arg("--due"),
    };
    command.arg("--library").arg(&args.how.library);
    command.env_clear().env("PATH", PATH);
    command.stdin(Stdio::null());
    command
}

/// Until it has ended. What it says is in the container's log.
fn wait(mut child: Child, ended: &AtomicBool) {
    let mut told = None;
    while let Ok(None) = child.try_wait() {
        if ended.load(Ordering::Relaxed) {
            let since = *told.get_or_insert_with(|| {
                let pid = i32::try_from(child.id()).map(Pid::from_raw);
                // It may have ended.
                let _ = pid.map(|pid| kill(pid, Signal::SIGTERM));
                Instant::now()
            });
            if since.elapsed() > END {
                let _ = child.kill();
            }
        }
        std::thread::sleep(POLL);
    }
}
