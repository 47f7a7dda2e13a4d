//! Rows about what edits leave within reach, about what is open without a rule, and about whose
//! processes a container sees.

use mpsgate_config::{HostPid, Policy, Privileged, Unallocated};
use mpsgate_policy::{Caller, MountKind, Pids, Unruled};
use serde_json::{Value, json};

use crate::cases::{Case, asking, bounding, case, device, of_type, privileged, rules};

fn deny() -> Value {
    json!({ "allow": false, "access": "rwm" })
}

fn allow(kind: &str, major: i64, minor: i64, access: &str) -> Value {
    json!({ "allow": true, "type": kind, "major": major, "minor": minor, "access": access })
}

fn strip(policy: &mut Policy) {
    policy.unallocated = Unallocated::Strip;
}

fn close(policy: &mut Policy) {
    policy.privileged = Privileged::Close;
}

/// A privileged container with further rules.
fn privileged_with(more: &[Value]) -> Value {
    let mut spec = privileged();
    let list = spec.pointer_mut("/linux/resources/devices").and_then(Value::as_array_mut);
    list.unwrap().extend_from_slice(more);
    spec
}

fn disabled(name: &'static str, spec: Value) -> Case {
    Case { unruled: Unruled::NoCgroup, ..case(name, spec) }
}

fn below(unruled: Unruled, name: &'static str, spec: Value) -> Case {
    Case { unruled, ..case(name, spec) }
}

fn seeing(pids: Pids, name: &'static str) -> Case {
    Case { pids, ..case(name, asking(json!({ "process": { "user": { "uid": 1000 } } }))) }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = stripped();
    cases.extend(closed());
    cases.extend(unruled());
    cases.extend(pids());
    cases.extend(procfs());
    cases
}

fn stripped() -> Vec<Case> {
    let row = |name, list: Value| case(name, rules(&list)).policy(strip);
    vec![
        row("every character device, stripped", json!([deny(), allow("c", -1, -1, "rwm")])),
        row(
            "every character device of one minor, stripped",
            json!([deny(), allow("c", -1, 0, "r")]),
        ),
        row("every device of one minor, stripped", json!([deny(), allow("a", -1, 0, "rwm")])),
        row(
            "every device and every character device, stripped",
            json!([allow("a", -1, -1, "rwm"), allow("c", -1, -1, "rwm")]),
        ),
        row(
            "every device, but for some after it, stripped",
            json!([allow("c", -1, -1, "rwm"), { "allow": false, "type": "c", "major": 10, "access": "rwm" }]),
        ),
        row("the making of nodes, which opens none", json!([deny(), allow("c", -1, -1, "m")])),
        row("IMEX channels by a rule", json!([deny(), allow("c", 235, -1, "rwm")])),
        row(
            "more rules for every major than can be replaced",
            Value::Array((0..80).map(|minor| allow("c", -1, minor, "rw")).collect()),
        ),
        case(
            "every character device with a request",
            asking(rules(&json!([allow("c", -1, -1, "rw")]))),
        ),
    ]
}

fn closed() -> Vec<Case> {
    let row = |name, more: &[Value]| case(name, privileged_with(more)).policy(close);
    vec![
        row("privileged and the card's own rule, closed", &[allow("c", 195, 0, "rwm")]),
        row("privileged and every character device, closed", &[allow("c", -1, -1, "rwm")]),
        row("privileged and another device's rule, closed", &[allow("c", 10, 229, "rwm")]),
        case("privileged and the card's own rule", privileged_with(&[allow("c", 195, 0, "rwm")])),
        case(
            "privileged and the card's own rule, stripped",
            privileged_with(&[allow("c", 195, 0, "rwm")]),
        )
        .policy(strip),
        below(Unruled::Open, "privileged under crun on cgroup v1, closed", privileged())
            .policy(close),
        disabled("privileged without a device cgroup", privileged()),
        disabled("privileged without a device cgroup, closed", privileged()).policy(close),
    ]
}

fn unruled() -> Vec<Case> {
    let none = || rules(&json!([]));
    let other = || rules(&json!([allow("c", 10, 229, "rwm")]));
    let engines = || rules(&json!([deny(), allow("c", 10, 229, "rwm")]));
    let cards = || rules(&json!([allow("c", 195, 0, "rw")]));
    vec![
        case("no rules under runc", none()),
        below(Unruled::OpenWithoutRules, "no rules under crun", none()),
        below(Unruled::OpenWithoutRules, "no rules under crun, stripped", none()).policy(strip),
        below(Unruled::OpenWithoutRules, "no rules under crun with a request", asking(none())),
        below(Unruled::OpenWithoutRules, "another device's rule under crun", other()),
        below(Unruled::OpenWithoutRules, "a card's rule alone under crun, stripped", cards())
            .policy(strip),
        below(
            Unruled::OpenWithoutRules,
            "a card's rule alone under crun, a request",
            asking(cards()),
        ),
        below(Unruled::Open, "another device's rule under crun on cgroup v1", other()),
        below(Unruled::Open, "the same, stripped", other()).policy(strip),
        below(Unruled::Open, "an engine's rules under crun on cgroup v1", engines()),
        disabled("no device cgroup", bounding(&["CAP_CHOWN"])),
        disabled("no device cgroup, and the making of nodes", bounding(&["CAP_MKNOD"])),
        disabled("no device cgroup, and the making of nodes, stripped", bounding(&["CAP_MKNOD"]))
            .policy(strip),
        disabled("no device cgroup, and the making of nodes in a user namespace", {
            let mut spec = bounding(&["CAP_MKNOD"]);
            spec["linux"] = json!({
                "namespaces": [{ "type": "user" }],
                "uidMappings": [{ "containerID": 0, "hostID": 100_000, "size": 65536 }]
            });
            spec
        }),
        disabled("no device cgroup, and the making of nodes as uid 1000, the host's root", {
            let mut spec = bounding(&["CAP_MKNOD"]);
            spec["linux"] = json!({
                "namespaces": [{ "type": "user" }],
                "uidMappings": [
                    { "containerID": 0, "hostID": 100_000, "size": 1000 },
                    { "containerID": 1000, "hostID": 0, "size": 1 }
                ]
            });
            spec
        }),
        disabled("no device cgroup, and a mount of the card's node", bounding(&[])).mount(
            "/dev/nvidia0",
            "/x",
            MountKind::Card,
        ),
        disabled("no device cgroup, and a disk", of_type("ext4", "/dev/sda1", &[])),
        disabled(
            "no device cgroup, and an overlay without the card's node",
            of_type("overlay", "overlay", &["lowerdir=/etc:/usr"]),
        ),
        disabled("no device cgroup, and the making of nodes by number", bounding(&["27"])),
        disabled("no device cgroup, and another card's node", device("/dev/nvidia1", 195, 1)),
        disabled("no device cgroup with a request", asking(bounding(&[]))),
        case("a mount of the card's node that its cgroup keeps shut", bounding(&["CAP_MKNOD"])),
    ]
}

fn pids() -> Vec<Case> {
    let warn = |policy: &mut Policy| policy.host_pid = HostPid::Warn;
    let refuse = |policy: &mut Policy| policy.host_pid = HostPid::Refuse;
    let traces = |name, policy: fn(&mut Policy)| {
        let spec = asking(bounding(&["CAP_SYS_PTRACE"]));
        Case { pids: Pids::Host, ..case(name, spec) }.policy(policy)
    };
    let other = || Pids::Other("/proc/77/ns/pid".to_owned());
    vec![
        seeing(Pids::Host, "the host's pids as another uid with a request"),
        seeing(Pids::Host, "the host's pids with a request where that is refused").policy(refuse),
        traces("tracing the host's processes with a request where that is refused", refuse),
        traces("tracing the host's processes with a request where that is let through", warn),
        seeing(Pids::Host, "the host's pids with a request where that is let through").policy(warn),
        seeing(other(), "another container's pids with a request"),
        seeing(other(), "another container's pids with a request where that is let through")
            .policy(warn),
        Case {
            pids: other(),
            ..case("tracing another container's processes with a request", {
                asking(bounding(&["CAP_SYS_PTRACE"]))
            })
        }
        .policy(warn),
        seeing(Pids::Pod, "its pod's pids with a request").by(Caller::Containerd),
        seeing(Pids::Own, "its own pids with a request"),
        Case { pids: Pids::Host, ..case("the host's pids without a request", json!({})) },
        Case { pids: other(), ..case("another container's pids without a request", json!({})) },
    ]
}

/// A container with mounts that show the node's processes.
fn showing(name: &'static str, spec: Value, mounts: &[(&str, &str)]) -> Case {
    let case = case(name, spec);
    mounts.iter().fold(case, |case, (from, at)| case.mount(from, at, MountKind::Processes))
}

fn procfs() -> Vec<Case> {
    let warn = |policy: &mut Policy| policy.host_pid = HostPid::Warn;
    let refuse = |policy: &mut Policy| policy.host_pid = HostPid::Refuse;
    let plain = || asking(json!({}));
    let elsewhere = [("/proc", "/host/proc")];
    let at_proc = |name| {
        let bind = |at: &str| json!({ "destination": at, "source": "/proc", "options": ["rbind"] });
        let spec = json!({ "mounts": [bind("/proc/"), bind("/x"), bind("proc"), bind("/proc/")] });
        showing(name, asking(spec), &[("/proc", "/proc/")])
    };
    vec![
        showing("a mount of /proc with a request", plain(), &elsewhere),
        showing(
            "a mount of the root, read-only with all below, with a request",
            plain(),
            &[("/", "/host")],
        ),
        showing("a mount of /proc with a request where that is refused", plain(), &elsewhere)
            .policy(refuse),
        showing("a mount of /proc with a request where that is let through", plain(), &elsewhere)
            .policy(warn),
        showing(
            "tracing and a mount of /proc with a request where that is let through",
            asking(bounding(&["CAP_SYS_PTRACE"])),
            &elsewhere,
        )
        .policy(warn),
        showing("a mount of /proc without a request", json!({}), &elsewhere),
        at_proc("mounts of /proc at /proc with a request"),
        Case { pids: Pids::Host, ..at_proc("the same in the host's pids") },
        Case { pids: Pids::Pod, ..at_proc("the same in its pod's pids") },
        at_proc("the same where that is refused").policy(refuse),
        at_proc("the same where that is let through").policy(warn),
        at_proc("the same, and elsewhere").mount("/proc/1", "/x", MountKind::Processes),
    ]
}
