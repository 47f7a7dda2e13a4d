//! The rows: a spec, and what is known beside it.

use mpsgate_config::{
    Exempt, InjectMode, Ipc as IpcPolicy, Policy, Privileged, Unallocated, VisibleDevices,
};
use mpsgate_model::{DeviceNode, GpuUuid, NodeCard};
use mpsgate_oci::spec::{IdRange, View, parse};
use mpsgate_policy::{
    Action, Caller, Cards, Decision, Input, Ipc, Majors, MountFact, MountKind, Node, Pids, Reach,
    SharedMemory, Shm, Unruled, Unsettled, Users, Verdict, decide, edits_of_any_grant, settle,
};
use serde_json::{Value, json};

pub(crate) const HOST_IPC: u64 = 4_026_531_839;

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
        shm: Some((1, 2)),
        swarm_resources: vec!["DOCKER_RESOURCE_TESLA".to_owned()],
        other_nodes: vec![
            DeviceNode { path: "/dev/dri/card0".to_owned(), major: 226, minor: 0 },
            DeviceNode { path: "/dev/dri/renderD128".to_owned(), major: 226, minor: 128 },
            DeviceNode { path: "/dev/vfio/12".to_owned(), major: 243, minor: 0 },
        ],
        ..Node::unknown()
    }
}

/// One row.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) spec: Value,
    pub(crate) policy: Policy,
    pub(crate) node: Node,
    pub(crate) mounts: Vec<MountFact>,
    pub(crate) ipc: Ipc,
    pub(crate) shm: Shm,
    pub(crate) users: Users,
    pub(crate) pids: Pids,
    pub(crate) unruled: Unruled,
    pub(crate) caller: Caller,
    pub(crate) action: Action,
    pub(crate) from_env: bool,
    pub(crate) nvidia: bool,
}

pub(crate) fn case(name: &'static str, spec: Value) -> Case {
    Case {
        name,
        spec,
        policy: Policy::default(),
        node: node(),
        mounts: Vec::new(),
        ipc: Ipc::Inode(HOST_IPC),
        shm: Shm::Servers,
        users: Users::OfSpec,
        pids: Pids::Own,
        unruled: Unruled::Closed,
        caller: Caller::Local,
        action: Action::Create,
        from_env: true,
        nvidia: false,
    }
}

impl Case {
    pub(crate) fn policy(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(&mut self.policy);
        self
    }
    /// What it has at `/dev/shm` besides, on a node whose servers were seen to do so.
    pub(crate) fn shm(mut self, shm: Shm, seen: SharedMemory) -> Self {
        (self.shm, self.node.shared_memory) = (shm, seen);
        self
    }
    pub(crate) fn ipc(mut self, ipc: Ipc) -> Self {
        self.ipc = ipc;
        self
    }
    pub(crate) fn by(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }
    fn with_plugin(mut self) -> Self {
        self.node.device_plugin = true;
        self
    }
    fn joins(mut self, users: Users) -> Self {
        self.users = users;
        self
    }
    pub(crate) fn mount(mut self, source: &str, destination: &str, kind: MountKind) -> Self {
        let (source, destination) = (source.to_owned(), destination.to_owned());
        self.mounts.push(MountFact { source, destination, kind });
        self
    }
    pub(crate) fn decide(&self) -> Decision {
        let mut decision = self.decide_alone();
        let edits = match &decision.verdict {
            Verdict::Edit(edits) => edits.clone(),
            Verdict::Reserve(wanted) => {
                edits_of_any_grant(View::new(&self.spec), wanted, InjectMode::Auto, false)
            }
            Verdict::Pass | Verdict::Refuse(_) => return decision,
        };
        let mut document = parse(self.spec.to_string().as_bytes()).unwrap();
        match settle(&mut document, &edits, decision.held, &self.node, self.unruled) {
            Ok(()) => {}
            Err(Unsettled::Open(refusal)) => decision.verdict = Verdict::Refuse(refusal),
            Err(Unsettled::Edit(error)) => panic!("{}: {error}", self.name),
        }
        decision
    }
    fn decide_alone(&self) -> Decision {
        decide(&Input {
            view: View::new(&self.spec),
            node: &self.node,
            policy: &self.policy,
            requests_from_env: self.from_env,
            mounts: &self.mounts,
            ipc: self.ipc.clone(),
            shm: self.shm.clone(),
            users: self.users.clone(),
            pids: self.pids.clone(),
            unruled: self.unruled,
            caller: self.caller,
            action: self.action,
            runtime_is_nvidia: self.nvidia,
        })
    }
}

fn exempting(policy: &mut Policy) {
    policy.exempt = vec![Exempt {
        namespace: "gpu-operator".to_owned(),
        image: "nvcr.io/nvidia/k8s/dcgm-exporter".to_owned(),
    }];
}

/// A container of containerd's CRI that sees every card and mounts the MPS directory, beside an
/// entry of `policy.exempt`.
fn exporter(name: &'static str, namespace: &str, image: &str) -> Case {
    let spec = json!({
        "process": { "env": ["NVIDIA_VISIBLE_DEVICES=all"] },
        "annotations": {
            "io.kubernetes.cri.sandbox-uid": "u", "io.kubernetes.cri.sandbox-namespace": namespace,
            "io.kubernetes.cri.sandbox-name": "exporter", "io.kubernetes.cri.container-name": "c",
            "io.kubernetes.cri.image-name": image
        }
    });
    case(name, spec)
        .policy(exempting)
        .mount("/run/mpsgate/mps/0/pipe", "/x", MountKind::Ours)
        .by(Caller::Containerd)
}

pub(crate) fn env(entries: &[&str]) -> Value {
    json!({ "process": { "env": entries } })
}

/// A spec with a request of 7 GiB, and whatever else.
/// A container with the tokens of these claims' requests.
fn claims(names: &[&str]) -> Value {
    let of = |name: &&str| format!("MPSGATE_GRANT_{name}=token-of-{name}");
    json!({"process": {"env": names.iter().map(of).collect::<Vec<_>>()}})
}

pub(crate) fn asking(mut spec: Value) -> Value {
    spec["annotations"]["aliyun.com/gpu-mem"] = json!("7");
    spec
}

/// A procfs of its own, in which these paths are read-only.
fn procfs(read_only: &[&str]) -> Value {
    json!({
        "mounts": [{ "destination": "/proc", "type": "proc", "source": "proc" }],
        "linux": { "readonlyPaths": read_only }
    })
}

pub(crate) fn annotation(name: &str, value: &str) -> Value {
    json!({ "annotations": { name: value } })
}

pub(crate) fn device(path: &str, major: u32, minor: u32) -> Value {
    json!({ "linux": {
        "devices": [{ "path": path, "type": "c", "major": major, "minor": minor }],
        "resources": { "devices": [
            { "allow": false, "access": "rwm" },
            { "allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm" }
        ] }
    } })
}

pub(crate) fn rules(rules: &Value) -> Value {
    json!({ "linux": { "resources": { "devices": rules } } })
}

/// A swarm resource's variable, many times.
fn swarm_many(count: usize) -> Value {
    let entries: Vec<String> = (0..count).map(|i| format!("DOCKER_RESOURCE_GPU=0,{i}")).collect();
    json!({ "process": { "env": entries } })
}

pub(crate) fn privileged() -> Value {
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

/// In a user namespace, a new one or the one at a path, that maps root to the host's uid 1000.
fn remapped(uid: u32, path: Option<&str>) -> Value {
    json!({
        "process": { "user": { "uid": uid } },
        "linux": {
            "namespaces": [{ "type": "user", "path": path }],
            "uidMappings": [{ "containerID": 0, "hostID": 1000, "size": 1 }]
        }
    })
}

pub(crate) fn bounding(capabilities: &[&str]) -> Value {
    json!({ "process": { "capabilities": { "bounding": capabilities } } })
}

fn in_user_namespace(root: u32, capabilities: &[&str]) -> Value {
    let mut spec = bounding(capabilities);
    spec["linux"] = json!({
        "namespaces": [{ "type": "user" }],
        "uidMappings": [{ "containerID": 0, "hostID": root, "size": 65536 }]
    });
    spec
}

pub(crate) fn of_type(kind: &str, source: &str, options: &[&str]) -> Value {
    let mount = json!({ "destination": "/x", "type": kind, "source": source, "options": options });
    json!({ "mounts": [mount] })
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
pub(crate) fn cases() -> Vec<Case> {
    let new = || Ipc::New;
    let empty_dir = || {
        let source = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/dshm";
        Shm::Other(format!("a mount of {source}"))
    };
    vec![
        case("an ordinary container passes", env(&["PATH=/bin"])),
        case("7 GiB with the host's IPC namespace", asking(json!({}))),
        case("no host IPC", asking(json!({}))).ipc(new()),
        case("no host IPC in a user namespace", asking(remapped(0, None))).ipc(new()),
        case("another IPC namespace by path", asking(json!({}))).ipc(Ipc::Inode(1)),
        case("an IPC namespace that cannot be looked at", asking(json!({})))
            .ipc(Ipc::Unreadable("/proc/9/ns/ipc: No such file or directory".to_owned())),
        case("no host IPC where the driver needs none", asking(json!({})))
            .ipc(new())
            .policy(|p| p.ipc = IpcPolicy::Any),
        case("no host IPC without a request", json!({})).ipc(new()),
        case("an emptyDir at /dev/shm", asking(json!({}))).shm(empty_dir(), SharedMemory::Unknown),
        case("an emptyDir at /dev/shm on a node whose servers' region has a name", asking(json!({})))
            .shm(empty_dir(), SharedMemory::Named),
        case("an emptyDir at /dev/shm on a node that was shown that none attaches so", asking(json!({})))
            .shm(empty_dir(), SharedMemory::Required),
        case(
            "a pause container of an asking pod",
            asking(annotation("io.kubernetes.cri.container-type", "sandbox")),
        )
        .ipc(new())
        .by(Caller::Containerd),
        case(
            "a pause container of an asking pod under CRI-O",
            asking(annotation("io.kubernetes.cri-o.ContainerType", "sandbox")),
        )
        .ipc(new())
        .by(Caller::Crio),
        case(
            "containerd's annotation in a pod of CRI-O",
            asking(annotation("io.kubernetes.cri.container-type", "sandbox")),
        )
        .by(Caller::Crio),
        case(
            "containerd's annotation under Docker",
            asking(annotation("io.kubernetes.cri.container-type", "sandbox")),
        ),
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
        case(
            "what another container was granted, and no request",
            env(&["MPSGATE_GPU_MEM_MIB=7168", "MPSGATE_GPU_UUID=GPU-x"]),
        ),
        case(
            "what another container was granted, with a request",
            asking(env(&["MPSGATE_GPU_MEM_MIB=7168", "MPSGATE_GPU_UUID=GPU-x"])),
        ),
        case("a mistyped request from env", env(&["MPSGATE_GPU_MEM_MB=7168"])),
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
        Case {
            nvidia: true,
            ..case(
                "a legacy image with an empty requirement above the NVIDIA runtime",
                env(&["CUDA_VERSION=12.2", "NVIDIA_REQUIRE_CUDA="]),
            )
        },
        Case {
            nvidia: true,
            ..case(
                "an image with a requirement above the NVIDIA runtime",
                env(&["CUDA_VERSION=12.2", "NVIDIA_REQUIRE_CUDA=cuda>=9.0"]),
            )
        },
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
            "a volume-mount device list under a path that is not clean",
            volume("/var/run//nvidia-container-devices/./all"),
        ),
        case(
            "a path that is not clean and leads out of the list",
            volume("/var/run//nvidia-container-devices/../all"),
        ),
        case(
            "a volume-mount device list stripped",
            volume("/var/run//nvidia-container-devices/./all"),
        )
        .policy(|p| p.unallocated = Unallocated::Strip),
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
            "a CDI annotation of several vendors with a request",
            asking(annotation(
                "cdi.k8s.io/x",
                "vendor.com/net=eth0, nvidia.com/gpu=0,vendor.com/net=eth1",
            )),
        ),
        case("a CDI annotation of the default kind", annotation("cdi.k8s.io/x", "all")),
        case(
            "MIG configuration by variable, with void",
            env(&["NVIDIA_MIG_CONFIG_DEVICES=all,void"]),
        ),
        case("MIG configuration by variable, void alone", env(&["NVIDIA_MIG_CONFIG_DEVICES=void"])),
        case(
            "what moves a terminal in a variable",
            env(&["NVIDIA_VISIBLE_DEVICES=\u{1b}]0;x\u{7}\u{1b}[2Jall\nmpsgate: container ok"]),
        ),
        case("what moves a terminal in a path", device("/dev/\u{202e}x\u{9b}2J", 195, 0)),
        case("a request that moves a terminal", annotation("mpsgate.io/gpu-mem", "\u{1b}[2J\n7Gi")),
        case(
            "what moves a terminal in the path of the unmanaged card",
            device("/dev/\u{202e}x\u{9b}2J", 195, 1),
        ),
        case("the same variable many times", swarm_many(300)),
        case("many variables stripped", swarm_many(300))
            .policy(|p| p.unallocated = Unallocated::Strip),
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
        case(
            "all capabilities with a request in a user namespace",
            asking(in_user_namespace(1000, &["CAP_SYS_ADMIN"])),
        ),
        case(
            "all capabilities with a request in a user namespace whose root is the host's",
            asking(in_user_namespace(0, &["CAP_SYS_ADMIN"])),
        ),
        case("all capabilities with a request in a user namespace with the host's root", {
            let mut spec = in_user_namespace(1000, &["CAP_SYS_ADMIN"]);
            spec["linux"]["uidMappings"] = json!([
                { "containerID": 0, "hostID": 1000, "size": 1000 },
                { "containerID": 1000, "hostID": 0, "size": 1 }
            ]);
            asking(spec)
        }),
        case(
            "an inheritable capability with a request",
            asking(
                json!({ "process": { "capabilities": { "bounding": [], "inheritable": ["CAP_SYS_MODULE"] } } }),
            ),
        ),
        case(
            "programs for the kernel with a request",
            asking(bounding(&["CAP_CHOWN", "CAP_BPF"])),
        ),
        case("a capability by its number with a request", asking(bounding(&["0x15"]))),
        case("a capability of a newer kernel with a request", asking(bounding(&["CAP_NEW\n"]))),
        case("a capability of a newer kernel", bounding(&["CAP_NEW"])),
        case(
            "a capability of a newer kernel with a request in a user namespace",
            asking(in_user_namespace(1000, &["CAP_NEW"])),
        ),
        case("a higher priority with a request", asking(bounding(&["CAP_SYS_NICE"]))),
        case("tracing with a request", asking(bounding(&["CAP_SYS_PTRACE"]))),
        Case {
            pids: Pids::Host,
            ..case(
                "tracing the host's processes with a request",
                asking(bounding(&["CAP_SYS_PTRACE"])),
            )
        },
        Case {
            pids: Pids::Host,
            ..case("the host's pids with a request", asking(bounding(&["CAP_KILL"])))
        },
        // cards by other drivers
        case("a display node of the managed card", device("/dev/dri/renderD128", 226, 128)),
        case(
            "a display node of the managed card with a request",
            asking(device("/dev/dri/card0", 226, 0)),
        ),
        case("a display node stripped", device("/dev/dri/renderD128", 226, 128))
            .policy(|p| p.unallocated = Unallocated::Strip),
        Case {
            node: Node::unknown(),
            ..case(
                "a display node on a node of which nothing is known",
                device("/dev/dri/renderD128", 226, 128),
            )
        },
        // exempt
        exporter("an exempt pod", "gpu-operator", "nvcr.io/nvidia/k8s/dcgm-exporter:3.3.9"),
        exporter(
            "its image in another namespace",
            "default",
            "nvcr.io/nvidia/k8s/dcgm-exporter:3.3.9",
        ),
        exporter("its namespace with another image", "gpu-operator", "evil.io/dcgm-exporter:3.3.9"),
        exporter("its like from docker", "gpu-operator", "nvcr.io/nvidia/k8s/dcgm-exporter")
            .by(Caller::Local),
        exporter(
            "its like from CRI-O, which lets a pod write containerd's names",
            "gpu-operator",
            "nvcr.io/nvidia/k8s/dcgm-exporter",
        )
        .by(Caller::Crio),
        case(
            "an exempt pod of CRI-O",
            json!({
                "process": { "env": ["NVIDIA_VISIBLE_DEVICES=all"] },
                "annotations": {
                    "io.kubernetes.pod.uid": "u", "io.kubernetes.pod.namespace": "gpu-operator",
                    "io.kubernetes.pod.name": "exporter", "io.kubernetes.container.name": "c",
                    "io.kubernetes.cri-o.Image": "c5a86506f3b1a1a2c9e3d4f5061728394a5b6c7d8e9f00112233445566778899",
                    "io.kubernetes.cri-o.ImageName": "nvcr.io/nvidia/k8s/dcgm-exporter:3.3.9"
                }
            }),
        )
        .policy(exempting)
        .by(Caller::Crio),
        // whose words
        case("a pod's token", annotation("mpsgate.io/grant", "t")).by(Caller::Containerd),
        case(
            "a pod's token, and what its author writes beside it",
            asking(json!({"annotations": {
                "mpsgate.io/grant": "t", "mpsgate.io/gpu-mem": "80Gi", "mpsgate.io/gpu": "1",
                "aliyun.com/gpu-count": "2"
            }})),
        )
        .by(Caller::Crio),
        case("an operator's token", annotation("mpsgate.io/grant", "t")),
        case("a pod's annotation without a device plugin", asking(json!({})))
            .by(Caller::Containerd),
        case("a pod's annotation beside the device plugin", asking(json!({})))
            .by(Caller::Containerd)
            .with_plugin(),
        case(
            "the same, with every card",
            asking(json!({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}})),
        )
        .by(Caller::Crio)
        .with_plugin(),
        case("a pod's senseless annotation", annotation("mpsgate.io/gpu-compute", "much"))
            .by(Caller::Crio)
            .with_plugin(),
        case("a pod's token beside the device plugin", annotation("mpsgate.io/grant", "t"))
            .by(Caller::Containerd)
            .with_plugin(),
        case("an operator's annotation beside the device plugin", asking(json!({}))).with_plugin(),
        // claims
        case("a claim's token beside the device plugin", claims(&["web.gpu"]))
            .by(Caller::Containerd)
            .with_plugin(),
        case("a claim's token twice under one name", claims(&["web.gpu", "web.gpu"]))
            .by(Caller::Containerd),
        case("two claims in one container", claims(&["a.gpu", "b.gpu"])).by(Caller::Crio),
        case("two requests of one claim", claims(&["web.one", "web.two\u{1b}[2J"]))
            .by(Caller::Containerd),
        case("six claims", claims(&["a.x", "b.x", "c.x", "d.x", "e.x", "f.x"])),
        case(
            "a claim and GPU memory in resources.limits",
            json!({
                "process": {"env": ["MPSGATE_GRANT_web.gpu=token-of-web.gpu"]},
                "annotations": {"mpsgate.io/grant": "t"}
            }),
        )
        .by(Caller::Containerd)
        .with_plugin(),
        case(
            "a claim's token, and what the pod's author writes beside it",
            json!({
                "process": {"env": ["MPSGATE_GRANT_web.gpu=t", "NVIDIA_VISIBLE_DEVICES=all"]},
                "annotations": {"mpsgate.io/gpu-mem": "80Gi", "mpsgate.io/gpu-priority": "low"}
            }),
        )
        .by(Caller::Containerd),
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
            "/run/mpsgate/mps/0/containers/0123456789abcdef0123456789abcdef",
            "/run/mpsgate/mps",
            MountKind::Ours,
        ),
        case("a mount of the root", json!({})).mount("/", "/host", MountKind::Ancestor),
        case("a mount of the root with a request", asking(json!({}))).mount(
            "/",
            "/host",
            MountKind::Ancestor,
        ),
        // cgroups, and paths that others may exchange
        case("the cgroups of the node with a request", asking(json!({}))).mount(
            "/sys/fs/cgroup",
            "/x",
            MountKind::Cgroups(Reach::Itself),
        ),
        case("a writable directory above the cgroups with a request", asking(json!({})))
            .mount("/", "/host", MountKind::Ancestor)
            .mount("/", "/host", MountKind::Cgroups(Reach::Below)),
        case(
            "a directory above the cgroups with a request, read-only but for them",
            asking(json!({})),
        )
        .mount("/sys", "/x", MountKind::Cgroups(Reach::BelowReadOnly)),
        case("the cgroups of the node", json!({})).mount(
            "/sys/fs/cgroup",
            "/x",
            MountKind::Cgroups(Reach::Itself),
        ),
        case("the cgroups of the node, closed", json!({}))
            .policy(|p| p.privileged = Privileged::Close)
            .mount("/sys/fs/cgroup", "/x", MountKind::Cgroups(Reach::Itself)),
        case("a writable directory above the cgroups, closed", json!({}))
            .policy(|p| p.privileged = Privileged::Close)
            .mount("/sys", "/x", MountKind::Cgroups(Reach::Below)),
        case("a node's agent, closed", json!({}))
            .policy(|p| p.privileged = Privileged::Close)
            .mount("/", "/host", MountKind::Cgroups(Reach::BelowReadOnly)),
        case("a privileged container with the node's cgroups, closed", privileged())
            .policy(|p| p.privileged = Privileged::Close)
            .mount("/sys/fs/cgroup", "/x", MountKind::Cgroups(Reach::Itself)),
        // a card's files in sysfs
        case("a card's files in sysfs with a request", asking(json!({}))).mount(
            "/sys/bus/pci",
            "/x",
            MountKind::CardFiles { read_only: true },
        ),
        case("a card's files in sysfs, which can be written, with a request", asking(json!({})))
            .mount("/sys/devices", "/x", MountKind::CardFiles { read_only: false }),
        case("a card's files in sysfs", json!({})).mount(
            "/sys/bus",
            "/x",
            MountKind::CardFiles { read_only: false },
        ),
        case("a card's files in sysfs, closed", json!({}))
            .policy(|p| p.privileged = Privileged::Close)
            .mount("/sys/bus", "/x", MountKind::CardFiles { read_only: false }),
        case("a card's files in sysfs for a node's agent, closed", json!({}))
            .policy(|p| p.privileged = Privileged::Close)
            .mount("/sys", "/x", MountKind::CardFiles { read_only: true }),
        case(
            "a card's files in sysfs for a container that may mount, closed",
            bounding(&["CAP_SYS_ADMIN"]),
        )
        .policy(|p| p.privileged = Privileged::Close)
        .mount("/sys/bus", "/x", MountKind::CardFiles { read_only: false }),
        // a procfs without what engines make read-only in it
        case("an open /proc/sys with a request", asking(procfs(&["/proc/kcore"]))),
        case("an open /proc/bus with a request", asking(procfs(&["/proc/sys"]))),
        case(
            "a closed /proc/sys and /proc/bus with a request",
            asking(procfs(&["/proc/bus", "/proc/sys"])),
        ),
        case("an open /proc/sys with a request in a user namespace", {
            let mut spec = in_user_namespace(1000, &[]);
            spec["mounts"] = procfs(&[])["mounts"].clone();
            asking(spec)
        }),
        case("an open /proc/sys", procfs(&[])),
        case("an open /proc/bus", procfs(&["/proc/sys"])),
        case("an open /proc/sys for a container that may mount", {
            let mut spec = procfs(&[]);
            spec["process"] = bounding(&["CAP_SYS_ADMIN"])["process"].clone();
            spec
        }),
        case("a home directory", json!({})).mount("/home/u/x", "/x", MountKind::Exchangeable),
        Case { action: Action::Restore, ..case("a home directory, restored", json!({})) }.mount(
            "/home/u/x",
            "/x",
            MountKind::Exchangeable,
        ),
        case("a home directory where all is let through", json!({}))
            .policy(|p| p.unallocated = Unallocated::Warn)
            .mount("/home/u/x", "/x", MountKind::Exchangeable),
        case("a home directory with a request", asking(json!({}))).mount(
            "/home/u/x",
            "/x",
            MountKind::Exchangeable,
        ),
        // file systems that are no bind
        case("a disk", of_type("ext4", "/dev/sda1", &["ro"])),
        case("a disk with a request", asking(of_type("ext4", "/dev/sda1", &["ro"]))),
        case("a process's file system with a request", asking(of_type("fuse.x", "x", &[]))),
        case("another machine's files with a request", asking(of_type("nfs", "server:/x", &[]))),
        case("an overlay with a request", asking(of_type("overlay", "overlay", &["lowerdir=/a:/b"]))),
        case(
            "an overlay whose options run into each other with a request",
            asking(of_type("overlay", "overlay", &["lowerdir=/a\\", "x"])),
        ),
        case(
            "an overlay with a backslash before another one with a request",
            asking(of_type("overlay", "overlay", &["lowerdir=/a\\\\", "x"])),
        ),
        case("an overlay of our directory", of_type("overlay", "overlay", &["lowerdir=/run/mpsgate"]))
            .mount("/run/mpsgate", "/x", MountKind::Ours),
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
        case("a uid that is not mapped", asking(remapped(5, None))),
        case("a uid that is mapped", asking(remapped(0, None))),
        case(
            "mappings without a user namespace",
            asking(
                json!({ "linux": { "uidMappings": [{ "containerID": 0, "hostID": 1000, "size": 1 }] } }),
            ),
        ),
        case("a joined user namespace", asking(remapped(0, Some("/proc/7/ns/user"))))
            .joins(Users::Joined(vec![IdRange { inside: 0, outside: 200_000, size: 1 }])),
        case(
            "a joined user namespace whose map only the spec tells",
            asking(remapped(0, Some("/run/userns/x"))),
        )
        .joins(Users::Unreadable("only /proc/PID/ns/user shows its map".to_owned())),
        case(
            "a joined user namespace whose map nothing tells",
            asking(
                json!({ "linux": { "namespaces": [{ "type": "user", "path": "/run/userns/x" }] } }),
            ),
        )
        .joins(Users::Unreadable("only /proc/PID/ns/user shows its map".to_owned())),
        case("a user namespace without a request", remapped(5, None)),
        case("the uid that the program drops to", asking(annotation("mpsgate.io/gpu-uid", "1000"))),
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
        case("a cgroup of its own to write by crun", annotation("run.oci.delegate-cgroup", "x")),
        case(
            "a cgroup of its own to write by crun with a request",
            asking(annotation("run.oci.delegate-cgroup", "x")),
        ),
    ]
}
