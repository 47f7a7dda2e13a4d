//! Programs of the node that are started here, and nowhere else in the daemon but for control
//! daemons: an engine's own reading of its settings, systemd's `busctl`, and Slurm's `scontrol` and
//! `slurmd`. Each has an explicit environment, a limit of time and one of what it prints.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use mpsgate_configure::disk::LARGEST;
use mpsgate_model::printable::plain;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a program printed.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) out: String,
    pub(crate) err: String,
}

/// What `program` prints, called `name`, that ends well within `limit`.
///
/// # Errors
/// Where it cannot be started, fails, hangs, or prints too much or no text.
pub(crate) fn ask(
    program: &Path,
    name: &str,
    arguments: &[String],
    limit: Duration,
) -> io::Result<String> {
    run(program, name, arguments, &[], Stdio::null(), limit).map(|said| said.out)
}

/// The same, with what it says on stderr, where its last line tells why it failed.
///
/// # Errors
/// As [`ask`]. A program that prints more on stderr than a pipe holds hangs.
pub(crate) fn ask_aloud(
    program: &Path,
    arguments: &[String],
    environment: &[(&str, &Path)],
    limit: Duration,
) -> io::Result<Said> {
    let name = program.to_string_lossy();
    run(program, &name, arguments, environment, Stdio::piped(), limit)
}

#[expect(clippy::disallowed_types, reason = "the one place, see the module's comment")]
fn run(
    program: &Path,
    name: &str,
    arguments: &[String],
    environment: &[(&str, &Path)],
    stderr: Stdio,
    limit: Duration,
) -> io::Result<Said> {
    let until = Instant::now() + limit;
    let mut child = std::process::Command::new(program)
        // k3s is many programs in one, by this name.
        .arg0(name)
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(environment.iter().copied())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()?;
    let out = child.stdout.take().map_or_else(|| Ok(Vec::new()), |out| read_until(out, until));
    let err = child.stderr.take().map_or_else(|| Ok(Vec::new()), |err| read_until(err, until));
    let status = out.and_then(|out| Ok((out, err?))).and_then(|said| {
        loop {
            match child.try_wait()? {
                Some(status) => break Ok((said, status)),
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                None => break Err(too_long()),
            }
        }
    });
    match status {
        Ok(((out, err), status)) if status.success() => {
            let text = |bytes| {
                String::from_utf8(bytes)
                    .map_err(|_| io::Error::other("what it printed is no UTF-8"))
            };
            Ok(Said { out: text(out)?, err: text(err)? })
        }
        Ok(((_, err), status)) => {
            let last = plain(String::from_utf8_lossy(&err).trim_end().lines().last().unwrap_or(""));
            let why = if last.is_empty() { String::new() } else { format!(": {last}") };
            Err(io::Error::other(format!("it failed ({status}){why}")))
        }
        Err(error) => {
            // Fails only for one that has ended.
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "it did not end in time")
}

fn read_until(mut out: impl io::Read + AsFd, until: Instant) -> io::Result<Vec<u8>> {
    let (mut bytes, mut part) = (Vec::new(), [0; 16 << 10]);
    loop {
        let left = until.checked_duration_since(Instant::now()).ok_or_else(too_long)?;
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let ready = {
            let mut wait = [PollFd::from_borrowed_fd(out.as_fd(), PollFlags::IN)];
            match poll(&mut wait, Some(&left)) {
                Ok(ready) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
        };
        if ready == 0 {
            return Err(too_long());
        }
        let count = out.read(&mut part)?;
        if count == 0 {
            return Ok(bytes);
        }
        if u64::try_from(bytes.len() + count).is_ok_and(|length| length > LARGEST) {
            return Err(io::Error::other("it prints more than settings are"));
        }
        bytes.extend_from_slice(part.get(..count).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    fn shell(script: &str, limit: Duration) -> io::Result<String> {
        ask(Path::new("/bin/sh"), "sh", &["-c".to_owned(), script.to_owned()], limit)
    }

    #[test]
    fn a_program_that_hangs_or_fails_or_is_too_large_or_no_text_is_an_error() {
        let long = Duration::from_secs(60);
        assert_eq!(shell("echo version = 3", long).unwrap(), "version = 3\n");
        let error = |script: &str, limit| shell(script, limit).unwrap_err().to_string();
        let short = Duration::from_millis(300);
        assert_eq!(error("sleep 60", short), "it did not end in time");
        // It closed what it prints to, and goes on.
        assert_eq!(error("exec >&-; sleep 60", short), "it did not end in time");
        assert_eq!(error("echo x; exit 3", long), "it failed (exit status: 3)");
        assert_eq!(error("yes", long), "it prints more than settings are");
        assert_eq!(error("printf '\\377'", long), "what it printed is no UTF-8");
        assert_eq!(shell("echo $HOME$NOTIFY_SOCKET.", long).unwrap(), ".\n");
        let aloud = |script: &str| {
            let arguments = ["-c".to_owned(), script.to_owned()];
            ask_aloud(Path::new("/bin/sh"), &arguments, &[("CONF", Path::new("/x"))], long)
        };
        let said = aloud("echo out; echo err $CONF >&2").unwrap();
        assert_eq!((said.out.as_str(), said.err.as_str()), ("out\n", "err /x\n"));
        let error = aloud("echo a >&2; printf 'b\\033\\n' >&2; exit 3").unwrap_err().to_string();
        assert_eq!(error, "it failed (exit status: 3): b\u{fffd}");
        let missing = ask(Path::new("/nowhere"), "sh", &[], long).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
