//! What becomes of documents that ask for the node's processes, as engines write them: they are
//! changed, and what they say then is decided about anew.

#![allow(clippy::unwrap_used, reason = "test code fails by panicking")]

use mpsgate_config::{HostPid, Policy};
use mpsgate_model::Code;
use mpsgate_oci::spec::{Document, Namespace, View, parse};
use mpsgate_policy::{
    Action, Caller, Decision, Input, Ipc, MountFact, MountKind, Node, Pids, Schedule, Shm, Unruled,
    Users, Verdict, decide, names_processes,
};
use serde_json::{Value, json};

/// What a process of the host, of its own pod and of another container shows.
const HOSTS: &str = "/proc/100/ns/pid";
const PODS: &str = "/proc/200/ns/pid";

fn pids(view: View<'_>) -> Pids {
    match view.pid_namespace() {
        Namespace::New => Pids::Own,
        Namespace::Callers | Namespace::At(HOSTS) => Pids::Host,
        Namespace::At(PODS) => Pids::Pod,
        Namespace::At(path) => Pids::Other(path.to_owned()),
    }
}

fn mounts(view: View<'_>) -> Vec<MountFact> {
    let binds = view.mount_entries().filter(|mount| mount.is_bind());
    let shown = binds.filter(|mount| names_processes(mount.source, mount.is_recursive()));
    let fact = |mount: mpsgate_oci::spec::MountEntry<'_>| MountFact {
        source: mount.source.to_owned(),
        destination: mount.destination.to_owned(),
        kind: MountKind::Processes,
    };
    shown.map(fact).collect()
}

fn decided(view: View<'_>, pids: Pids, host_pid: HostPid, caller: Caller) -> Decision {
    decide(&Input {
        view,
        node: &Node { schedule: Schedule::Share, ..Node::unknown() },
        policy: &Policy { host_pid, ..Policy::default() },
        requests_from_env: true,
        mounts: &mounts(view),
        ipc: Ipc::Unknown,
        shm: Shm::Unknown,
        users: Users::OfSpec,
        pids,
        unruled: Unruled::Closed,
        caller,
        action: Action::Create,
        runtime_is_nvidia: false,
    })
}

fn confirmed(document: &Document, caller: Caller) -> Decision {
    let own = |view: View<'_>| decided(view, pids(view), HostPid::Own, caller);
    own(document.view()).confirmed(document, own)
}

fn document(namespaces: &[Value], mounts: &[Value]) -> Document {
    let mut namespaces = namespaces.to_vec();
    namespaces.extend(["mount", "network", "uts"].map(|kind| json!({ "type": kind })));
    let spec = json!({
        "ociVersion": "1.0.2",
        "annotations": { "mpsgate.io/gpu-mem": "7Gi" },
        "process": { "user": { "uid": 1000, "gid": 0 } },
        "mounts": mounts,
        "linux": {
            "namespaces": namespaces,
            "uidMappings": [{ "containerID": 0, "hostID": 100_000, "size": 65536 }],
            "maskedPaths": ["/proc/kcore"],
            "readonlyPaths": ["/proc/bus", "/proc/sys"]
        }
    });
    parse(spec.to_string().as_bytes()).unwrap()
}

fn pid_at(path: &str) -> Value {
    json!({ "type": "pid", "path": path })
}

fn proc() -> Value {
    json!({ "destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"] })
}

fn bound(source: &str, destination: &str, options: &[&str]) -> Value {
    json!({ "destination": destination, "type": "bind", "source": source, "options": options })
}

/// Podman's beside a user namespace, in which the host's procfs cannot be mounted.
fn podmans() -> Value {
    bound("/proc", "/proc", &["rbind", "nosuid", "noexec", "nodev"])
}

#[test]
fn who_asks_for_the_hosts_pids_gets_its_own_by_every_engine() {
    let user = json!({ "type": "user" });
    let tmp = bound("/srv", "/tmp", &["rbind"]);
    for (engine, caller, namespaces, mounts) in [
        ("containerd's CRI", Caller::Containerd, vec![pid_at(HOSTS)], vec![proc()]),
        ("CRI-O", Caller::Crio, vec![], vec![proc()]),
        ("Docker", Caller::Local, vec![], vec![proc()]),
        ("Podman", Caller::Podman, vec![], vec![proc()]),
        ("Podman, by path", Caller::Podman, vec![pid_at(HOSTS)], vec![proc()]),
        (
            "Podman, with a user namespace",
            Caller::Podman,
            vec![user.clone()],
            vec![podmans(), tmp.clone()],
        ),
        (
            "a bind alone",
            Caller::Local,
            vec![json!({ "type": "pid" })],
            vec![tmp.clone(), podmans()],
        ),
        (
            "a bind over a procfs",
            Caller::Local,
            vec![],
            vec![proc(), bound("/proc/1/root/proc", "/proc/", &["bind", "ro"])],
        ),
        ("the root at /proc", Caller::Local, vec![], vec![bound("/", "proc", &["rbind"])]),
    ] {
        let before = document(&namespaces, &mounts);
        let decision = confirmed(&before, caller);
        let Verdict::Reserve(wanted) = &decision.verdict else { panic!("{engine}: {decision:?}") };
        let mut after = before.clone();
        after.apply(&wanted.edits).unwrap();
        assert_eq!(after.view().pid_namespace(), Namespace::New, "{engine}");
        let at_proc: Vec<_> =
            after.view().mount_entries().filter(|m| m.destination.contains("proc")).collect();
        let [only] = at_proc.as_slice() else { panic!("{engine}: {at_proc:?}") };
        assert_eq!((only.kind, only.is_bind()), ("proc", false), "{engine}");
        assert_eq!(
            after.view().mounts().count(),
            if mounts.contains(&tmp) { 2 } else { 1 },
            "{engine}"
        );
        assert!(decision.notes.iter().any(|note| note.code == Code::HostPid), "{engine}");
        let again = confirmed(&after, caller);
        let Verdict::Reserve(wanted) = again.verdict else { panic!("{engine}: {again:?}") };
        assert_eq!((wanted.edits, again.notes), (vec![], vec![]), "{engine}");
        for policy in [HostPid::Own, HostPid::Refuse] {
            let view = after.view();
            let decision = decided(view, pids(view), policy, caller);
            assert!(matches!(decision.verdict, Verdict::Reserve(_)), "{engine}");
        }
    }
}

#[test]
fn what_is_no_ones_to_change_stays_or_is_refused() {
    let code = |namespaces: &[Value], mounts: &[Value]| {
        let decision = confirmed(&document(namespaces, mounts), Caller::Containerd);
        match decision.verdict {
            Verdict::Refuse(refusal) => Err(refusal.code),
            Verdict::Reserve(wanted) => Ok(wanted.edits.len()),
            other => panic!("{other:?}"),
        }
    };
    let own = [json!({ "type": "pid" })];
    assert_eq!(code(&own, &[proc()]), Ok(0), "its own already");
    assert_eq!(code(&[pid_at(PODS)], &[proc()]), Ok(0), "its pod's");
    assert_eq!(code(&[pid_at("/proc/300/ns/pid")], &[proc()]), Err(Code::HostPid), "another's");
    let driver = bound("/proc/driver/nvidia/params", "/proc/driver/nvidia/params", &["bind"]);
    assert_eq!(code(&own, &[proc(), driver]), Ok(0), "the driver's part");
    for (source, options) in [
        ("/proc", &["rbind", "ro"][..]),
        ("/proc/", &["bind"]),
        ("/proc/1/root", &["rbind"]),
        ("/proc/self/root/proc/1", &["bind"]),
        ("/proc/1/cwd", &["bind"]),
        ("/proc/x/root", &["bind"]),
        ("/sys/../proc/self", &["bind"]),
        ("/proc/driver/nvidia/../../sys", &["bind"]),
        ("/", &["rbind", "rro"]),
    ] {
        let mounts = [proc(), bound(source, "/host", options)];
        assert_eq!(code(&own, &mounts), Err(Code::HostPid), "{source}");
        assert_eq!(code(&[], &mounts), Err(Code::HostPid), "{source} in the host's pids");
    }
    for (source, options) in [
        ("/", &["bind"][..]),
        ("/processes", &["rbind"]),
        ("/srv/proc", &["rbind"]),
        ("/proc/1/root", &["bind"]),
        ("/proc/1/root/proc/self/root/dev/null", &["bind"]),
    ] {
        assert_eq!(code(&own, &[proc(), bound(source, "/host", options)]), Ok(0), "{source}");
    }
}

#[test]
fn an_edit_is_not_trusted() {
    let before = document(&[], &[proc()]);
    let first = || decided(before.view(), Pids::Host, HostPid::Own, Caller::Local);
    // The namespace that the edit gives turns out to be the host's, or another's.
    for seen in [Pids::Host, Pids::Other("/p".to_owned())] {
        let decision = first()
            .confirmed(&before, |view| decided(view, seen.clone(), HostPid::Own, Caller::Local));
        let Verdict::Refuse(refusal) = decision.verdict else { panic!("{seen:?}") };
        assert_eq!(refusal.code, Code::HostPid, "{seen:?}");
    }
    // Nobody asks where nothing was changed.
    let own = document(&[json!({ "type": "pid" })], &[proc()]);
    let decision = decided(own.view(), Pids::Own, HostPid::Own, Caller::Local);
    let decision = decision.confirmed(&own, |_| panic!("asked"));
    assert!(matches!(decision.verdict, Verdict::Reserve(_)));
}

#[test]
fn a_procfs_that_the_kernel_would_not_mount_is_no_bare_error_of_the_runtime() {
    let users = || json!({ "type": "user" });
    let bound = document(&[users()], &[podmans()]);
    let decision = confirmed(&bound, Caller::Podman).with_procfs(|| false);
    let Verdict::Refuse(refusal) = decision.verdict else { panic!("{decision:?}") };
    assert_eq!(refusal.code, Code::HostPid);
    assert!(refusal.sentence.contains("in a user namespace"), "{}", refusal.sentence);
    assert!(refusal.hint.contains("--userns=host"), "{}", refusal.hint);
    let decision = confirmed(&bound, Caller::Podman).with_procfs(|| true);
    assert!(matches!(decision.verdict, Verdict::Reserve(_)), "{decision:?}");
    // Nobody asks where the document has one already: it is the runtime's to mount.
    let own = document(&[users(), json!({ "type": "pid" })], &[proc()]);
    let decision = confirmed(&own, Caller::Podman).with_procfs(|| panic!("asked"));
    assert!(matches!(decision.verdict, Verdict::Reserve(_)), "{decision:?}");
}
