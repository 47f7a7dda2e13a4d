//! Limits that no grant stands for. A driver that counts by itself never ends one, and knows a
//! cgroup by its address in the kernel: so a cgroup may have the limit of one that was removed
//! without clearing it (mpsgated was away, or the runtime was not ours).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mpsgate_model::GpuUuid;
use mpsgate_model::ledger::State;

use crate::cgroup::{self, dmem};
use crate::daemon::Daemon;
use crate::hardware::Hardware;

/// Between two searches through the node's cgroups.
const SEARCH: Duration = Duration::from_secs(60);
/// More cgroups than a node has: kubelet's most pods are some hundreds.
const MOST: usize = 32_768;
/// For one look, so that no container that starts or ends waits for it.
const AT_ONCE: Duration = Duration::from_millis(50);

/// A search, a part at each look.
#[derive(Debug, Default)]
pub(super) struct Strays {
    /// The last first: each stands behind those below it.
    left: Vec<PathBuf>,
    begun: Option<Instant>,
}

impl Strays {
    /// Clears what it finds, and names it in the log.
    pub(super) async fn look(&mut self, daemon: &Daemon) {
        let cards: Vec<GpuUuid> = {
            let node = daemon.node();
            let managed = node.cards().iter().filter(|card| card.is_managed());
            managed.map(|card| card.uuid.clone()).collect()
        };
        let again = self.left.is_empty() && self.begun.is_none_or(|at| at.elapsed() >= SEARCH);
        if cards.is_empty() || (self.left.is_empty() && !again) {
            return;
        }
        if again {
            self.begun = Some(Instant::now());
        }
        let granted: BTreeSet<u64> = {
            let node = daemon.node();
            let entries = node.entries();
            let inode = |state: &State| match state {
                State::Active { cgroup: Some(cgroup), .. } => Some(cgroup.inode),
                _ => None,
            };
            entries.iter().filter_map(|entry| inode(&entry.state)).collect()
        };
        let root = daemon.paths.cgroups.clone();
        let mut left = std::mem::take(&mut self.left);
        let search = move |hardware: &Hardware| {
            // Where the kernel counts, a limit ends with its cgroup.
            let Ok(nvml) = hardware.nvml() else { return Vec::new() };
            let Some(limits) = nvml.memory_limits() else { return Vec::new() };
            if !dmem::is_v2(&root) || dmem::counts(&root) {
                return Vec::new();
            }
            if again {
                match cgroup::paths(&root, &granted, MOST) {
                    Ok(Some(paths)) => left = paths.into_iter().skip(1).rev().collect(),
                    Ok(None) => {
                        log::warn!(most = MOST; "too many cgroups to look for limits of nobody")
                    }
                    Err(error) => {
                        log::warn!(reason:% = error; "cgroups cannot be read for limits of nobody")
                    }
                }
            }
            let until = Instant::now() + AT_ONCE;
            while Instant::now() < until {
                let Some(path) = left.pop() else { break };
                // A container may have got a grant since they were listed.
                if cgroup::lies_in(&path, &granted) {
                    continue;
                }
                for uuid in &cards {
                    let Ok(read) = limits.get(uuid.as_str(), &path) else { continue };
                    if read.is_none() {
                        continue;
                    }
                    let (cgroup, uuid) = (path.display().to_string(), uuid.as_str());
                    let hard_mib = read.hard_bytes >> 20;
                    match limits.clear(uuid, &path) {
                        Ok(()) => {
                            log::warn!(cgroup = cgroup.as_str(), uuid, hard_mib; "a memory limit that no grant stands for was cleared")
                        }
                        Err(error) => {
                            log::warn!(cgroup = cgroup.as_str(), uuid, hard_mib, reason = crate::error::chain(&error); "a memory limit that no grant stands for cannot be cleared")
                        }
                    }
                }
            }
            left
        };
        self.left = daemon.blocking(search).await;
    }
}
