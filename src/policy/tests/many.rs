//! One thing many times in one spec: told once, taken away with as many edits as there are things,
//! and no more.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code fails by panicking")]

use std::collections::BTreeSet;

use mpsgate_config::{Policy, Privileged, Unallocated};
use mpsgate_oci::spec::{Edit, View};
use mpsgate_policy::{
    Action, Caller, Decision, Input, Ipc, MountFact, MountKind, Node, Shm, Users, Verdict, decide,
};
use serde_json::{Value, json};

const MANY: usize = 5_000;

fn decided(spec: &Value, unallocated: Unallocated, mounts: &[MountFact]) -> Decision {
    let policy = Policy { unallocated, privileged: Privileged::Close, ..Policy::default() };
    decide(&Input {
        view: View::new(spec),
        node: &Node::unknown(),
        policy: &policy,
        requests_from_env: true,
        mounts,
        ipc: Ipc::Inode(1),
        shm: Shm::Servers,
        users: Users::OfSpec,
        pids: mpsgate_policy::Pids::Own,
        unruled: mpsgate_policy::Unruled::Closed,
        caller: Caller::Local,
        action: Action::Create,
        runtime_is_nvidia: true,
    })
}

fn many(entry: impl Fn(usize) -> Value) -> Vec<Value> {
    (0..MANY).map(entry).collect()
}

fn specs() -> Vec<(&'static str, Value, usize)> {
    let env = |entries: Vec<Value>| json!({ "process": { "env": entries } });
    let annotations: serde_json::Map<String, Value> =
        (0..MANY).map(|i| (format!("cdi.k8s.io/{i}"), json!("nvidia.com/gpu=0"))).collect();
    let list = |i| format!("/var/run//nvidia-container-devices/{i}");
    let device = |i| json!({ "path": format!("/dev/x{i}"), "type": "c", "major": 195, "minor": i });
    let rule = |i| json!({ "allow": true, "type": "c", "major": 195, "minor": i, "access": "rw" });
    let hook = |i| json!({ "path": format!("/bin/h{i}") });
    let socket = |i| json!({ "source": format!("/run/{i}/docker.sock"), "options": ["bind"] });
    vec![
        ("variables of MPS", env(many(|i| json!(format!("CUDA_MPS_{i}=1")))), 1),
        ("one variable of MPS", env(many(|i| json!(format!("CUDA_MPS_X={i}")))), 1),
        ("swarm resources", env(many(|i| json!(format!("DOCKER_RESOURCE_GPU{i}=0")))), 1),
        ("channels", env(many(|i| json!(format!("NVIDIA_IMEX_CHANNELS={i}")))), 1),
        ("annotations", json!({ "annotations": annotations }), MANY),
        (
            "mounts",
            json!({ "mounts": many(|i| json!({ "source": "/dev/null", "destination": list(i) })) }),
            MANY,
        ),
        (
            "one mount",
            json!({ "mounts": many(|_| json!({ "source": "/dev/null", "destination": list(0) })) }),
            1,
        ),
        ("devices", json!({ "linux": { "devices": many(device) } }), MANY),
        (
            "devices with rules",
            json!({ "linux": { "devices": many(device), "resources": { "devices": many(rule) } } }),
            2 * MANY + 8,
        ),
        ("one device", json!({ "linux": { "devices": many(|_| device(0)) } }), 1),
        (
            "rules that close",
            json!({ "linux": { "resources": { "devices":
                many(|i| json!({ "allow": false, "type": "c", "major": 195, "minor": i })) } } }),
            0,
        ),
        ("engines' sockets", json!({ "mounts": many(socket) }), 0),
        ("hooks", json!({ "hooks": { "poststart": many(hook) } }), 0),
    ]
}

fn assert_told_once(what: &str, decision: &Decision) {
    let codes: BTreeSet<_> = decision.notes.iter().map(|n| (n.action, n.code)).collect();
    assert_eq!(codes.len(), decision.notes.len(), "{what}: {:?}", decision.notes);
    for note in &decision.notes {
        assert!(note.text.len() < 4096, "{what}: a note of {} bytes", note.text.len());
    }
    let codes: BTreeSet<_> = decision.signals.iter().map(|signal| signal.code).collect();
    assert_eq!(codes.len(), decision.signals.len(), "{what}: {:?}", decision.signals);
}

#[test]
fn many_of_a_kind_are_told_once_and_taken_away_with_an_edit_each() {
    for (what, spec, edits_max) in specs() {
        for unallocated in [Unallocated::Strip, Unallocated::Warn, Unallocated::Refuse] {
            assert_told_once(what, &decided(&spec, unallocated, &[]));
        }
        let decision = decided(&spec, Unallocated::Strip, &[]);
        if edits_max == 0 {
            assert_eq!(decision.verdict, Verdict::Pass, "{what}");
            continue;
        }
        let Verdict::Edit(edits) = decision.verdict else {
            panic!("{what}: {:?}", decision.verdict)
        };
        assert!(edits.len() <= edits_max, "{what}: {} edits", edits.len());
        let names: usize = edits
            .iter()
            .map(|edit| if let Edit::Env { drop, .. } = edit { drop.len() } else { 0 })
            .sum();
        assert!(names <= MANY, "{what}: {names} names are dropped");
        let counted = decision.notes.iter().any(|note| note.text.contains("; and "));
        assert!(counted || what.starts_with("one "), "{what}: {:?}", decision.notes);
    }
}

#[test]
fn a_request_beside_many_of_a_kind_is_as_short() {
    for (what, mut spec, edits_max) in specs() {
        spec["annotations"]["mpsgate.io/gpu-mem"] = json!("1Gi");
        let decision = decided(&spec, Unallocated::Refuse, &[]);
        assert_told_once(what, &decision);
        if let Verdict::Reserve(wanted) = decision.verdict {
            assert!(wanted.edits.len() <= 2 * edits_max + 8, "{what}: {}", wanted.edits.len());
        }
    }
}

#[test]
fn mounts_of_ours_are_told_once() {
    for kind in [MountKind::Ours, MountKind::Ancestor] {
        let mounts: Vec<MountFact> = (0..MANY)
            .map(|i| {
                let (source, destination) = (format!("/run/{i}"), format!("/x{i}"));
                MountFact { source, destination, kind }
            })
            .collect();
        for unallocated in [Unallocated::Warn, Unallocated::Refuse] {
            assert_told_once("mounts of ours", &decided(&json!({}), unallocated, &mounts));
        }
    }
}
