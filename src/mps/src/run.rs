//! Runs a short-lived program with a time limit and a cap on its output. The child never inherits
//! this process's environment or a descriptor, and never outlives the call.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::process::POLL;

/// The PATH of every program that this crate runs.
pub(crate) const FIXED_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Longer than any answer: 60 clients with their command lines stay far below.
pub(crate) const OUTPUT_CAP: usize = 64 * 1024;

/// A finished program.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// Its output, or else its exit status.
    pub(crate) fn detail(&self) -> String {
        let words = format!("{} {}", self.stdout.trim(), self.stderr.trim());
        let words = words.trim();
        if !words.is_empty() {
            return words.to_owned();
        }
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, signal) => format!("ended by signal {}", signal.unwrap_or_default()),
        }
    }
}

/// A failed run.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The program could not be started or its pipes failed.
    Io(io::Error),
    /// The limit passed; the program was killed.
    TimedOut,
    /// It printed more than [`OUTPUT_CAP`].
    TooLong,
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

/// Runs `program` with exactly this environment, feeds it `stdin` and collects its output.
pub(crate) fn run(
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &Path)],
    stdin: &str,
    limit: Duration,
) -> Result<Finished, Failure> {
    let deadline = Instant::now() + limit;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", FIXED_PATH).current_dir("/");
    command.envs(environment.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Reaped(command.spawn().map_err(Failure::Io)?);
    if let Some(mut pipe) = child.0.stdin.take() {
        // A few bytes never block. A front-end without a daemon ends before it reads: that is no
        // error.
        match pipe.write_all(stdin.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                return Err(Failure::Io(error));
            }
            _ => {}
        }
    }
    let (stdout, stderr) = (child.0.stdout.take(), child.0.stderr.take());
    let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
        return Err(Failure::Io(io::Error::other("the child has no pipes")));
    };
    let (stdout, stderr) = read_both(stdout, stderr, deadline)?;
    let status = loop {
        if let Some(status) = child.0.try_wait().map_err(Failure::Io)? {
            break status;
        }
        if Instant::now() >= deadline {
            return Err(Failure::TimedOut);
        }
        std::thread::sleep(POLL.min(Duration::from_millis(1)));
    };
    Ok(Finished {
        status,
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    })
}

fn read_both(
    mut stdout: impl Read + AsFd,
    mut stderr: impl Read + AsFd,
    deadline: Instant,
) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    for fd in [stdout.as_fd(), stderr.as_fd()] {
        fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(|errno| Failure::Io(errno.into()))?;
    }
    let (mut out, mut err) = (Some(Vec::new()), Some(Vec::new()));
    let (mut out_done, mut err_done) = (Vec::new(), Vec::new());
    while out.is_some() || err.is_some() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::TimedOut);
        }
        let mut waiting = Vec::with_capacity(2);
        if out.is_some() {
            waiting.push(PollFd::new(stdout.as_fd(), PollFlags::POLLIN));
        }
        if err.is_some() {
            waiting.push(PollFd::new(stderr.as_fd(), PollFlags::POLLIN));
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut waiting, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(Failure::Io(errno.into())),
        }
        drain(&mut stdout, &mut out, &mut out_done)?;
        drain(&mut stderr, &mut err, &mut err_done)?;
    }
    Ok((out_done, err_done))
}

/// Reads available bytes; moves them to `done` at the end of the stream.
fn drain(
    pipe: &mut impl Read,
    bytes: &mut Option<Vec<u8>>,
    done: &mut Vec<u8>,
) -> Result<(), Failure> {
    let Some(collected) = bytes else { return Ok(()) };
    let mut chunk = [0; 4096];
    loop {
        match pipe.read(&mut chunk) {
            Ok(0) => {
                *done = bytes.take().unwrap_or_default();
                return Ok(());
            }
            Ok(count) => collected.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::Io(error)),
        }
        if collected.len() > OUTPUT_CAP {
            return Err(Failure::TooLong);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn shell(script: &str, limit_ms: u64) -> Result<Finished, Failure> {
        run(Path::new("/bin/sh"), &["-c", script], &[], "in\n", Duration::from_millis(limit_ms))
    }

    #[test]
    fn keeps_the_two_streams_and_the_status_apart() {
        let finished = shell("cat; echo err >&2; exit 3", 10_000).unwrap();
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("in\n", "err\n"));
        assert_eq!(finished.status.code(), Some(3));
    }

    #[test]
    fn passes_on_no_environment_of_ours() {
        let finished = shell("echo $HOME$CARGO$CARGO_TARGET_DIR; echo $PATH", 10_000).unwrap();
        assert_eq!(finished.stdout, format!("\n{FIXED_PATH}\n"));
    }

    #[test]
    fn kills_a_program_that_hangs_and_one_that_never_stops_talking() {
        assert!(matches!(shell("exec sleep 1000", 50), Err(Failure::TimedOut)));
        assert!(matches!(shell("exec yes", 60_000), Err(Failure::TooLong)));
    }

    #[test]
    fn a_program_that_reads_nothing_is_no_error() {
        assert_eq!(shell("exit 0", 10_000).unwrap().status.code(), Some(0));
    }
}
