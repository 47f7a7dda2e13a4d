//! Engines' programs: their versions, and what they make of settings.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mpsgate_config::paths;
use mpsgate_configure::{Change, Version, containerd, crio, docker};
use mpsgate_host::engine;
use mpsgate_host::program::{Failure, run as run_within};

use crate::args::Engine;
use crate::error::SetUpError;

/// An engine reads its settings within milliseconds.
const LIMIT: Duration = Duration::from_secs(10);
/// The largest settings that were seen have 40 KiB.
const LIMIT_MIB: usize = 16;

/// A program that can be asked.
#[derive(Debug, Clone)]
pub(super) enum Program {
    /// One that is installed.
    Installed(PathBuf),
    /// The one that an engine runs.
    Running(engine::Kind, engine::Program),
}

impl Program {
    pub(super) fn of(engine: &engine::Engine) -> Self {
        Self::Running(engine.kind, engine.program.clone())
    }

    /// Where it is, for people.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Installed(path) => path,
            Self::Running(_, program) => program.path(),
        }
    }

    fn command(&self) -> Command {
        match self {
            Self::Installed(path) => Command::new(path),
            Self::Running(kind, program) => {
                let mut command = Command::new(program.start_path());
                command.arg0(kind.program());
                command
            }
        }
    }

    fn shown(&self, arguments: &[&str]) -> String {
        format!("{} {}", self.path().display(), arguments.join(" "))
    }
}

/// Where a program is, by the directories that count for runtimes too.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    find_below(Path::new("/"), name)
}

/// The same on the node whose root is `root`.
pub(super) fn find_below(root: &Path, name: &str) -> Option<PathBuf> {
    paths::RUNTIME_SEARCH
        .iter()
        .map(|directory| root.join(directory.trim_start_matches('/')).join(name))
        .find(|path| path.is_file())
}

/// What a program prints, be its end good or bad.
pub(crate) fn output(program: &Path, arguments: &[&str]) -> io::Result<String> {
    attempt(Command::new(program), arguments).map(|said| said.stdout)
}

/// What it says of its version; `None` where it does not say.
pub(super) fn version(program: &Program) -> Option<String> {
    run(program, &["--version"]).ok().filter(|said| said.good).map(|said| said.stdout)
}

/// An engine's own reading of its settings: what it prints when it is asked so.
pub(super) fn own_reading(program: &Program, arguments: &[&str]) -> Result<String, SetUpError> {
    let said = run(program, arguments)?;
    if said.good { Ok(said.stdout) } else { Err(said.rejected(program, arguments)) }
}

/// Has the engine read what would be written, in a folder of its own; its reading, where it prints
/// that.
pub(super) fn validate(
    engine: Engine,
    program: &Program,
    version: Option<Version>,
    main: &Path,
    flags: &crio::Flags,
    changes: &[Change],
) -> Result<Option<String>, SetUpError> {
    let known = match engine {
        Engine::Containerd => main.extension().is_none_or(|extension| extension != "tmpl"),
        Engine::Docker => version.is_some_and(|version| version >= docker::VALIDATES_FROM),
        Engine::Crio => true,
        Engine::Podman => false,
    };
    if !known {
        return Ok(None);
    }
    let failed = |source| SetUpError::Write { path: std::env::temp_dir(), source };
    let scratch = tempfile::tempdir().map_err(failed)?;
    let trial = scratch.path().join(main.file_name().unwrap_or_default());
    let config = trial.to_string_lossy().into_owned();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let (arguments, files): (Vec<String>, _) = match engine {
        Engine::Containerd => (
            words(&["--config", &config, "config", "dump"]),
            containerd::trial(&super::DISK, main, changes, scratch.path()),
        ),
        Engine::Crio => match crio::trial(&super::DISK, main, flags, changes, scratch.path()) {
            Ok(reading) => (reading.arguments, Ok(reading.files)),
            Err(error) => (Vec::new(), Err(error)),
        },
        Engine::Docker | Engine::Podman => (
            words(&["--validate", "--config-file", &config]),
            Ok(vec![(trial, changes.iter().map(|change| change.after.clone()).collect())]),
        ),
    };
    for (path, text) in files.map_err(|error| SetUpError::Rejected {
        program: program.path().display().to_string(),
        said: error.to_string(),
    })? {
        super::engine_files::replace_private(&path, &text)?;
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = own_reading(program, &arguments)?;
    Ok((engine != Engine::Docker).then_some(said))
}

struct Said {
    good: bool,
    stdout: String,
    stderr: String,
}

impl Said {
    fn rejected(self, program: &Program, arguments: &[&str]) -> SetUpError {
        let text = if self.stderr.trim().is_empty() { self.stdout } else { self.stderr };
        let said = text.trim().lines().last().unwrap_or("nothing").to_owned();
        SetUpError::Rejected { program: program.shown(arguments), said }
    }
}

fn run(program: &Program, arguments: &[&str]) -> Result<Said, SetUpError> {
    let mut command = program.command();
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    attempt(command, arguments)
        .map_err(|source| SetUpError::Run { program: program.shown(arguments), source })
}

fn attempt(command: Command, arguments: &[&str]) -> io::Result<Said> {
    attempt_within(LIMIT, command, arguments)
}

fn attempt_within(limit: Duration, mut command: Command, arguments: &[&str]) -> io::Result<Said> {
    let most = LIMIT_MIB << 20;
    let ended =
        run_within(command.args(arguments), &[], limit, most).map_err(|failure| match failure {
            Failure::Io(error) => error,
            Failure::TimedOut => {
                let why = format!("it did not end within {} s", limit.as_secs());
                io::Error::new(io::ErrorKind::TimedOut, why)
            }
            Failure::TooLong => {
                let why = format!("it printed more than {LIMIT_MIB} MiB");
                io::Error::new(io::ErrorKind::FileTooLarge, why)
            }
        })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&ended.stdout), text(&ended.stderr));
    Ok(Said { good: ended.status.success(), stdout, stderr })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    fn shell(limit: Duration, script: &str) -> io::Result<Said> {
        attempt_within(limit, Command::new("/bin/sh"), &["-c", script])
    }

    #[test]
    fn a_program_that_hangs_or_never_stops_printing_is_ended_and_named() {
        let hangs = shell(Duration::from_secs(1), "exec sleep 60").err().unwrap();
        assert_eq!(hangs.to_string(), "it did not end within 1 s");
        for script in ["exec yes", "exec yes >&2", "exec head -c 104857600 /dev/zero"] {
            let floods = shell(LIMIT, script).err().unwrap();
            assert_eq!(floods.to_string(), "it printed more than 16 MiB", "{script}");
        }
    }

    #[test]
    fn what_a_program_says_and_how_it_ends_is_kept() {
        let said = shell(LIMIT, "echo one; echo two >&2; exit 3").unwrap();
        assert_eq!((said.good, &*said.stdout, &*said.stderr), (false, "one\n", "two\n"));
    }
}
