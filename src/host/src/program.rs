//! A program that ends soon, run with a limit of time and one of what it prints. It never outlives
//! the call.
#![expect(clippy::disallowed_types, reason = "the one place; what is started its caller says")]

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

/// Between two looks whether it has ended. What it prints is read at once.
const LOOK: Duration = Duration::from_millis(1);

/// One that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it said on stderr.
    pub stderr: Vec<u8>,
}

/// How a run can fail.
#[derive(Debug)]
pub enum Failure {
    /// It could not be started, or its pipes failed.
    Io(io::Error),
    /// The limit passed; it was killed.
    TimedOut,
    /// It printed more than it may; it was killed.
    TooLong,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Kills and reaps on drop, so that no early return leaves a child.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // Both fail only when it has ended and been waited for already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `command`, feeds it `stdin` and collects what it prints: at most `most` bytes on each of
/// stdout and stderr.
///
/// # Errors
/// See [`Failure`]. A program that says by its status that it failed has run.
pub fn run(
    command: &mut Command,
    stdin: &[u8],
    limit: Duration,
    most: usize,
) -> Result<Finished, Failure> {
    let deadline = Instant::now() + limit;
    command.stdin(if stdin.is_empty() { Stdio::null() } else { Stdio::piped() });
    let mut child = Reaped(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
    if let Some(mut pipe) = child.0.stdin.take() {
        // A few bytes never block. A program may end before it reads: no error.
        match pipe.write_all(stdin) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
            _ => {}
        }
    }
    let (stdout, stderr) = (child.0.stdout.take(), child.0.stderr.take());
    let mut pipes = [stdout.map(OwnedFd::from), stderr.map(OwnedFd::from)];
    for pipe in pipes.iter().flatten() {
        fcntl_setfl(pipe, OFlags::NONBLOCK)?;
    }
    let mut printed = [Vec::new(), Vec::new()];
    loop {
        // First: once it has ended all that it printed is there. Whom it left its pipes to is not
        // waited for.
        let ended = child.0.try_wait()?;
        for (pipe, printed) in pipes.iter_mut().zip(&mut printed) {
            if let Some(open) = pipe.as_ref()
                && drain(open, printed, most)?
            {
                *pipe = None;
            }
        }
        if let Some(status) = ended {
            let [stdout, stderr] = printed;
            return Ok(Finished { status, stdout, stderr });
        }
        let left = deadline.checked_duration_since(Instant::now()).ok_or(Failure::TimedOut)?;
        let look = Timespec::try_from(left.min(LOOK)).map_err(io::Error::other)?;
        let open = pipes.iter().flatten().map(|pipe| PollFd::new(pipe, PollFlags::IN));
        match poll(&mut open.collect::<Vec<_>>(), Some(&look)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Reads what is there; whether that was the end.
fn drain(pipe: &OwnedFd, printed: &mut Vec<u8>, most: usize) -> Result<bool, Failure> {
    let mut part = [0; 4096];
    loop {
        match rustix::io::read(pipe, &mut part) {
            Ok(0) => return Ok(true),
            Ok(count) => printed.extend_from_slice(part.get(..count).unwrap_or_default()),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if printed.len() > most {
            return Err(Failure::TooLong);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    fn shell(script: &str, limit_ms: u64) -> Result<Finished, Failure> {
        let mut command = Command::new("/bin/sh");
        run(command.args(["-c", script]), b"in\n", Duration::from_millis(limit_ms), 64 << 10)
    }

    #[test]
    fn keeps_the_two_streams_and_the_status_apart() {
        let finished = shell("cat; echo err >&2; exit 3", 10_000).unwrap();
        assert_eq!((&*finished.stdout, &*finished.stderr), (&b"in\n"[..], &b"err\n"[..]));
        assert_eq!(finished.status.code(), Some(3));
    }

    #[test]
    fn kills_a_program_that_hangs_and_one_that_never_stops_talking() {
        assert!(matches!(shell("exec sleep 1000", 50), Err(Failure::TimedOut)));
        assert!(matches!(shell("exec >&- 2>&-; exec sleep 1000", 50), Err(Failure::TimedOut)));
        assert!(matches!(shell("exec yes", 60_000), Err(Failure::TooLong)));
        assert!(matches!(shell("exec yes >&2", 60_000), Err(Failure::TooLong)));
    }

    #[test]
    fn a_program_that_reads_nothing_is_no_error() {
        assert_eq!(shell("exit 0", 10_000).unwrap().status.code(), Some(0));
    }

    #[test]
    fn whom_it_leaves_its_pipes_to_is_not_waited_for() {
        let finished = shell("sleep 5 & echo out", 3_000).unwrap();
        assert_eq!(finished.stdout, b"out\n");
    }
}
