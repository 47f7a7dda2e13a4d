//! What the node's CRI engine makes of its settings: containerd's own `config dump`, CRI-O's own
//! `config`. Reads and asks; evaluates nothing.
//!
//! Which processes are engines, and which program each is of, is [`mpsgate_host::engine`]'s to say.
//! Settings that another user than root can change are not opened, and the engine is not asked:
//! root would read what a user names.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mpsgate_config::paths;
use mpsgate_configure::{ConfigureError, Disk, Options, Report, Source, Version, containerd, crio};
use mpsgate_host::engine::{Engine, Kind};
use mpsgate_host::exchange::Exchange;
use mpsgate_host::process::changed_since;

use crate::error::chain;
use crate::node_programs::ask;

/// An engine reads its settings within milliseconds; a node under load takes longer.
const LIMIT: Duration = Duration::from_secs(10);
/// The node's files. To be used where they are the node's.
const DISK: Disk = Disk { programs: paths::RUNTIME_SEARCH };

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

/// Its settings.
fn settings(engine: &Engine) -> PathBuf {
    match engine.kind {
        // Our drop-in among those that it reads.
        Kind::Crio => crio::path(&flags(engine)),
        _ => containerd::settings(&engine.command_line).unwrap_or_else(|| containerd::PATH.into()),
    }
}

fn flags(engine: &Engine) -> crio::Flags {
    crio::Flags::of(&engine.command_line, &engine.environment)
}

/// A number that is another as soon as the engine, its files or the runtime are. `None`: the files
/// cannot be read.
pub(crate) fn fingerprint(engine: &Engine, options: &Options) -> Option<u64> {
    let files = Files::default();
    by_files(engine, &files, options).ok()?;
    let mut hash = DefaultHasher::new();
    (engine.process, &engine.command_line, &engine.environment).hash(&mut hash);
    (&options.runtime, files.seen.borrow().as_slice()).hash(&mut hash);
    Some(hash.finish())
}

/// How its handlers stand. `None`: it serves no CRI.
pub(crate) fn read(engine: &Engine, options: &Options) -> Option<Reading> {
    let files = Files::default();
    let ours = by_files(engine, &files, options);
    let name = engine.kind.program();
    let reading = |own, said| Reading { engine: name, own, said, stale: stale(engine, &files) };
    if let Some(why) = files.distrusted.borrow().clone() {
        return Some(reading(false, Err(format!("{name} reads {why}, and mpsgated does not"))));
    }
    let path = settings(engine);
    if engine.kind == Kind::Crio {
        let flags = flags(engine);
        let dump = crio::reading(&files, &path, &flags)
            .map_err(|error| chain(&error))
            .and_then(|arguments| {
                asked(engine, &arguments).map_err(|error| format!("crio config: {error}"))
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
    let text = match asked(engine, &arguments) {
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
    Version::find(&asked(engine, &["--version".to_owned()]).ok()?)
}

/// What its program prints. It is the file that was opened when the process was looked at.
fn asked(engine: &Engine, arguments: &[String]) -> io::Result<String> {
    ask(&engine.program.start_path(), engine.kind.program(), arguments, LIMIT)
}

fn by_files(engine: &Engine, files: &Files, options: &Options) -> Result<Report, String> {
    let path = settings(engine);
    match engine.kind {
        Kind::Crio => crio::check(files, &path, options, &flags(engine)),
        _ => containerd::check(files, &path, options),
    }
    .map_err(|error| chain(&error))
}

/// Whether a file of its settings is younger than it.
fn stale(engine: &Engine, files: &Files) -> bool {
    let settings = files.seen.borrow();
    let paths = settings.iter().map(|(path, _)| path.as_path());
    // NVIDIA's are read with every container.
    let own = paths.filter(|path| !path.starts_with("/etc/nvidia-container-runtime"));
    changed_since(&engine.process, own).is_some()
}

/// The node's files, as far as they are root's alone to change, and which were looked at.
#[derive(Default)]
struct Files {
    /// With what was found there.
    seen: RefCell<Vec<(PathBuf, u64)>>,
    /// Who else can change what was to be read.
    distrusted: RefCell<Option<String>>,
    exchange: RefCell<Exchange>,
}

impl Files {
    fn trust(&self, path: &Path) -> io::Result<()> {
        self.exchange.borrow_mut().roots_alone(path).map_err(|why| {
            *self.distrusted.borrow_mut() = Some(why.clone());
            io::Error::other(why)
        })
    }

    fn note(&self, path: &Path, what: &impl std::hash::Hash) {
        let mut hash = DefaultHasher::new();
        what.hash(&mut hash);
        self.seen.borrow_mut().push((path.to_owned(), hash.finish()));
    }
}

impl Source for Files {
    fn read(&self, path: &Path) -> io::Result<Option<String>> {
        self.trust(path)?;
        let found = DISK.read(path)?;
        self.note(path, &found);
        Ok(found)
    }

    fn list(&self, directory: &Path) -> Vec<PathBuf> {
        let trusted = self.trust(directory);
        let files = trusted.map_or_else(|_| Vec::new(), |()| DISK.list(directory));
        self.note(directory, &files);
        files
    }

    fn walk(&self, directory: &Path) -> Result<Vec<PathBuf>, ConfigureError> {
        let failed = |source| ConfigureError::Read { path: directory.to_owned(), source };
        self.trust(directory).map_err(failed)?;
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
