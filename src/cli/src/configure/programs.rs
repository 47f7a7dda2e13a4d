//! Engines' programs: their versions, what they make of settings, and since when they run.

use std::fs;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use mpsgate_config::paths;
use mpsgate_configure::{Change, Version, containerd, docker};

use super::SetUpError;
use crate::args::Engine;

/// An engine reads its settings within milliseconds.
const LIMIT: Duration = Duration::from_secs(10);
/// A tick in `/proc/PID/stat`; `USER_HZ` is 100 on every architecture that is shipped.
const MS_PER_TICK: u64 = 10;

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

/// containerd's reading of its settings.
pub(super) fn config_dump(program: &Path, config: &Path) -> Result<String, SetUpError> {
    let arguments = ["--config", &config.to_string_lossy(), "config", "dump"];
    let said = run(program, &arguments)?;
    if said.good { Ok(said.stdout) } else { Err(said.rejected(program, &arguments)) }
}

/// Has the engine read what would be written, in a folder of its own; containerd's reading, where it is that.
pub(super) fn validate(
    engine: Engine,
    program: &Path,
    version: Option<Version>,
    main: &Path,
    changes: &[Change],
) -> Result<Option<String>, SetUpError> {
    let known = match engine {
        Engine::Containerd => main.extension().is_none_or(|extension| extension != "tmpl"),
        Engine::Docker => version.is_some_and(|version| version >= docker::VALIDATES_FROM),
        Engine::Podman | Engine::Crio => false,
    };
    if !known {
        return Ok(None);
    }
    let failed = |source| SetUpError::Write { path: std::env::temp_dir(), source };
    let scratch = tempfile::tempdir().map_err(failed)?;
    let trial = scratch.path().join(main.file_name().unwrap_or_default());
    let text = match engine {
        Engine::Containerd => containerd::trial(&super::Disk, main, changes, scratch.path()),
        _ => Ok(vec![(trial.clone(), changes.iter().map(|change| change.after.clone()).collect())]),
    };
    for (path, text) in text.map_err(|error| SetUpError::Rejected {
        program: program.display().to_string(),
        said: error.to_string(),
    })? {
        super::files::replace_private(&path, &text)?;
    }
    let config = trial.to_string_lossy().into_owned();
    let arguments: Vec<&str> = match engine {
        Engine::Containerd => vec!["--config", &config, "config", "dump"],
        _ => vec!["--validate", "--config-file", &config],
    };
    let said = run(program, &arguments)?;
    if said.good {
        Ok((engine == Engine::Containerd).then_some(said.stdout))
    } else {
        Err(said.rejected(program, &arguments))
    }
}

/// The command line of the first process of this name.
pub(super) fn command_line(name: &str) -> Vec<String> {
    let Some(pid) = pid_of(Path::new("/"), name) else { return Vec::new() };
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The pid of an engine that runs since before its settings were changed.
pub(super) fn started_before(name: &str, settings: &Path) -> Option<u32> {
    // Ages, not times of day: the time of boot in /proc/stat is off where the clock was set since.
    let unchanged =
        SystemTime::now().duration_since(fs::metadata(settings).ok()?.modified().ok()?).ok()?;
    let pid = pid_of(Path::new("/"), name)?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // proc(5): field 22, counted behind the name, which ends at the last parenthesis.
    let ticks: u64 = stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    let started = Duration::from_millis(ticks * MS_PER_TICK);
    let running = Duration::try_from_secs_f64(uptime).ok()?.checked_sub(started)?;
    (running > unchanged).then_some(pid)
}

/// The first process of this name on the node whose root is `root`.
pub(super) fn pid_of(root: &Path, name: &str) -> Option<u32> {
    fs::read_dir(root.join("proc")).ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
        (comm.trim_end() == name).then_some(pid)
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
    // Files, not pipes: nobody has to read while it writes.
    let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(err.try_clone()?)
        .spawn()?;
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            None => {
                // Fails only for one that has ended.
                let _ = child.kill();
                let _ = child.wait();
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("it did not end within {} s", LIMIT.as_secs()),
                ));
            }
        }
    };
    let text = |file: &mut fs::File| -> io::Result<String> {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Said { good: status.success(), stdout: text(&mut out)?, stderr: text(&mut err)? })
}
