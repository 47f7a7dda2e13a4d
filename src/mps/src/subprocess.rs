//! Runs a short-lived program with nothing of this process's environment.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

pub(crate) use mpsgate_host::program::Failure;
use mpsgate_host::program::run as run_program;

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

/// Runs `program` with exactly this environment, feeds it `stdin` and collects its output.
pub(crate) fn run(
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &Path)],
    stdin: &str,
    limit: Duration,
) -> Result<Finished, Failure> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", FIXED_PATH).current_dir("/");
    command.envs(environment.iter().copied());
    let finished = run_program(&mut command, stdin.as_bytes(), limit, OUTPUT_CAP)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&finished.stdout), text(&finished.stderr));
    Ok(Finished { status: finished.status, stdout, stderr })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn passes_on_no_environment_of_ours() {
        let script = "echo $HOME$CARGO$CARGO_TARGET_DIR; echo $PATH";
        let limit = Duration::from_secs(10);
        let finished = run(Path::new("/bin/sh"), &["-c", script], &[], "", limit).unwrap();
        assert_eq!(finished.stdout, format!("\n{FIXED_PATH}\n"));
    }
}
