#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code fails by panicking")]
use std::path::Path;

use mpsgate_config::{Policy, Switch, Trust};
use mpsgate_oci::spec::View;
use mpsgate_policy::{Cards, Decision, Ipc, MountKind, Node};
use mpsgate_testing::{ODD, assert_printable, odd};
use serde_json::{Value, json};

use super::*;

fn explain(document: &Value) -> (Decision, Vec<String>) {
    let view = View::new(document);
    let mut assumed = Vec::new();
    let node = facts::node(None, &mut assumed);
    let decision = decide(&Input {
        view,
        node: &node,
        policy: &Policy::default(),
        requests_from_env: true,
        mounts: &facts::mounts(view, None),
        ipc: facts::ipc(view, &node, &mut assumed),
        shm: facts::shm(view, &node, None),
        users: Users::OfSpec,
        pids: facts::pids(view, &mut assumed),
        unruled: Unruled::Closed,
        caller: Caller::Unknown,
        action: Action::Create,
        runtime_is_nvidia: false,
    });
    (decision, assumed)
}

#[test]
fn a_container_that_asks_for_nothing_starts_as_it_is() {
    let (decision, assumed) = explain(&json!({"process": {"env": ["PATH=/bin"]}}));
    assert_eq!(
        report::render_text(&decision, &assumed),
        "decision: start it as it is\n\
         signals: none, nothing in it reaches a managed card without a grant\n\
         assumed:\n  every card is managed (--node /run/mpsgate/node.json tells)\n"
    );
}

#[test]
fn a_refusal_has_its_code_reason_hint_and_every_signal() {
    let document = json!({
        "process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]},
        "mounts": [{"destination": "/m", "type": "bind", "source": "/var/run/mpsgate/mps/0/pipe"}],
    });
    let (decision, assumed) = explain(&document);
    let text = report::render_text(&decision, &assumed);
    for part in
        ["decision: refuse [E_", "\nreason: ", "\nhint: ", "  E_VISIBLE_DEVICES ", "  E_MPS_MOUNT "]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let value: Value =
        serde_json::from_str(&report::render_json(&decision, &assumed).unwrap()).unwrap();
    assert_eq!(value["decision"], "refuse");
    assert_eq!(value["schema"], 1);
    assert_eq!(value["signals"].as_array().unwrap().len(), decision.signals.len());
    assert!(value["refusal"]["hint"].is_string());
}

#[test]
fn what_a_spec_says_is_printed_by_no_terminals_rules_in_text_and_in_json() {
    let odd = odd(1 << 20);
    let document = json!({
        "annotations": {"mpsgate.io/gpu": ODD, (format!("cdi.k8s.io/{ODD}")): odd},
        "process": {"env": [format!("NVIDIA_VISIBLE_DEVICES={odd}")]},
        "mounts": [{"destination": odd, "type": "bind", "source": format!("/run/mpsgate/{odd}")}],
    });
    let (decision, assumed) = explain(&document);
    assert!(!decision.signals.is_empty());
    assert_printable(&report::render_text(&decision, &assumed));
    assert_printable(&report::render_json(&decision, &assumed).unwrap());
}

#[test]
fn a_request_is_told_with_its_unit() {
    let document = json!({
        "annotations": {"mpsgate.io/gpu-mem": "7Gi", "mpsgate.io/gpu": "1", "mpsgate.io/gpu-compute": "30"},
        "process": {"user": {"uid": 1000}},
        "linux": {"namespaces": [{"type": "pid"}]},
    });
    let (decision, assumed) = explain(&document);
    let text = report::render_text(&decision, &assumed);
    assert!(text.contains("\nrequest: 7 GiB, GPU 1, 30% of the SMs, uid 1000\n"), "{text}");
    let value: Value =
        serde_json::from_str(&report::render_json(&decision, &assumed).unwrap()).unwrap();
    assert_eq!(value["decision"], "reserve");
    assert_eq!(value["uid"], 1000);
}

#[test]
fn mounts_are_told_apart_by_path() {
    let mount = |source: &str| json!({"destination": "/m", "type": "bind", "source": source});
    let kinds = |source: &str| {
        let document = json!({"mounts": [mount(source)]});
        facts::mounts(View::new(&document), Some(Path::new("/b/x"))).first().map(|fact| fact.kind)
    };
    for source in [
        "/run/mpsgate",
        "/run/mpsgate/",
        "/var/run/mpsgate/mps",
        "/run/x/../mpsgate",
        "/var/lib/mpsgate",
        "/etc/mpsgate/config.toml",
    ] {
        assert_eq!(kinds(source), Some(MountKind::Ours), "{source}");
    }
    for source in ["/", "/run", "/var/run", "/var/lib"] {
        assert_eq!(kinds(source), Some(MountKind::Ancestor), "{source}");
    }
    for source in ["../../run/mpsgate/mps", "../x/../../var/run/mpsgate"] {
        assert_eq!(kinds(source), Some(MountKind::Ours), "{source}");
    }
    for source in ["/run/mpsgate2", "/home", "run/mpsgate"] {
        assert_eq!(kinds(source), None, "{source}");
    }
    let overlay = |option: &str| {
        let mount = json!({"destination": "/m", "type": "overlay", "source": "overlay", "options": [option]});
        let document = json!({ "mounts": [mount] });
        facts::mounts(View::new(&document), Some(Path::new("/b/x"))).first().map(|fact| fact.kind)
    };
    for (option, kind) in [
        ("lowerdir=/run:/run/mpsgate", Some(MountKind::Ours)),
        ("lowerdir=/a,upperdir=../../var/lib/mpsgate", Some(MountKind::Ours)),
        ("lowerdir=/run:/a", Some(MountKind::Ancestor)),
        ("lowerdir=/a:/b", None),
    ] {
        assert_eq!(overlay(option), kind, "{option}");
    }
}

#[test]
fn who_asks_for_the_nodes_processes_is_told_what_the_runtime_would_do() {
    let text = |mount: Value, more: Value| {
        let document = json!({
            "annotations": {"mpsgate.io/gpu-mem": "7Gi"},
            "mounts": [mount],
            "linux": {
                "namespaces": more,
                "readonlyPaths": ["/proc/bus", "/proc/sys"],
            },
        });
        let bytes = document.to_string();
        let (decision, assumed) =
            explained(Bytes::Whole(bytes.as_bytes()), None, None, &Config::default()).unwrap();
        report::render_text(&decision, &assumed)
    };
    let proc_at =
        |place: &str| json!({"destination": place, "source": "/proc", "options": ["rbind"]});
    let own = text(proc_at("/proc"), json!([]));
    for part in [
        "decision: ask mpsgated",
        "  give it a PID namespace of its own\n",
        "  mount a fresh procfs at /proc\n",
        "  E_HOST_PID it asks for the host's PID namespace and gets one of its own",
        "docker stop",
    ] {
        assert!(own.contains(part), "{part}: {own}");
    }
    let refused = text(proc_at("/host/proc"), json!([{"type": "pid"}]));
    assert!(refused.starts_with("decision: refuse [E_HOST_PID]\n"), "{refused}");
    let plain = text(json!({"destination": "/proc", "type": "proc"}), json!([{"type": "pid"}]));
    assert!(!plain.contains("E_HOST_PID") && !plain.contains("changes"), "{plain}");
}

#[test]
fn an_ipc_namespace_that_cannot_be_looked_at_is_an_assumption() {
    let document =
        json!({"linux": {"namespaces": [{"type": "ipc", "path": "/proc/1234567/ns/ipc"}]}});
    let mut assumed = Vec::new();
    assert_eq!(facts::ipc(View::new(&document), &Node::unknown(), &mut assumed), Ipc::Unknown);
    assert_eq!(assumed, ["the IPC namespace /proc/1234567/ns/ipc is the MPS server's"]);
    let new = json!({"linux": {"namespaces": [{"type": "ipc"}]}});
    assert_eq!(facts::ipc(View::new(&new), &Node::unknown(), &mut assumed), Ipc::New);
    let known = Node { ipc_inode: Some(7), cards: Cards::AssumeManaged, ..Node::unknown() };
    assert_eq!(facts::ipc(View::new(&json!({})), &known, &mut assumed), Ipc::Inode(7));
    assert_eq!(assumed.len(), 1);
}

#[test]
fn root_and_bundle_tell_whose_words_a_request_is() {
    let file = "config.json";
    let pod = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/x/config.json";
    let crio = "/run/containers/storage/overlay-containers/x/userdata/config.json";
    for (root, file, kubelet, words) in [
        (Some("/run/containerd/runc/k8s.io"), file, false, "device plugin"),
        (None, pod, false, "device plugin"),
        (None, crio, true, "device plugin"),
        (None, crio, false, "it is trusted (--runtime-root tells)"),
        (Some("/run/runc"), file, false, "it is trusted"),
        (None, file, false, "it is trusted (--runtime-root tells)"),
        (None, file, true, "(trust.local)"),
    ] {
        let trust = Trust::default();
        let text = facts::trust(root.map(Path::new), Path::new(file), &trust, kubelet);
        assert!(text.contains(words), "{root:?} {file}: {text}");
    }
    let on = Trust { local: Switch::On, ..Trust::default() };
    assert!(facts::trust(None, Path::new(pod), &on, false).contains("it is trusted"));
    assert!(facts::trust(None, Path::new(pod), &on, true).contains("device plugin"));
}
