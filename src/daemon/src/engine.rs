//! What the node's CRI engine makes of its settings: containerd's own `config dump`, CRI-O's own
//! `config`. Reads and asks; evaluates nothing.
//!
//! What is started for it (by [`program`](crate::program)) is the very file that the running
//! containerd is of, by root's `/proc`. Only a process of root's in the mount namespace of the
//! node's first process counts: a container can call a process of its own `containerd`.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use mpsgate_config::paths;
use mpsgate_configure::{
    ConfigureError, Disk, Options, Report, Source, Version, containerd, crio, docker,
};

use crate::error::chain;
use crate::process;
use crate::program::ask;

/// An engine reads its settings within milliseconds; a node under load takes longer.
const LIMIT: Duration = Duration::from_secs(10);
/// The node's files. To be used where they are the node's.
const DISK: Disk = Disk { programs: paths::RUNTIME_SEARCH };

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Containerd,
    Crio,
}

/// A running engine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Engine {
    name: &'static str,
    pid: u32,
    start_time: u64,
    command_line: Vec<String>,
    /// Its variables, as `NAME=VALUE`.
    environment: Vec<String>,
}

/// What is known of an engine's handlers.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Its name.
    pub(crate) engine: &'static str,
    /// Whether it is the engine's own reading, not ours of its files.
    pub(crate) own: bool,
    /// The handlers; why they cannot be evaluated.
    pub(crate) said: Result<Report, String>,
    /// It runs since before its settings were changed: with which ones, nobody knows.
    pub(crate) stale: bool,
}

impl Engine {
    fn kind(&self) -> Kind {
        if self.name == "crio" { Kind::Crio } else { Kind::Containerd }
    }

    /// The value of an option of its command line.
    fn option(&self, names: [&str; 2]) -> Option<&str> {
        let mut words = self.command_line.iter().map(String::as_str);
        while let Some(word) = words.next() {
            for name in names {
                if word == name {
                    return words.next();
                }
                if let Some(value) = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('='))
                {
                    return Some(value);
                }
            }
        }
        None
    }

    /// Its settings.
    fn settings(&self) -> PathBuf {
        let given = self.option(["--config", "-c"]).map(PathBuf::from);
        match self.kind() {
            Kind::Containerd => given.unwrap_or_else(|| containerd::PATH.into()),
            // Our drop-in among those that it reads.
            Kind::Crio => crio::path(&self.flags()),
        }
    }

    fn flags(&self) -> crio::Flags {
        crio::Flags::of(&self.command_line, &self.environment)
    }
}

/// The CRI engines that run on the node. To be called where `/proc` is the node's.
pub(crate) fn running() -> Vec<Engine> {
    let node = std::fs::read_link("/proc/1/ns/mnt").ok();
    let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut engines: Vec<Engine> = all
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let comm = std::fs::read_to_string(entry.path().join("comm")).ok()?;
            let name = ["containerd", "crio"].into_iter().find(|name| *name == comm.trim_end())?;
            let mounts = std::fs::read_link(entry.path().join("ns/mnt")).ok();
            if process::uid(pid) != Some(0) || mounts.is_none() || mounts != node {
                return None;
            }
            let command_line = words(&entry.path().join("cmdline"))?;
            let environment = words(&entry.path().join("environ"))?;
            let start_time = process::identify(pid)?.start_time;
            Some(Engine { name, pid, start_time, command_line, environment })
        })
        .filter(|engine| !docker::is_own_containerd(&engine.command_line))
        .collect();
    engines.sort_by_key(|engine| (engine.name, engine.pid));
    engines
}

/// A file of a process that holds words, each ended by a NUL.
fn words(file: &Path) -> Option<Vec<String>> {
    let bytes = std::fs::read(file).ok()?;
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes).split(|byte| *byte == 0);
    Some(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// A number that is another as soon as the engine, its files or the runtime are. `None`: the files
/// cannot be read.
pub(crate) fn fingerprint(engine: &Engine, options: &Options) -> Option<u64> {
    let files = Files::default();
    by_files(engine, &files, options).ok()?;
    let mut hash = DefaultHasher::new();
    (engine, &options.runtime, files.seen.borrow().as_slice()).hash(&mut hash);
    Some(hash.finish())
}

/// How its handlers stand. `None`: it serves no CRI.
pub(crate) fn read(engine: &Engine, options: &Options) -> Option<Reading> {
    let files = Files::default();
    let ours = by_files(engine, &files, options);
    let reading =
        |own, said| Reading { engine: engine.name, own, said, stale: stale(engine, &files) };
    let path = engine.settings();
    let exe = PathBuf::from(format!("/proc/{}/exe", engine.pid));
    if engine.kind() == Kind::Crio {
        let flags = engine.flags();
        let dump = crio::reading(&files, &path, &flags)
            .map_err(|error| chain(&error))
            .and_then(|arguments| {
                ask(&exe, engine.name, &arguments, LIMIT)
                    .map_err(|error| format!("crio config: {error}"))
            })
            .and_then(|text| {
                crio::check_dump(&files, &path, &text, options, &flags)
                    .map_err(|error| chain(&error))
            });
        return Some(reading(true, dump));
    }
    if !path.exists() {
        // Its defaults, which a dump of no file would not be.
        return Some(reading(false, ours));
    }
    let arguments = ["--config", &path.to_string_lossy(), "config", "dump"].map(ToOwned::to_owned);
    let text = match ask(&exe, engine.name, &arguments, LIMIT) {
        Ok(text) => text,
        Err(error) => {
            return Some(reading(true, Err(format!("containerd config dump: {error}"))));
        }
    };
    match containerd::serves_cri(&text) {
        Ok(false) => return None,
        Ok(true) => {}
        Err(error) => return Some(reading(true, Err(chain(&error)))),
    }
    let said = containerd::check_dump(&files, &path, &text, options).map_err(|error| chain(&error));
    Some(reading(true, said))
}

/// The engine's version, by which its drop-ins are read.
pub(crate) fn version(engine: &Engine) -> Option<Version> {
    let exe = PathBuf::from(format!("/proc/{}/exe", engine.pid));
    let said = ask(&exe, engine.name, &["--version".to_owned()], LIMIT).ok()?;
    Version::find(&said)
}

fn by_files(engine: &Engine, files: &Files, options: &Options) -> Result<Report, String> {
    let path = engine.settings();
    match engine.kind() {
        Kind::Containerd => containerd::check(files, &path, options).map_err(|error| chain(&error)),
        Kind::Crio => {
            crio::check(files, &path, options, &engine.flags()).map_err(|error| chain(&error))
        }
    }
}

/// Whether a file of its settings is younger than it.
fn stale(engine: &Engine, files: &Files) -> bool {
    let Some(running) = process::ticks_now().and_then(|now| now.checked_sub(engine.start_time))
    else {
        return false;
    };
    // Ages, not times of day: the clock may have been set since. A tick is a hundredth of a second.
    let running = Duration::from_millis(running.saturating_mul(10));
    let settings = files.seen.borrow();
    // NVIDIA's are read with every container.
    let own =
        settings.iter().filter(|(path, _)| !path.starts_with("/etc/nvidia-container-runtime"));
    own.filter_map(|(path, _)| std::fs::metadata(path).ok()?.modified().ok())
        .filter_map(|changed| SystemTime::now().duration_since(changed).ok())
        .any(|unchanged| unchanged < running)
}

/// The node's files, and which were looked at.
#[derive(Default)]
struct Files {
    /// With what was found there.
    seen: RefCell<Vec<(PathBuf, u64)>>,
}

impl Files {
    fn note(&self, path: &Path, what: &impl std::hash::Hash) {
        let mut hash = DefaultHasher::new();
        what.hash(&mut hash);
        self.seen.borrow_mut().push((path.to_owned(), hash.finish()));
    }
}

impl Source for Files {
    fn read(&self, path: &Path) -> io::Result<Option<String>> {
        let found = DISK.read(path)?;
        self.note(path, &found);
        Ok(found)
    }

    fn list(&self, directory: &Path) -> Vec<PathBuf> {
        let files = DISK.list(directory);
        self.note(directory, &files);
        files
    }

    fn walk(&self, directory: &Path) -> Result<Vec<PathBuf>, ConfigureError> {
        let files = DISK.walk(directory)?;
        self.note(directory, &files);
        Ok(files)
    }

    fn has_program(&self, program: &str) -> bool {
        let found = DISK.has_program(program);
        // No path of its settings: another program there is no other setting.
        self.note(Path::new(&format!("program {program}")), &found);
        found
    }
}

#[cfg(test)]
mod tests;
