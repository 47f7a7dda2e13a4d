//! Engines' programs: their versions, what they make of settings, and since when they run.

use std::fs;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mpsgate_config::paths;
use mpsgate_configure::{Change, Version, containerd, crio, docker};
use mpsgate_host::process::{ProcessId, identify};

use crate::args::Engine;
use crate::error::SetUpError;

/// An engine reads its settings within milliseconds.
const LIMIT: Duration = Duration::from_secs(10);
/// The largest settings that were seen have 40 KiB.
const LIMIT_MIB: u64 = 16;

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
    attempt(program, arguments).map(|said| said.stdout)
}

/// What it says of its version; `None` where it does not say.
pub(super) fn version(program: &Path) -> Option<String> {
    run(program, &["--version"]).ok().filter(|said| said.good).map(|said| said.stdout)
}

/// An engine's own reading of its settings: what it prints when it is asked so.
pub(super) fn own_reading(program: &Path, arguments: &[&str]) -> Result<String, SetUpError> {
    let said = run(program, arguments)?;
    if said.good { Ok(said.stdout) } else { Err(said.rejected(program, arguments)) }
}

/// Has the engine read what would be written, in a folder of its own; its reading, where it prints
/// that.
pub(super) fn validate(
    engine: Engine,
    program: &Path,
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
        program: program.display().to_string(),
        said: error.to_string(),
    })? {
        super::files::replace_private(&path, &text)?;
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = own_reading(program, &arguments)?;
    Ok((engine != Engine::Docker).then_some(said))
}

/// The command line of the first process of this name.
pub(super) fn command_line(name: &str) -> Vec<String> {
    words_of(name, "cmdline")
}

/// What the CRI-O that runs was started with.
pub(super) fn crio_flags() -> crio::Flags {
    crio::Flags::of(&words_of("crio", "cmdline"), &words_of("crio", "environ"))
}

/// A file of a process that holds words, each ended by a NUL.
fn words_of(name: &str, file: &str) -> Vec<String> {
    let Some(pid) = pid_of(Path::new("/"), name) else { return Vec::new() };
    words(&Path::new("/proc").join(pid.to_string()).join(file))
}

fn words(file: &Path) -> Vec<String> {
    let bytes = fs::read(file).unwrap_or_default();
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes).split(|byte| *byte == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The first running process of this name.
pub(super) fn process_of(name: &str) -> Option<ProcessId> {
    identify(pid_of(Path::new("/"), name)?)
}

/// The first process of this name on the node whose root is `root`. dockerd's own containerd is not
/// looked at.
pub(super) fn pid_of(root: &Path, name: &str) -> Option<u32> {
    fs::read_dir(root.join("proc")).ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
        let is_of_node = || !docker::is_own_containerd(&words(&entry.path().join("cmdline")));
        (comm.trim_end() == name && is_of_node()).then_some(pid)
    })
}

struct Said {
    good: bool,
    stdout: String,
    stderr: String,
}

impl Said {
    fn rejected(self, program: &Path, arguments: &[&str]) -> SetUpError {
        let text = if self.stderr.trim().is_empty() { self.stdout } else { self.stderr };
        let said = text.trim().lines().last().unwrap_or("nothing").to_owned();
        SetUpError::Rejected {
            program: format!("{} {}", program.display(), arguments.join(" ")),
            said,
        }
    }
}

fn run(program: &Path, arguments: &[&str]) -> Result<Said, SetUpError> {
    attempt(program, arguments).map_err(|source| SetUpError::Run {
        program: format!("{} {}", program.display(), arguments.join(" ")),
        source,
    })
}

fn attempt(program: &Path, arguments: &[&str]) -> io::Result<Said> {
    attempt_within(LIMIT, program, arguments)
}

fn attempt_within(limit: Duration, program: &Path, arguments: &[&str]) -> io::Result<Said> {
    // Files, not pipes: nobody has to read while it writes.
    let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(err.try_clone()?)
        .spawn()?;
    let deadline = Instant::now() + limit;
    let over =
        |file: &fs::File| -> io::Result<bool> { Ok(file.metadata()?.len() > LIMIT_MIB << 20) };
    let status = loop {
        let ended = child.try_wait()?;
        let stopped = if over(&out)? || over(&err)? {
            let why = format!("it printed more than {LIMIT_MIB} MiB");
            io::Error::new(io::ErrorKind::FileTooLarge, why)
        } else if let Some(status) = ended {
            break status;
        } else if Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        } else {
            let why = format!("it did not end within {} s", limit.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, why)
        };
        // Fails only for one that has ended.
        let _ = child.kill();
        let _ = child.wait();
        return Err(stopped);
    };
    let text = |file: &mut fs::File| -> io::Result<String> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Said { good: status.success(), stdout: text(&mut out)?, stderr: text(&mut err)? })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    fn shell(limit: Duration, script: &str) -> io::Result<Said> {
        attempt_within(limit, Path::new("/bin/sh"), &["-c", script])
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
