//! What a running engine has loaded of its settings.
//!
//! No engine tells. One that was started after all of its files were last changed has loaded what
//! they say. What that was is kept beside mpsgated's own state in `/run`, with the process that it
//! is true of: so a file that was changed since, and leads every handler where it led before, asks
//! for no restart.

use std::fs;
use std::path::{Path, PathBuf};

use mpsgate_config::paths;
use mpsgate_configure::{Report, Way};
use mpsgate_host::process::{ProcessId, changed_since};
use serde::{Deserialize, Serialize};

use super::engine_files::replace_bytes;
use crate::args::Engine;
use crate::error::SetUpError;

const FORMAT: u32 = 1;

/// A daemon that has not loaded its settings.
#[derive(Debug)]
pub(super) struct Stale {
    pub(super) pid: u32,
    /// The file, or directory, that was changed since.
    pub(super) path: PathBuf,
}

/// What one process has loaded: its handlers, the default first, and whether each leads through
/// mpsgate.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Loaded {
    format: u32,
    pid: u32,
    started: u64,
    handlers: Vec<(String, bool)>,
}

impl Loaded {
    fn of(process: ProcessId, report: &Report) -> Self {
        let handlers = report.findings.iter();
        Self {
            format: FORMAT,
            pid: process.pid,
            started: process.start_time,
            handlers: handlers.map(|f| (f.handler.clone(), f.way == Way::Through)).collect(),
        }
    }
}

fn kept(engine: Engine) -> PathBuf {
    Path::new(paths::ENGINES_DIR).join(engine.name()).with_extension("json")
}

/// The engine's daemon `process`, where it has not loaded what its settings say now. An engine that
/// does not run will load them, and one without a daemon has loaded them.
pub(super) fn stale(engine: Engine, process: Option<ProcessId>, report: &Report) -> Option<Stale> {
    let process = process?;
    let path = changed_since(&process, report.files.iter().map(PathBuf::as_path))?.to_owned();
    let kept = fs::read(kept(engine)).ok();
    let known = kept.and_then(|bytes| serde_json::from_slice::<Loaded>(&bytes).ok());
    (known != Some(Loaded::of(process, report))).then_some(Stale { pid: process.pid, path })
}

/// Keeps that the engine's daemon `process` has loaded what its settings say now.
pub(super) fn keep(engine: Engine, process: ProcessId, report: &Report) -> Result<(), SetUpError> {
    let loaded = Loaded::of(process, report);
    let bytes = serde_json::to_vec(&loaded).unwrap_or_default();
    if fs::read(kept(engine)).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    replace_bytes(&kept(engine), &bytes, 0o600)
}
