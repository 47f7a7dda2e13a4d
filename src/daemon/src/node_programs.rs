//! Programs of the node that are started here, and nowhere else in the daemon but for control
//! daemons: an engine's own reading of its settings, systemd's `busctl`, and Slurm's `scontrol` and
//! `slurmd`. Each has an explicit environment, a limit of time and one of what it prints.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::time::Duration;

use mpsgate_configure::disk::LARGEST;
use mpsgate_host::program::{self, Failure, Finished};
use mpsgate_model::printable::plain;

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
    let finished = run(program, name, arguments, &[], limit)?;
    if finished.status.success() {
        return text(finished.stdout);
    }
    Err(io::Error::other(format!("it failed ({})", finished.status)))
}

/// The same, with what it says on stderr, where its last line tells why it failed.
///
/// # Errors
/// As [`ask`].
pub(crate) fn ask_aloud(
    program: &Path,
    arguments: &[String],
    environment: &[(&str, &Path)],
    limit: Duration,
) -> io::Result<Said> {
    let name = program.to_string_lossy();
    let Finished { status, stdout, stderr } = run(program, &name, arguments, environment, limit)?;
    if status.success() {
        return Ok(Said { out: text(stdout)?, err: text(stderr)? });
    }
    let last = plain(String::from_utf8_lossy(&stderr).trim_end().lines().last().unwrap_or(""));
    let why = if last.is_empty() { String::new() } else { format!(": {last}") };
    Err(io::Error::other(format!("it failed ({status}){why}")))
}

#[expect(clippy::disallowed_types, reason = "the one place, see the module's comment")]
fn run(
    program: &Path,
    name: &str,
    arguments: &[String],
    environment: &[(&str, &Path)],
    limit: Duration,
) -> io::Result<Finished> {
    let mut command = std::process::Command::new(program);
    // k3s is many programs in one, by this name.
    command.arg0(name).args(arguments).current_dir("/");
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.envs(environment.iter().copied());
    let most = usize::try_from(LARGEST).unwrap_or(usize::MAX);
    program::run(&mut command, &[], limit, most).map_err(|failure| match failure {
        Failure::Io(error) => error,
        Failure::TimedOut => io::Error::new(io::ErrorKind::TimedOut, "it did not end in time"),
        Failure::TooLong => io::Error::other("it prints more than settings are"),
    })
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::other("what it printed is no UTF-8"))
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
