//! Limits that no grant stands for. A driver that counts by itself never ends one, and knows a
//! cgroup by its address in the kernel: so a cgroup may have the limit of one that was removed
//! without clearing it (mpsgated was away, or the runtime was not ours).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mpsgate_gpu::MemoryLimits;
use mpsgate_model::GpuUuid;
use mpsgate_model::ledger::{Entry, State};

use crate::container_cgroup::{self, dmem};
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

/// Whether a look lists the node's cgroups anew or goes on with those that are left; `None` where
/// it does nothing. `since`: how long ago the last list was made.
fn begins(has_cards: bool, is_left: bool, since: Option<Duration>) -> Option<bool> {
    let is_due = since.is_none_or(|since| since >= SEARCH);
    (has_cards && (is_left || is_due)).then_some(!is_left)
}

impl Strays {
    /// Clears what it finds, and names it in the log.
    pub(super) async fn look(&mut self, daemon: &Daemon) {
        let (cards, granted) = {
            let node = daemon.node();
            let managed = node.cards().iter().filter(|card| card.is_managed());
            let inode = |entry: &Entry| match &entry.state {
                State::Active { cgroup: Some(cgroup), .. } => Some(cgroup.inode),
                _ => None,
            };
            let granted: BTreeSet<u64> = node.ledger().entries().iter().filter_map(inode).collect();
            (managed.map(|card| card.uuid.clone()).collect::<Vec<_>>(), granted)
        };
        let since = self.begun.map(|begun| begun.elapsed());
        let Some(begins) = begins(!cards.is_empty(), !self.left.is_empty(), since) else { return };
        if begins {
            self.begun = Some(Instant::now());
        }
        let root = daemon.paths.cgroups.clone();
        let mut left = std::mem::take(&mut self.left);
        let search = move |hardware: &Hardware| {
            // Where the kernel counts, a limit ends with its cgroup.
            if !dmem::is_v2(&root) || dmem::counts(&root) {
                return Vec::new();
            }
            let Ok(nvml) = hardware.nvml() else { return Vec::new() };
            let Some(limits) = nvml.memory_limits() else { return Vec::new() };
            if begins {
                left = list(&root, &granted);
            }
            let until = Instant::now() + AT_ONCE;
            while Instant::now() < until {
                let Some(path) = left.pop() else { break };
                // A container may have got a grant since they were listed.
                if !container_cgroup::lies_in(&path, &granted) {
                    cards.iter().for_each(|card| clear(&limits, card, &path));
                }
            }
            left
        };
        self.left = daemon.blocking(search).await;
    }
}

/// The node's cgroups without those of grants, the last first.
fn list(root: &Path, granted: &BTreeSet<u64>) -> Vec<PathBuf> {
    match container_cgroup::paths(root, granted, MOST) {
        Ok(Some(paths)) => return paths.into_iter().skip(1).rev().collect(),
        Ok(None) => log::warn!(most = MOST; "too many cgroups to look for limits of nobody"),
        Err(error) => log::warn!(reason:% = error; "cgroups cannot be read for limits of nobody"),
    }
    Vec::new()
}

/// Takes a limit away that no grant stands for, where there is one.
fn clear(limits: &MemoryLimits<'_>, card: &GpuUuid, path: &Path) {
    let uuid = card.as_str();
    let Some(limit) = limits.get(uuid, path).ok().filter(|limit| !limit.is_none()) else { return };
    let (cgroup, hard_mib) = (path.display().to_string(), limit.hard_bytes >> 20);
    match limits.clear(uuid, path) {
        Ok(()) => {
            log::warn!(cgroup = cgroup.as_str(), uuid, hard_mib; "a memory limit that no grant stands for was cleared");
        }
        Err(error) => {
            log::warn!(cgroup = cgroup.as_str(), uuid, hard_mib, reason = crate::error::chain(&error); "a memory limit that no grant stands for cannot be cleared");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_begins_once_a_minute_and_goes_on_until_nothing_is_left() {
        let short = Some(SEARCH.saturating_sub(Duration::from_millis(1)));
        for (has_cards, is_left, since, begins_now) in [
            (true, false, None, Some(true)),
            (true, false, short, None),
            (true, false, Some(SEARCH), Some(true)),
            (true, true, short, Some(false)),
            (true, true, Some(SEARCH * 2), Some(false)),
            (false, false, None, None),
            (false, true, Some(SEARCH), None),
        ] {
            let found = begins(has_cards, is_left, since);
            assert_eq!(found, begins_now, "{has_cards} {is_left} {since:?}");
        }
    }
}
