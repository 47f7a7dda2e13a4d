//! Cgroups of plain processes with a grant (`mpsgate run`), which open no card but the grant's.
//!
//! Where systemd runs it makes a scope, as it does for who asks it by `systemd-run --scope`: the
//! kernel is told of the devices by systemd, whatever the hierarchy. Elsewhere mpsgated makes a
//! directory below the cgroup that the process is in. Both are root's, so that no process without
//! root's rights leaves.
//!
//! What may be opened is what a container may (`DevicePolicy=closed`, systemd.resource-control(5),
//! and the same numbers without systemd), and the grant's nodes: a list of what is open, so that a
//! card that comes later is closed, too.

mod bpf;
mod device_rules;
mod run_cgroup;
mod scope;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mpsgate_host::cgroup::{self, CgroupId};
use mpsgate_model::ledger::{Entry, Ledger, State};
use mpsgate_model::{Code, Grant, Instance, Refusal};

use crate::node_root;
use crate::process_end::ProcessId;

/// How the names of all of them begin, and the digits behind it.
const NAME: &str = "mpsgate-run-";
const DIGITS: usize = 16;
/// Cgroups that a search looks at; see [`cgroup_limits`](crate::cgroup_limits).
const MOST: usize = 32_768;
/// A cgroup without processes that is younger may be one that is just being made.
const SOON: Duration = Duration::from_secs(60);
/// There while systemd is the node's first process (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";

/// Puts a living process into a cgroup of its own, from which it opens the grant's cards alone.
///
/// # Errors
/// What to do where that cannot be done. The process may be in the cgroup then.
pub(crate) fn confine(
    cgroups: &Path,
    grant: &Grant,
    process: ProcessId,
) -> Result<CgroupId, Refusal> {
    let name = name_of(&grant.key.instance);
    let made = if Path::new(SYSTEMD).exists() {
        scope::make(cgroups, &name, grant, process.pid)
    } else if cgroup::is_unified()
        && node_root::look(|| Path::new(SYSTEMD).exists()).unwrap_or(true)
    {
        // Whose tree it is, and it may remove there what is not its own.
        Err("the node's systemd keeps its cgroups, and does not hear an mpsgated in a pod"
            .to_owned())
    } else {
        run_cgroup::make(cgroups, &name, &grant.devices, process.pid)
    };
    made.map_err(|why| {
        Refusal::new(
            Code::Cgroup,
            format!("it cannot have a cgroup of its own: {why}"),
            "mpsgate doctor; journalctl -u mpsgated -n 50",
        )
    })
}

/// Takes away what is left of an ended grant; systemd does that itself.
pub(crate) fn remove(cgroup: &CgroupId) {
    if own_name(Path::new(&cgroup.path)).is_some() && cgroup::is_same(cgroup).unwrap_or(false) {
        remove_tree(Path::new(&cgroup.path));
    }
}

/// The names of all grants' and reservations' directories.
pub(crate) fn of(ledger: &Ledger) -> BTreeSet<String> {
    let keys = ledger.entries().iter().map(|entry| &entry.grant.key);
    keys.filter(|key| key.is_run()).map(|key| name_of(&key.instance)).collect()
}

/// Takes away what is left of grants that ended while mpsgated was away: of those `before`, and
/// what an mpsgated has left that was killed at work. One with a process in it stays: the kernel
/// says so.
pub(crate) fn remove_strays(cgroups: &Path, before: &BTreeSet<String>, ledger: &Ledger) {
    let granted = ledger.entries().iter().filter_map(cgroup_of);
    let granted: BTreeSet<u64> = granted.map(|cgroup| cgroup.inode).collect();
    let is_old = |path: &Path| {
        let made = path.metadata().and_then(|it| it.modified()).ok();
        made.and_then(|made| made.elapsed().ok()).is_some_and(|age| age >= SOON)
    };
    remove_where(cgroups, &granted, &|path, name| before.contains(name) || is_old(path));
}

/// Takes away what is left of a reservation that became no grant.
pub(crate) fn remove_of(cgroups: &Path, instance: &Instance) {
    let name = name_of(instance);
    remove_where(cgroups, &BTreeSet::new(), &|_, found| found == name);
}

fn remove_where(cgroups: &Path, granted: &BTreeSet<u64>, wanted: &dyn Fn(&Path, &str) -> bool) {
    let found = crate::container_cgroup::paths(&hierarchy(cgroups), granted, MOST);
    for path in found.ok().flatten().unwrap_or_default() {
        if own_name(&path).is_some_and(|name| wanted(&path, name)) {
            remove_tree(&path);
        }
    }
}

/// Below which [`run_cgroup`] makes them.
fn hierarchy(cgroups: &Path) -> PathBuf {
    if cgroup::is_unified() { cgroups.to_owned() } else { cgroups.join("devices") }
}

fn cgroup_of(entry: &Entry) -> Option<&CgroupId> {
    match &entry.state {
        State::Active { cgroup, .. } => cgroup.as_ref(),
        State::Reserved { .. } => None,
    }
}

fn name_of(instance: &Instance) -> String {
    format!("{NAME}{}", instance.public())
}

/// The name of a directory that [`run_cgroup`] makes; `None` for any other.
fn own_name(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    let digits = name.strip_prefix(NAME)?;
    (digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(name)
}

/// A process as root may have made cgroups below.
fn remove_tree(directory: &Path) {
    let paths = crate::container_cgroup::paths(
        directory,
        &BTreeSet::new(),
        crate::container_cgroup::MOST_PATHS,
    );
    // Those below stand behind.
    for path in paths.ok().flatten().unwrap_or_default().iter().rev() {
        if fs::remove_dir(path).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn what_is_left_is_removed_and_nothing_elsewhere() {
        let instance = Instance::from_bytes([7; 16]);
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("devices/user");
        let made = |name: &str| {
            let path = devices.join(name);
            fs::create_dir_all(path.join("below")).unwrap();
            path
        };
        let (left, other) = (made(&name_of(&instance)), made("mpsgate-run-x"));
        remove(&CgroupId::of(&other).unwrap());
        remove(&CgroupId { inode: 1, ..CgroupId::of(&left).unwrap() });
        let none = BTreeSet::new();
        remove_strays(root.path(), &none, &Ledger::default());
        assert!(
            left.exists() && other.exists(),
            "another's, another one of that name, a young one"
        );
        let old = std::time::SystemTime::now() - 2 * SOON;
        fs::File::open(&left).unwrap().set_modified(old).unwrap();
        remove_strays(root.path(), &none, &Ledger::default());
        assert!(!left.exists() && devices.exists() && other.exists());
        let ways: [&dyn Fn(&Path); 3] = [
            &|left| remove(&CgroupId::of(left).unwrap()),
            &|_| remove_of(root.path(), &instance),
            &|_| remove_strays(root.path(), &[name_of(&instance)].into(), &Ledger::default()),
        ];
        for way in ways {
            let left = made(&name_of(&instance));
            way(&left);
            assert!(!left.exists() && other.exists());
        }
    }
}
