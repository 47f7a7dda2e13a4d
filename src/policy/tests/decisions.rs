//! The policy's table, each row with an allowed neighbour, as golden text: a review of a change
//! shows the behaviour that changes. `MPSGATE_BLESS=1 cargo test -p mpsgate-policy` rewrites it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "the golden text is a file")]

use std::fmt::Write;

use mpsgate_allocation::GpuUuid;
use mpsgate_config::{Ipc as IpcPolicy, Policy, Privileged, Unallocated, VisibleDevices};
use mpsgate_oci::spec::{View, apply, glance};
use mpsgate_policy::{
    Action, Cards, Decision, Input, Ipc, Majors, MountFact, MountKind, Node, NodeCard, Verdict,
    decide, may_matter,
};
use serde_json::{Value, json};

const HOST_IPC: u64 = 4_026_531_839;

/// Two cards: 0 (minor 0) is managed, 1 (minor 1) is not.
fn node() -> Node {
    let card = |index: u32, managed| NodeCard {
        uuid: GpuUuid::parse(&format!("GPU-{index:08x}-1111-2222-3333-444444444444")).unwrap(),
        index,
        minor: index,
        managed,
    };
    let mut majors = Majors::default();
    majors.insert("nvidia-caps", 236);
    majors.insert("nvidia-caps-imex-channels", 235);
    majors.insert("nvidia-uvm", 507);
    Node {
        cards: Cards::Known(vec![card(0, true), card(1, false)]),
        majors,
        ipc_inode: Some(HOST_IPC),
        swarm_resources: vec!["DOCKER_RESOURCE_TESLA".to_owned()],
    }
}

struct Case {
    name: &'static str,
    spec: Value,
    policy: Policy,
    node: Node,
    mounts: Vec<MountFact>,
    ipc: Ipc,
    action: Action,
    from_env: bool,
    nvidia: bool,
}

fn case(name: &'static str, spec: Value) -> Case {
    Case {
        name,
        spec,
        policy: Policy::default(),
        node: node(),
        mounts: Vec::new(),
        ipc: Ipc::Inode(HOST_IPC),
        action: Action::Create,
        from_env: true,
        nvidia: false,
    }
}

impl Case {
    fn policy(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(&mut self.policy);
        self
    }
    fn ipc(mut self, ipc: Ipc) -> Self {
        self.ipc = ipc;
        self
    }
    fn mount(mut self, source: &str, destination: &str, kind: MountKind) -> Self {
        let (source, destination) = (source.to_owned(), destination.to_owned());
        self.mounts.push(MountFact { source, destination, kind });
        self
    }
    fn decide(&self) -> Decision {
        decide(&Input {
            view: View::new(&self.spec),
            node: &self.node,
            policy: &self.policy,
            requests_from_env: self.from_env,
            mounts: &self.mounts,
            ipc: self.ipc.clone(),
            action: self.action,
            runtime_is_nvidia: self.nvidia,
        })
    }
}

fn env(entries: &[&str]) -> Value {
    json!({ "process": { "env": entries } })
}

/// A spec with a request of 7 GiB, and whatever else.
fn asking(mut spec: Value) -> Value {
    spec["annotations"]["aliyun.com/gpu-mem"] = json!("7");
    spec
}

fn annotation(name: &str, value: &str) -> Value {
    json!({ "annotations": { name: value } })
}

fn device(path: &str, major: u32, minor: u32) -> Value {
    json!({ "linux": {
        "devices": [{ "path": path, "type": "c", "major": major, "minor": minor }],
        "resources": { "devices": [
            { "allow": false, "access": "rwm" },
            { "allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm" }
        ] }
    } })
}

fn rules(rules: &Value) -> Value {
    json!({ "linux": { "resources": { "devices": rules } } })
}

fn privileged() -> Value {
    json!({
        "process": { "capabilities": { "bounding": ["CAP_CHOWN", "CAP_SYS_ADMIN"] } },
        "linux": {
            "devices": [
                { "path": "/dev/null", "type": "c", "major": 1, "minor": 3 },
                { "path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0 },
                { "path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1 },
                { "path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255 }
            ],
            "resources": { "devices": [{ "allow": true, "access": "rwm" }] }
        }
    })
}

fn hook(entries: &[&str]) -> Value {
    json!({
        "process": { "env": entries },
        "hooks": { "prestart": [{ "path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"] }] }
    })
}

fn volume(destination: &str) -> Value {
    json!({ "mounts": [{ "destination": destination, "source": "/dev/null", "options": ["rbind"] }] })
}

#[expect(clippy::too_many_lines, reason = "the table is one list")]
fn cases() -> Vec<Case> {
    let new = || Ipc::New;
    vec![
        case("an ordinary container passes", env(&["PATH=/bin"])),
        case("7 GiB with the host's IPC namespace", asking(json!({}))),
        case("no host IPC", asking(json!({}))).ipc(new()),
        case("another IPC namespace by path", asking(json!({}))).ipc(Ipc::Inode(1)),
        case("an IPC namespace that cannot be looked at", asking(json!({})))
            .ipc(Ipc::Unreadable("/proc/9/ns/ipc: No such file or directory".to_owned())),
        case("no host IPC where the driver needs none", asking(json!({})))
            .ipc(new())
            .policy(|p| p.ipc = IpcPolicy::Any),
        case("no host IPC without a request", json!({})).ipc(new()),
        case(
            "a pause container of an asking pod",
            asking(annotation("io.kubernetes.cri.container-type", "sandbox")),
        )
        .ipc(new()),
        case(
            "a forged pause container with a GPU",
            json!({
                "annotations": { "io.kubernetes.cri.container-type": "sandbox" }, "process": { "env": ["NVIDIA_VISIBLE_DEVICES=all"] }
            }),
        ),
        case("a request from env", env(&["MPSGATE_GPU_MEM=7Gi"])),
        Case {
            from_env: false,
            ..case("a request from env where that is off", env(&["MPSGATE_GPU_MEM=7Gi"]))
        },
        case("a request that cannot be read", annotation("mpsgate.io/gpu-mem", "7GB")),
        case("a request for two cards", asking(annotation("aliyun.com/gpu-count", "2"))),
        Case { action: Action::Restore, ..case("a restore with a request", asking(json!({}))) },
        Case { action: Action::Restore, ..case("a restore without", json!({})) },
        // NVIDIA_VISIBLE_DEVICES
        case("all GPUs", env(&["NVIDIA_VISIBLE_DEVICES=all"])),
        case("all GPUs with a request", asking(env(&["NVIDIA_VISIBLE_DEVICES=all"]))),
        case("all GPUs where that is stripped", env(&["NVIDIA_VISIBLE_DEVICES=all"]))
            .policy(|p| p.visible_devices = VisibleDevices::Strip),
        case("the managed card by index", env(&["NVIDIA_VISIBLE_DEVICES=1,0"])),
        case("the unmanaged card by index", env(&["NVIDIA_VISIBLE_DEVICES=1"])),
        case(
            "the managed card by UUID",
            env(&["NVIDIA_VISIBLE_DEVICES=GPU-00000000-1111-2222-3333-444444444444"]),
        ),
        case(
            "the unmanaged card by UUID",
            env(&["NVIDIA_VISIBLE_DEVICES=GPU-00000001-1111-2222-3333-444444444444"]),
        ),
        case("a MIG instance of the managed card", env(&["NVIDIA_VISIBLE_DEVICES=0:1"])),
        case("a MIG instance of the unmanaged card", env(&["NVIDIA_VISIBLE_DEVICES=1:1"])),
        case("a CDI name in the variable", env(&["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all"])),
        case("a CDI name of the unmanaged card", env(&["NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=1"])),
        case("void anywhere wins", env(&["NVIDIA_VISIBLE_DEVICES=all,void"])),
        case(
            "the last duplicate wins",
            env(&["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"]),
        ),
        case("none", env(&["NVIDIA_VISIBLE_DEVICES=none"])),
        case("empty", env(&["NVIDIA_VISIBLE_DEVICES="])),
        Case {
            node: Node { cards: Cards::Known(Vec::new()), ..node() },
            ..case("all GPUs where no card is managed", env(&["NVIDIA_VISIBLE_DEVICES=all"]))
        },
        Case {
            node: Node::unknown(),
            ..case(
                "all GPUs on a node of which nothing is known",
                env(&["NVIDIA_VISIBLE_DEVICES=all"]),
            )
        },
        Case {
            nvidia: true,
            ..case("a legacy image above the NVIDIA runtime", env(&["CUDA_VERSION=9.0"]))
        },
        Case {
            nvidia: true,
            ..case(
                "a newer image above the NVIDIA runtime",
                env(&["CUDA_VERSION=12.4", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"]),
            )
        },
        case("a legacy image above runc", env(&["CUDA_VERSION=9.0"])),
        // docker --gpus
        case("docker --gpus all", hook(&["NVIDIA_VISIBLE_DEVICES=all"])),
        case("docker --gpus with a request", asking(hook(&["NVIDIA_VISIBLE_DEVICES=all"]))),
        case("NVIDIA's hook in a container without GPUs", hook(&["PATH=/bin"])),
        case("NVIDIA's hook in a legacy image", hook(&["CUDA_VERSION=9.0"])),
        // devices
        case("docker --device of the managed card", device("/dev/nvidia0", 195, 0)),
        case("the same under another name", device("/dev/harmless", 195, 0)),
        case(
            "docker --device of the managed card with a request",
            asking(device("/dev/nvidia0", 195, 0)),
        ),
        case("docker --device of the unmanaged card", device("/dev/nvidia1", 195, 1)),
        case(
            "docker --device of the unmanaged card with a request",
            asking(device("/dev/nvidia1", 195, 1)),
        ),
        case("docker --device of nvidiactl", device("/dev/nvidiactl", 195, 255)),
        case("docker --device of a disk", device("/dev/fuse", 10, 229)),
        case("docker --device stripped", device("/dev/nvidia0", 195, 0))
            .policy(|p| p.unallocated = Unallocated::Strip),
        case("docker --device warned about", device("/dev/nvidia0", 195, 0))
            .policy(|p| p.unallocated = Unallocated::Warn),
        case("a MIG capability", device("/dev/nvidia-caps/nvidia-cap1", 236, 1)),
        case("an IMEX channel", device("/dev/nvidia-caps-imex-channels/channel0", 235, 0)),
        case("MIG configuration by variable", env(&["NVIDIA_MIG_CONFIG_DEVICES=all"])),
        case("IMEX channels by variable", env(&["NVIDIA_IMEX_CHANNELS=0"])),
        case(
            "a rule for NVIDIA's major",
            rules(
                &json!([{ "allow": false }, { "allow": true, "type": "c", "major": 195, "access": "rwm" }]),
            ),
        ),
        case(
            "a rule for NVIDIA's major with a request",
            asking(rules(
                &json!([{ "allow": false }, { "allow": true, "type": "c", "major": 195, "access": "rwm" }]),
            )),
        ),
        case(
            "a rule for the unmanaged card",
            rules(
                &json!([{ "allow": true, "type": "c", "major": 195, "minor": 1, "access": "rwm" }]),
            ),
        ),
        case(
            "a rule for every device without privilege",
            rules(&json!([{ "allow": true, "access": "rwm" }])),
        ),
        case(
            "a rule for every device stripped",
            rules(&json!([{ "allow": true, "access": "rwm" }])),
        )
        .policy(|p| p.unallocated = Unallocated::Strip),
        case(
            "the rule of every container: mknod only",
            rules(&json!([{ "allow": false }, { "allow": true, "type": "c", "access": "m" }])),
        ),
        case("a volume-mount device list", volume("/var/run/nvidia-container-devices/all")),
        case("a volume-mount of the unmanaged card", volume("/var/run/nvidia-container-devices/1")),
        case(
            "a volume-mount of an IMEX channel",
            volume("/var/run/nvidia-container-devices/imex/0"),
        ),
        case("a CDI annotation", annotation("cdi.k8s.io/x", "nvidia.com/gpu=0")),
        case(
            "a CDI annotation of the unmanaged card",
            annotation("cdi.k8s.io/x", "nvidia.com/gpu=1"),
        ),
        case(
            "a CDI annotation of another vendor",
            annotation("cdi.k8s.io/x", "vendor.com/net=eth0"),
        ),
        case(
            "NVIDIA's NRI annotation",
            annotation("nvidia.cdi.k8s.io/container.a", "nvidia.com/gpu=all"),
        ),
        case("a swarm resource", env(&["DOCKER_RESOURCE_NVIDIA-GPU=0"])),
        case("a swarm resource that the toolkit knows", env(&["DOCKER_RESOURCE_TESLA=0"])),
        case("a swarm resource that is no GPU", env(&["DOCKER_RESOURCE_SSD=0"])),
        case("a swarm resource with a request", asking(env(&["DOCKER_RESOURCE_GPU=0"]))),
        // privileged
        case("privileged with a request", asking(privileged())),
        case("privileged without", privileged()),
        case("privileged, closed", privileged()).policy(|p| p.privileged = Privileged::Close),
        case(
            "all capabilities with a request",
            asking(json!({ "process": { "capabilities": { "bounding": ["CAP_SYS_ADMIN"] } } })),
        ),
        // mounts
        case("a mount of the MPS directory", json!({})).mount(
            "/run/mpsgate/mps/0/pipe",
            "/x",
            MountKind::Ours,
        ),
        case("a mount of the MPS directory with a request", asking(json!({}))).mount(
            "/mnt/alias",
            "/x",
            MountKind::Ours,
        ),
        case("the mount of a bundle's last grant", asking(json!({}))).mount(
            "/run/mpsgate/mps/0/client",
            "/run/mpsgate/mps",
            MountKind::Ours,
        ),
        case("a mount of the root", json!({})).mount("/", "/host", MountKind::Ancestor),
        case("a mount of the root with a request", asking(json!({}))).mount(
            "/",
            "/host",
            MountKind::Ancestor,
        ),
        // env
        case(
            "MPS variables without a request",
            env(&["CUDA_MPS_PIPE_DIRECTORY=/x", "CUDA_VISIBLE_DEVICES=0"]),
        ),
        case(
            "MPS variables with a request",
            asking(env(&[
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G,1=4G",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20",
            ])),
        ),
        // uid
        case(
            "a uid that is not mapped",
            asking(
                json!({ "process": { "user": { "uid": 5 } }, "linux": { "uidMappings": [{ "containerID": 0, "hostID": 1000, "size": 1 }] } }),
            ),
        ),
        case(
            "a uid that is mapped",
            asking(
                json!({ "process": { "user": { "uid": 0 } }, "linux": { "uidMappings": [{ "containerID": 0, "hostID": 1000, "size": 1 }] } }),
            ),
        ),
        case("the uid that the program drops to", asking(annotation("mpsgate.io/gpu-uid", "1000"))),
        // annotations that open files
        case(
            "a device by systemd property",
            annotation("org.systemd.property.DeviceAllow", "/dev/nvidia0 rw"),
        ),
        case(
            "another systemd property",
            annotation("org.systemd.property.TimeoutStopUSec", "uint64 1"),
        ),
        case("a host file by crun", annotation("run.oci.hooks.stderr", "/etc/passwd")),
        case(
            "a host file by crun with a request",
            asking(annotation("run.oci.hooks.stderr", "/etc/passwd")),
        ),
        case("another annotation of crun", annotation("run.oci.keep_original_groups", "1")),
        case("the bundle's name", annotation("bundle", "/x")),
    ]
}

fn render(case: &Case) -> String {
    let decision = case.decide();
    let mut text = format!("# {}\n", case.name);
    match &decision.verdict {
        Verdict::Pass => text.push_str("pass\n"),
        Verdict::Refuse(refusal) => {
            writeln!(
                text,
                "refuse {}\n  {}\n  hint: {}",
                refusal.code, refusal.sentence, refusal.hint
            )
            .unwrap();
        }
        Verdict::Edit(edits) => {
            text.push_str("edit\n");
            render_edits(&mut text, edits);
        }
        Verdict::Reserve(wanted) => {
            writeln!(text, "reserve {} for uid {}", wanted.request.memory, wanted.uid).unwrap();
            if let Some(own) = wanted.own_limit {
                writeln!(text, "  own limit {own}").unwrap();
            }
            if let Some(own) = wanted.own_share {
                writeln!(text, "  own share {} %", own.0).unwrap();
            }
            render_edits(&mut text, &wanted.edits);
        }
    }
    for note in &decision.notes {
        writeln!(text, "  note: {note}").unwrap();
    }
    text
}

fn render_edits(text: &mut String, edits: &[mpsgate_oci::spec::Edit]) {
    for edit in edits {
        writeln!(text, "  {edit:?}").unwrap();
    }
}

#[test]
fn the_table_decides_as_recorded() {
    let text = cases().iter().map(render).collect::<Vec<_>>().join("\n");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/decisions.txt");
    if std::env::var_os("MPSGATE_BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let recorded = std::fs::read_to_string(path).unwrap_or_default();
    for (now, then) in text.split("\n\n").zip(recorded.split("\n\n")) {
        assert_eq!(now, then, "\nMPSGATE_BLESS=1 records the new text");
    }
    assert_eq!(text, recorded);
}

/// The cheap question, asked as the shim does.
fn matters(spec: &Value) -> bool {
    let mut matters = false;
    glance(spec.to_string().as_bytes(), |seen| matters |= may_matter(&seen)).unwrap();
    matters
}

#[test]
fn what_is_not_passed_is_seen_by_the_cheap_question() {
    for case in cases() {
        let mounts = !case.mounts.is_empty();
        if case.decide().verdict != Verdict::Pass {
            assert!(mounts || matters(&case.spec), "{}", case.name);
        }
    }
}

#[test]
fn an_ordinary_container_of_docker_does_not_matter() {
    let spec = json!({
        "process": { "env": ["PATH=/bin", "HOME=/root"] },
        "annotations": { "org.opencontainers.image.os": "linux" },
        "linux": { "devices": [{ "path": "/dev/fuse", "type": "c", "major": 10, "minor": 229 }], "resources": { "devices": [
            { "allow": false, "access": "rwm" }, { "allow": true, "type": "c", "access": "m" },
            { "allow": true, "type": "c", "major": 136, "access": "rwm" }
        ] } },
        "mounts": [{ "destination": "/proc", "type": "proc" }]
    });
    assert!(!matters(&spec));
}

#[test]
fn deciding_again_on_an_edited_spec_finds_nothing_left() {
    for case in cases() {
        if let Verdict::Edit(edits) = case.decide().verdict {
            let mut spec = case.spec.clone();
            apply(&mut spec, &edits).unwrap();
            let again = Case { spec, ..case };
            match again.decide().verdict {
                Verdict::Pass => {}
                // Closing an allow-all rule is found closed, and closed again to the same effect.
                Verdict::Edit(edits) => {
                    let mut twice = again.spec.clone();
                    apply(&mut twice, &edits).unwrap();
                    assert_eq!(twice, again.spec, "{}", again.name);
                }
                other => panic!("{}: {other:?}", again.name),
            }
        }
    }
}
