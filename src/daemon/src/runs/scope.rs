//! A cgroup that systemd makes for a process: a scope.

use std::path::Path;
use std::time::{Duration, Instant};

use mpsgate_host::cgroup::{self, CgroupId};
use mpsgate_model::Grant;

use crate::node_programs;

/// systemd's slice of them.
const SLICE: &str = "mpsgate.slice";
const BUSCTL: &str = "/usr/bin/busctl";
/// For systemd to make a scope.
const LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

/// Has one made, `name.scope`, with the process in it.
///
/// # Errors
/// What cannot be done, as a sentence. The process may be in it then.
pub(super) fn make(
    cgroups: &Path,
    name: &str,
    grant: &Grant,
    pid: u32,
) -> Result<CgroupId, String> {
    let name = format!("{name}.scope");
    let until = Instant::now() + LIMIT;
    node_programs::ask_aloud(Path::new(BUSCTL), &call(&name, grant, pid), &[], LIMIT)
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
    let description = format!("mpsgate run: {}", grant.name());
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
    use mpsgate_model::{ContainerId, DeviceNode, GrantKey, Guarantee, Instance, Mib, Priority};

    use super::*;

    #[test]
    fn systemd_is_asked_for_a_scope_that_is_closed_to_all_other_devices() {
        let node = |path: &str, major, minor| DeviceNode { path: path.to_owned(), major, minor };
        let grant = Grant {
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
            user: None,
        };
        let text = call("mpsgate-run-7.scope", &grant, 4711).join(" ");
        assert_eq!(
            text,
            "call org.freedesktop.systemd1 /org/freedesktop/systemd1 \
             org.freedesktop.systemd1.Manager StartTransientUnit ssa(sv)a(sa(sv)) \
             mpsgate-run-7.scope fail 7 Description s mpsgate run: root/train Slice s mpsgate.slice \
             CollectMode s inactive-or-failed TasksMax t 18446744073709551615 DevicePolicy s closed \
             PIDs au 1 4711 DeviceAllow a(ss) 2 /dev/char/195:1 rw /dev/char/195:255 rw 0"
        );
    }
}
