//! Whose a process is: the grant's in whose cgroup it is.
//!
//! ```text
//!  /proc/PID/cgroup ─► below a grant's cgroup? ─► the innermost
//!        │ not shown: too long a path, no text, another cgroup namespace
//!        └─► cgroup.procs of every grant's tree ─► the innermost
//! ```

use std::collections::HashMap;
use std::io;
use std::path::Path;

use mpsgate_host::cgroup::text_of;
use mpsgate_model::ledger::{CgroupId, Entry, ProcessId, State};

use crate::container_cgroup::{self, Paths};
use crate::process_end;

/// A process that does harm.
#[derive(Debug, Clone)]
pub(crate) struct Culprit {
    /// `pid 77 (sh -c …)`.
    pub(crate) words: String,
    /// The grant of the container that it is in.
    pub(crate) entry: Option<Entry>,
}

impl Culprit {
    /// Finds out whose `process` is, among `entries`. `None` once it has ended. Reads cgroups:
    /// blocks.
    pub(crate) fn find(process: ProcessId, entries: &[Entry]) -> Option<Self> {
        let words = process_end::describe(process.pid);
        let entry = of(process.pid, entries).cloned();
        // Still the same after all was read, so all that was read is its own.
        process_end::is_seen(&process).then_some(Self { words, entry })
    }

    /// For sentences: `container web, pid 77 (sh)`.
    pub(crate) fn label(&self) -> String {
        match &self.entry {
            Some(entry) => format!("container {}, {}", entry.grant.name(), self.words),
            None => self.words.clone(),
        }
    }
}

/// The entry whose container holds the process; `None` where there is none.
pub(crate) fn of(pid: u32, entries: &[Entry]) -> Option<&Entry> {
    Trees::default().owner(pid, text_of(pid).as_deref(), entries)
}

/// The entry whose container holds exactly this process; `None` where none does, and once it has
/// ended. Reads cgroups: blocks.
///
/// # Errors
/// Where that cannot be read in this moment.
pub(crate) fn find(process: ProcessId, entries: &[Entry]) -> io::Result<Option<&Entry>> {
    let cgroups = text_of(process.pid);
    let entry = Trees::default().owner(process.pid, cgroups.as_deref(), entries);
    // Still the same after all was read, so all that was read is its own.
    if process_end::find(process.pid)? != Some(process) {
        return Ok(None);
    }
    if entry.is_none() && cgroups.is_none() {
        return Err(io::Error::other("its cgroup cannot be read"));
    }
    Ok(entry)
}

/// The processes of all containers with a grant, read where `/proc` does not say whose one is. To
/// search every container for each process would take seconds: 400 of both are 160,000 files.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    /// Indexes of the entries that were read.
    read: Option<HashMap<u32, usize>>,
}

impl Trees {
    /// The entry whose container holds a process with this `/proc/PID/cgroup`.
    pub(crate) fn owner<'a>(
        &mut self,
        pid: u32,
        cgroups: Option<&str>,
        entries: &'a [Entry],
    ) -> Option<&'a Entry> {
        let by_cgroup = match cgroups.and_then(Paths::of) {
            Some(places) => places.innermost(entries.iter().filter_map(|entry| {
                let State::Active { cgroup: Some(cgroup), .. } = &entry.state else { return None };
                Some((cgroup, entry))
            })),
            None => {
                let read = self.read.get_or_insert_with(|| read(entries));
                read.get(&pid).and_then(|at| entries.get(*at))
            }
        };
        by_cgroup.or_else(|| {
            let without_cgroup =
                |entry: &&Entry| matches!(entry.state, State::Active { cgroup: None, .. });
            let mut found = entries.iter().filter(without_cgroup).filter(
                |entry| matches!(&entry.state, State::Active { init, .. } if is_of(pid, init)),
            );
            found.next().filter(|_| found.next().is_none())
        })
    }
}

/// Outer cgroups first, so that inner ones have the last word.
fn read(entries: &[Entry]) -> HashMap<u32, usize> {
    let mut cgroups: Vec<(usize, &CgroupId, &ProcessId)> = entries
        .iter()
        .enumerate()
        .filter_map(|(at, entry)| match &entry.state {
            State::Active { init, cgroup: Some(cgroup) } => Some((at, cgroup, init)),
            _ => None,
        })
        .collect();
    cgroups.sort_by_key(|(_, cgroup, _)| cgroup.path.len());
    let mut owners = HashMap::new();
    for (at, cgroup, init) in cgroups {
        // A tree that cannot be read leaves its init alone.
        let pids = container_cgroup::members(cgroup).unwrap_or_else(|_| [init.pid].into());
        owners.extend(pids.into_iter().map(|pid| (pid, at)));
    }
    owners
}

/// Whether a process is of the container of `init`, by pid namespace.
fn is_of(pid: u32, init: &ProcessId) -> bool {
    pid == init.pid || shares_its_own_pids(pid, init)
}

/// Whether a process is in the pid namespace of `init`, where that is not the node's.
fn shares_its_own_pids(pid: u32, init: &ProcessId) -> bool {
    let namespace = |of: &str| std::fs::read_link(Path::new("/proc").join(of).join("ns/pid")).ok();
    let inits = namespace(&init.pid.to_string());
    inits.is_some()
        && inits != namespace("self")
        && inits == namespace(&pid.to_string())
        && process_end::is_seen(init)
}
