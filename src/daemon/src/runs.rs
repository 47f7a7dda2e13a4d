//! Cgroups of plain processes with a grant (`mpsgate run`), which open no card but the grant's.
//!
//! Where systemd runs it makes a scope, as it does for who asks it by `systemd-run --scope`: the
//! kernel is told of the devices by systemd, whatever the hierarchy. Elsewhere it is a directory of
//! v1's `devices` hierarchy, below the one that the process is in, whose devices bound its own.
//! Both are root's, so that no process without root's rights leaves.
//!
//! What may be opened is what a container may (`DevicePolicy=closed`, systemd.resource-control(5),
//! and the same numbers in v1), and the grant's nodes: a list of what is open, so that a card that
//! comes later is closed, too.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use mpsgate_host::cgroup::{self, CgroupId};
use mpsgate_model::ledger::{Entry, Ledger, State};
use mpsgate_model::{Code, DeviceNode, Grant, Instance, Refusal};

use crate::process::ProcessId;
use crate::program;

/// How the names of all of them begin.
const NAME: &str = "mpsgate-run-";
/// systemd's slice of them.
const SLICE: &str = "mpsgate.slice";
/// Cgroups that a search looks at; see [`cgroup_limits`](crate::cgroup_limits).
const MOST: usize = 32_768;
/// A cgroup without processes that is younger may be one that is just being made.
const SOON: Duration = Duration::from_secs(60);
/// There while systemd is the node's first process (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";
const BUSCTL: &str = "/usr/bin/busctl";
/// For systemd to make a scope.
const LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

/// What any process may open, by major and minor: null, zero, full, random, urandom, tty, ptmx and
/// pseudo-terminals.
const OPEN: [&str; 8] =
    ["1:3 rwm", "1:5 rwm", "1:7 rwm", "1:8 rwm", "1:9 rwm", "5:0 rwm", "5:2 rwm", "136:* rwm"];

/// Puts a living process into a cgroup of its own, from which it opens the grant's cards alone.
///
/// # Errors
/// What to do where that cannot be done. The process may be in the cgroup then.
pub(crate) fn confine(
    cgroups: &Path,
    grant: &Grant,
    process: ProcessId,
) -> Result<CgroupId, Refusal> {
    let made = if Path::new(SYSTEMD).exists() {
        scope(cgroups, grant, process.pid)
    } else if cgroup::is_unified() {
        return Err(Refusal::new(
            Code::Cgroup,
            "this node has cgroup v2 and no systemd, which would keep it from other cards",
            "start it as a container (docs/compose.md)",
        ));
    } else {
        directory(cgroups, grant, process.pid)
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
    if instance_of(Path::new(&cgroup.path)).is_some() && cgroup::is_same(cgroup).unwrap_or(false) {
        remove_tree(Path::new(&cgroup.path));
    }
}

/// The instances of all grants and reservations.
pub(crate) fn of(ledger: &Ledger) -> BTreeSet<Instance> {
    let keys = ledger.entries().iter().map(|entry| &entry.grant.key);
    keys.filter(|key| key.is_run()).map(|key| key.instance.clone()).collect()
}

/// Takes away what is left of grants that ended while mpsgated was away: of those `before`, and
/// what an mpsgated has left that was killed at work. One with a process in it stays: the kernel
/// says so.
pub(crate) fn remove_strays(cgroups: &Path, before: &BTreeSet<Instance>, ledger: &Ledger) {
    let granted = ledger.entries().iter().filter_map(cgroup_of);
    let granted: BTreeSet<u64> = granted.map(|cgroup| cgroup.inode).collect();
    let is_old = |path: &Path| {
        let made = path.metadata().and_then(|it| it.modified()).ok();
        made.and_then(|made| made.elapsed().ok()).is_some_and(|age| age >= SOON)
    };
    remove_where(cgroups, &granted, &|path, instance| before.contains(instance) || is_old(path));
}

/// Takes away what is left of a reservation that became no grant.
pub(crate) fn remove_of(cgroups: &Path, instance: &Instance) {
    remove_where(cgroups, &BTreeSet::new(), &|_, found| found == instance);
}

fn remove_where(
    cgroups: &Path,
    granted: &BTreeSet<u64>,
    wanted: &dyn Fn(&Path, &Instance) -> bool,
) {
    let found = crate::cgroup::paths(&cgroups.join("devices"), granted, MOST);
    for path in found.ok().flatten().unwrap_or_default() {
        if instance_of(&path).is_some_and(|instance| wanted(&path, &instance)) {
            remove_tree(&path);
        }
    }
}

fn cgroup_of(entry: &Entry) -> Option<&CgroupId> {
    match &entry.state {
        State::Active { cgroup, .. } => cgroup.as_ref(),
        State::Reserved { .. } => None,
    }
}

fn name_of(grant: &Grant) -> String {
    format!("{NAME}{}", grant.key.instance)
}

/// Whose a directory is that [`directory`] makes.
fn instance_of(path: &Path) -> Option<Instance> {
    let name = path.file_name()?.to_str()?;
    Instance::parse(name.strip_prefix(NAME)?).ok()
}

/// A process as root may have made cgroups below.
fn remove_tree(directory: &Path) {
    let paths = crate::cgroup::paths(directory, &BTreeSet::new(), crate::cgroup::MOST_PATHS);
    // Those below stand behind.
    for path in paths.ok().flatten().unwrap_or_default().iter().rev() {
        if fs::remove_dir(path).is_err() {
            return;
        }
    }
}

/// In v1's hierarchy of devices.
fn directory(cgroups: &Path, grant: &Grant, pid: u32) -> Result<CgroupId, String> {
    let text = cgroup::text_of(pid).ok_or("the process has ended")?;
    let above = cgroup::of_devices(&text, false).ok_or("this kernel controls no devices (v1)")?;
    let directory = cgroup::below(cgroups, &above).join(name_of(grant));
    let said = |what: &str, error: &io::Error| format!("cannot {what}: {error}");
    fs::create_dir(&directory)
        .map_err(|error| said(&format!("make {}", directory.display()), &error))?;
    let made = CgroupId::of(&directory).ok_or("it is gone at once")?;
    let set = || {
        let write = |file: &str, text: &str| {
            let done = write_existing(&directory.join(file), text);
            done.map_err(|error| said(&format!("write {text:?} to {file}"), &error))
        };
        write("devices.deny", "a")?;
        for rule in rules(&grant.devices) {
            write("devices.allow", &rule)?;
        }
        // Whatever the kernel has made of it.
        let list = fs::read_to_string(directory.join("devices.list"));
        let list = list.map_err(|error| said("read devices.list", &error))?;
        if list.lines().any(|line| line.starts_with('a')) {
            return Err("the kernel closes no device to it".to_owned());
        }
        write("cgroup.procs", &pid.to_string())
    };
    match set() {
        Ok(()) => Ok(made),
        Err(why) => {
            remove(&made);
            Err(why)
        }
    }
}

/// A file that is not there is not made.
fn write_existing(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write as _;
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// The lines of `devices.allow`.
fn rules(devices: &[DeviceNode]) -> Vec<String> {
    let granted = devices.iter().map(|node| format!("c {}:{} rw", node.major, node.minor));
    // Making a node opens none.
    let nodes = ["c *:* m", "b *:* m"].map(str::to_owned).into_iter();
    nodes.chain(OPEN.map(|open| format!("c {open}"))).chain(granted).collect()
}

/// By systemd.
fn scope(cgroups: &Path, grant: &Grant, pid: u32) -> Result<CgroupId, String> {
    let name = format!("{}.scope", name_of(grant));
    let until = Instant::now() + LIMIT;
    program::ask_aloud(Path::new(BUSCTL), &call(&name, grant, pid), &[], LIMIT)
        .map_err(|error| format!("systemd makes no scope ({BUSCTL}): {error}"))?;
    // It has answered, and moves the process in a moment.
    loop {
        let text = cgroup::text_of(pid).ok_or("the process has ended")?;
        let found = cgroup::of_devices(&text, cgroup::is_unified());
        if let Some(found) = found.filter(|found| found.ends_with(&name)) {
            return CgroupId::of(&cgroup::below(cgroups, &found))
                .ok_or_else(|| "it is gone at once".to_owned());
        }
        if Instant::now() >= until {
            return Err(format!("systemd has not moved it into {name} within {LIMIT:?}"));
        }
        std::thread::sleep(LOOK);
    }
}

/// `StartTransientUnit` of org.freedesktop.systemd1(5), as busctl(1) takes it.
fn call(name: &str, grant: &Grant, pid: u32) -> Vec<String> {
    const MANAGER: [&str; 5] = [
        "call",
        "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager",
        "StartTransientUnit",
    ];
    let description = format!("mpsgate run: {}", grant.key.container_id);
    let pid = pid.to_string();
    let devices = grant.devices.iter();
    // Of nodes that are not there, too: by their numbers.
    let devices: Vec<String> = devices
        .flat_map(|node| [format!("/dev/char/{}:{}", node.major, node.minor), "rw".to_owned()])
        .collect();
    let count = grant.devices.len().to_string();
    let mut properties: Vec<Vec<&str>> = vec![
        vec!["Description", "s", &description],
        vec!["Slice", "s", SLICE],
        vec!["CollectMode", "s", "inactive-or-failed"],
        // Its processes are the caller's, who has limits of its own.
        vec!["TasksMax", "t", "18446744073709551615"],
        vec!["DevicePolicy", "s", "closed"],
        vec!["PIDs", "au", "1", &pid],
    ];
    let mut allow = vec!["DeviceAllow", "a(ss)", &count];
    allow.extend(devices.iter().map(String::as_str));
    properties.push(allow);
    let number = properties.len().to_string();
    let mut words = MANAGER.to_vec();
    words.extend(["ssa(sv)a(sa(sv))", name, "fail", &number]);
    words.extend(properties.iter().flatten());
    words.push("0");
    words.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_model::{ContainerId, GrantKey, Guarantee, Mib, Priority};

    use super::*;

    fn grant() -> Grant {
        let node = |path: &str, major, minor| DeviceNode { path: path.to_owned(), major, minor };
        Grant {
            key: GrantKey {
                runtime_root: GrantKey::run_of(None),
                container_id: ContainerId::parse("train").unwrap(),
                instance: Instance::from_bytes([7; 16]),
            },
            cards: Vec::new(),
            memory: Mib(7168),
            uid: 1000,
            compute: None,
            priority: Priority::Normal,
            client_dir: String::new(),
            devices: vec![node("/dev/nvidia1", 195, 1), node("/dev/nvidiactl", 195, 255)],
            guarantee: Guarantee::Mps,
        }
    }

    #[test]
    fn devices_are_a_list_of_what_is_open() {
        let rules = rules(&grant().devices);
        assert_eq!(rules.first().unwrap(), "c *:* m");
        assert_eq!(rules.last().unwrap(), "c 195:255 rw");
        assert!(
            rules.contains(&"c 195:1 rw".to_owned()) && rules.contains(&"c 1:3 rwm".to_owned())
        );
        assert!(!rules.iter().any(|rule| rule.starts_with("c 195:0") || rule.starts_with('a')));
    }

    #[test]
    fn systemd_is_asked_for_a_scope_that_is_closed_to_all_other_devices() {
        let text = call("mpsgate-run-7.scope", &grant(), 4711).join(" ");
        assert_eq!(
            text,
            "call org.freedesktop.systemd1 /org/freedesktop/systemd1 \
             org.freedesktop.systemd1.Manager StartTransientUnit ssa(sv)a(sa(sv)) \
             mpsgate-run-7.scope fail 7 Description s mpsgate run: train Slice s mpsgate.slice \
             CollectMode s inactive-or-failed TasksMax t 18446744073709551615 DevicePolicy s closed \
             PIDs au 1 4711 DeviceAllow a(ss) 2 /dev/char/195:1 rw /dev/char/195:255 rw 0"
        );
    }

    #[test]
    fn what_is_left_is_removed_and_nothing_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("devices/user");
        let made = |name: &str| {
            let path = devices.join(name);
            fs::create_dir_all(path.join("below")).unwrap();
            path
        };
        let (left, other) = (made(&name_of(&grant())), made("mpsgate-run-x"));
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
        let instance = grant().key.instance;
        let ways: [&dyn Fn(&Path); 3] = [
            &|left| remove(&CgroupId::of(left).unwrap()),
            &|_| remove_of(root.path(), &instance),
            &|_| remove_strays(root.path(), &[instance.clone()].into(), &Ledger::default()),
        ];
        for way in ways {
            let left = made(&name_of(&grant()));
            way(&left);
            assert!(!left.exists() && other.exists());
        }
    }
}
