//! Objects as the API server sends them, each with the smallest change that matters.

use serde_json::{Value, json};

#[path = "handlers.rs"]
pub(crate) mod handlers;

pub(crate) fn review(kind: &str, operation: &str, part: &str, object: Value, old: Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "kind": {"group": "", "version": "v1", "kind": kind}, "subResource": part,
            "operation": operation, "object": object, "oldObject": old, "dryRun": false,
            "userInfo": {"username": "alice", "groups": ["system:authenticated"]}
        }
    })
}

/// One container with these limits.
pub(crate) fn pod(limits: Value) -> Value {
    json!({
        "metadata": {"generateName": "web-", "namespace": "default"},
        "spec": {
            "containers": [{"name": "web", "image": "cuda", "resources": {"limits": limits}}],
            "schedulerName": "default-scheduler"
        }
    })
}

pub(crate) fn of_pod(pod: &Value) -> Value {
    review("Pod", "CREATE", "", pod.clone(), Value::Null)
}

fn asking() -> Value {
    let mut pod = pod(json!({"aliyun.com/gpu-mem": "7"}));
    pod["spec"]["hostIPC"] = json!(true);
    pod
}

fn with(mut pod: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.to_owned(), value);
    pod
}

fn host_path(pod: Value, path: &str) -> Value {
    let volumes = json!([{"name": "host", "hostPath": {"path": path}}]);
    let mounts = json!([{"name": "host", "mountPath": "/host"}]);
    with(with(pod, "/spec/volumes", volumes), "/spec/containers/0/volumeMounts", mounts)
}

/// A path below a directory of the host, by this key of the mount.
fn below(pod: Value, path: &str, key: &str, sub_path: &str) -> Value {
    with(host_path(pod, path), &format!("/spec/containers/0/volumeMounts/0/{key}"), json!(sub_path))
}

/// A directory of the host at a path of the container.
fn host_path_at(pod: Value, path: &str, place: &str) -> Value {
    with(host_path(pod, path), "/spec/containers/0/volumeMounts/0/mountPath", json!(place))
}

fn limits(resources: Value) -> Value {
    with(asking(), "/spec/containers/0/resources/limits", resources)
}

fn cards(count: &str) -> Value {
    with(asking(), "/metadata/labels", json!({"aliyun.com/gpu-count": count}))
}

fn visible(pod: Value, value: &str) -> Value {
    let env = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]);
    with(pod, "/spec/containers/0/env", env)
}

fn on(pod: Value, word: &str) -> Value {
    with(pod, "/spec/nodeSelector", json!({"ack.node.gpu.schedule": word}))
}

fn affinity(terms: &[&[&str]]) -> Value {
    let terms: Vec<Value> = terms
        .iter()
        .map(|words| {
            json!({"matchExpressions": [{"key": "ack.node.gpu.schedule", "operator": "In", "values": words}]})
        })
        .collect();
    let required =
        json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    with(pod(json!({"aliyun.com/gpu-mem": 7})), "/spec/affinity", json!({"nodeAffinity": required}))
}

fn sidecar(container: Value) -> Value {
    let mut pod = asking();
    pod["spec"]["containers"].as_array_mut().unwrap().push(container);
    pod
}

fn security(pod: Value, context: Value) -> Value {
    with(pod, "/spec/containers/0/securityContext", context)
}

fn template(kind: &str, operation: &str, pod: &Value, old: Option<&Value>) -> Value {
    let object = |pod: &Value| match kind {
        "CronJob" => json!({"metadata": {}, "spec": {"jobTemplate": {"spec": {"template": pod}}}}),
        _ => json!({"metadata": {}, "spec": {"replicas": 2, "template": pod}}),
    };
    review(kind, operation, "", object(pod), old.map_or(Value::Null, object))
}

/// The account whose word on placements counts.
pub(crate) const SCHEDULER: &str = "system:serviceaccount:mpsgate-system:mpsgate-scheduler";

fn by(mut review: Value, username: &str, groups: &[&str]) -> Value {
    review["request"]["userInfo"] = json!({"username": username, "groups": groups});
    review
}

type Case = (&'static str, Value);

pub(crate) fn cases() -> Vec<Case> {
    let mut all = amounts();
    all.extend(spec());
    all.extend(shared_memory());
    all.extend(nodes());
    all.extend(objects());
    all.extend(placements());
    all.extend(handlers::cases());
    all
}

fn amounts() -> Vec<Case> {
    let seven = json!({"aliyun.com/gpu-mem": "7"});
    let pods = [
        ("7 GiB, with hostIPC", asking()),
        ("a slice of nos", limits(json!({"nvidia.com/gpu-10gb": 1}))),
        ("two slices of nos", limits(json!({"nvidia.com/gpu-10gb": "2"}))),
        ("MiB", limits(json!({"mpsgate.io/gpu-mem-512mi": "3"}))),
        ("bytes, where GiB are counted", limits(json!({"aliyun.com/gpu-mem": "7Gi"}))),
        ("the same without hostIPC", pod(json!({"aliyun.com/gpu-mem": "7Gi"}))),
        ("MiB, where GiB are counted", limits(json!({"aliyun.com/gpu-mem": "8138"}))),
        ("more than a card of today's nodes has", limits(json!({"aliyun.com/gpu-mem": "96"}))),
        ("MiB in pieces of 512", limits(json!({"mpsgate.io/gpu-mem-512mi": "7168"}))),
        (
            "a card of another plugin beside GPU memory",
            limits(json!({"nvidia.com/gpu": "1", "aliyun.com/gpu-mem": "7"})),
        ),
        (
            "none of another plugin's cards beside GPU memory",
            limits(json!({"nvidia.com/gpu": "0", "aliyun.com/gpu-mem": "7"})),
        ),
        (
            "amounts and shares of other plugins beside GPU memory",
            limits(json!({
                "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30",
                "nvidia.com/gpu.shared": "1", "aliyun.com/gpu-mem": "7",
            })),
        ),
        ("no GPU memory", pod(json!({"cpu": "1", "memory": "1Gi"}))),
        ("whole cards of another device plugin", pod(json!({"nvidia.com/gpu": 1}))),
        ("zero", pod(json!({"aliyun.com/gpu-mem": 0}))),
        (
            "a whole card by its class",
            pod(json!({"deviceclass.resource.kubernetes.io/shared-gpu.mpsgate.io": "1"})),
        ),
        ("no hostIPC", pod(seven.clone())),
        (
            "an init container asks",
            with(
                pod(json!({})),
                "/spec/initContainers",
                json!([{"name": "warm", "resources": {"limits": seven}}]),
            ),
        ),
        ("two resources", limits(json!({"aliyun.com/gpu-mem": 7, "nvidia.com/gpu-10gb": 1}))),
        ("half a GiB", limits(json!({"aliyun.com/gpu-mem": "500m"}))),
        ("a unit in a count", limits(json!({"aliyun.com/gpu-mem": "7GB"}))),
        (
            "a request that cannot be counted",
            with(
                asking(),
                "/spec/containers/0/resources/requests",
                json!({"aliyun.com/gpu-mem": "-1"}),
            ),
        ),
        ("no quantity at all", limits(json!({"aliyun.com/gpu-mem": {"gib": 7}}))),
        ("somebody else's nonsense", pod(json!({"example.com/x": {"y": 1}, "cpu": []}))),
        (
            "30 percent",
            limits(json!({"aliyun.com/gpu-mem": 7, "aliyun.com/gpu-core.percentage": 30})),
        ),
        (
            "33 percent",
            limits(json!({"aliyun.com/gpu-mem": 7, "aliyun.com/gpu-core.percentage": 33})),
        ),
        (
            "105 percent",
            limits(json!({"aliyun.com/gpu-mem": 7, "aliyun.com/gpu-core.percentage": 105})),
        ),
        ("percent of nothing", limits(json!({"aliyun.com/gpu-core.percentage": 50}))),
        (
            "an annotation instead of a limit",
            with(pod(json!({})), "/metadata/annotations", json!({"aliyun.com/gpu-mem": "7"})),
        ),
    ];
    pods.map(|(name, pod)| (name, of_pod(&pod))).into()
}

fn spec() -> Vec<Case> {
    let variable = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]);
    let device = |pod| {
        let pod = with(
            pod,
            "/spec/volumes",
            json!([{"name": "gpu", "hostPath": {"path": "/dev/nvidia0"}}]),
        );
        with(
            pod,
            "/spec/containers/0/volumeMounts",
            json!([{"name": "gpu", "mountPath": "/dev/nvidia0"}]),
        )
    };
    let mut proc_twice = host_path_at(asking(), "/proc", "/proc");
    let elsewhere = json!({"name": "host", "mountPath": "/host"});
    let mounts = proc_twice.pointer_mut("/spec/containers/0/volumeMounts").unwrap();
    mounts.as_array_mut().unwrap().push(elsewhere);
    let pods = [
        ("privileged", security(asking(), json!({"privileged": true}))),
        ("privileged without GPU memory", security(pod(json!({})), json!({"privileged": true}))),
        (
            "a privileged sidecar",
            sidecar(json!({"name": "agent", "securityContext": {"privileged": true}})),
        ),
        ("SYS_ADMIN", security(asking(), json!({"capabilities": {"add": ["SYS_ADMIN"]}}))),
        ("all capabilities", security(asking(), json!({"capabilities": {"add": ["all"]}}))),
        (
            "users of its own, and no hostIPC",
            with(pod(json!({"aliyun.com/gpu-mem": "7"})), "/spec/hostUsers", json!(false)),
        ),
        (
            "the same, on a node that shares without MPS",
            on(
                with(pod(json!({"aliyun.com/gpu-mem": "7"})), "/spec/hostUsers", json!(false)),
                "share",
            ),
        ),
        (
            "SYS_ADMIN of its own users",
            with(
                security(asking(), json!({"capabilities": {"add": ["SYS_ADMIN"]}})),
                "/spec/hostUsers",
                json!(false),
            ),
        ),
        ("SYS_PTRACE", security(asking(), json!({"capabilities": {"add": ["SYS_PTRACE"]}}))),
        (
            "SYS_PTRACE and the host's pids",
            with(
                security(asking(), json!({"capabilities": {"add": ["CAP_SYS_PTRACE"]}})),
                "/spec/hostPID",
                json!(true),
            ),
        ),
        ("the host's pids", with(asking(), "/spec/hostPID", json!(true))),
        ("the host's pids, nothing asked", with(pod(json!({})), "/spec/hostPID", json!(true))),
        ("the host's /proc", host_path(asking(), "/proc/")),
        ("the host's root", host_path(asking(), "/")),
        ("the driver's part of the host's /proc", host_path(asking(), "/proc/driver/nvidia")),
        ("the host's /proc, nothing asked", host_path(pod(json!({})), "/proc")),
        ("the host's /proc at /proc", host_path_at(asking(), "/proc", "/proc/")),
        ("the host's root at /proc", host_path_at(asking(), "/", "proc")),
        ("the host's /proc at /proc and elsewhere", proc_twice),
        ("the host's /proc, below its root", below(asking(), "/", "subPath", "proc")),
        ("the same by an expression", below(asking(), "/", "subPathExpr", "proc")),
        ("the same with a variable in it", below(asking(), "/", "subPathExpr", "proc/$(NUMBER)")),
        (
            "what a variable names below the host's root",
            below(asking(), "/", "subPathExpr", "$(WHERE)"),
        ),
        ("the same below /var/log", below(asking(), "/", "subPathExpr", "var/log/$(WHERE)")),
        (
            "the same below the driver's part of /proc",
            below(asking(), "/proc", "subPathExpr", "driver/nvidia/$(WHERE)"),
        ),
        ("the host's /run", host_path(asking(), "/run/")),
        ("what a variable names below it", below(asking(), "/run", "subPathExpr", "mps$(WHERE)")),
        ("mpsgate's own directory", host_path(asking(), "/var/run/mpsgate/mps")),
        ("another directory of /run", host_path(asking(), "/run/dbus")),
        ("all cards named", visible(asking(), "all")),
        ("void", visible(asking(), "void")),
        ("none", visible(asking(), "none")),
        ("a sidecar names a card", sidecar(json!({"name": "agent", "env": variable}))),
        ("all cards named, nothing asked", visible(pod(json!({})), "all")),
        (
            "from a ConfigMap",
            with(
                asking(),
                "/spec/containers/0/env",
                json!([{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]),
            ),
        ),
        ("a GPU's device node", device(pod(json!({})))),
        ("a GPU's device node, with a request", device(asking())),
        (
            "a device that a variable names",
            below(pod(json!({})), "/dev", "subPathExpr", "nvidia$(NUMBER)"),
        ),
        (
            "the same in another directory",
            below(pod(json!({})), "/dev", "subPathExpr", "snd/$(NUMBER)"),
        ),
        (
            "everything at once",
            visible(
                security(
                    pod(json!({"aliyun.com/gpu-mem": 7, "nvidia.com/gpu-10gb": 1})),
                    json!({"privileged": true}),
                ),
                "all",
            ),
        ),
    ];
    pods.map(|(name, pod)| (name, of_pod(&pod))).into()
}

/// A volume at a path of the first container, as PyTorch's and vLLM's charts have it.
fn mounted(pod: Value, volume: Value, mount: Value) -> Value {
    let name = |mut object: Value| {
        object["name"] = json!("dshm");
        json!([object])
    };
    let pod = with(pod, "/spec/volumes", name(volume));
    with(pod, "/spec/containers/0/volumeMounts", name(mount))
}

fn shared_memory() -> Vec<Case> {
    let memory = || json!({"emptyDir": {"medium": "Memory"}});
    let host = |path: &str| json!({"hostPath": {"path": path}});
    let at = |path: &str| json!({"mountPath": path});
    let dshm = |pod| mounted(pod, memory(), at("/dev/shm"));
    let own_users = with(pod(json!({"aliyun.com/gpu-mem": "7"})), "/spec/hostUsers", json!(false));
    let mut twice = mounted(asking(), host("/dev/shm"), at("/dev/shm/"));
    for (pointer, one) in [
        ("/spec/volumes", json!({"name": "other", "emptyDir": {}})),
        ("/spec/containers/0/volumeMounts", json!({"name": "other", "mountPath": "/dev/shm"})),
    ] {
        twice.pointer_mut(pointer).unwrap().as_array_mut().unwrap().push(one);
    }
    let beside = with(
        dshm(asking()),
        "/spec/initContainers",
        json!([{"name": "load", "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}]}]),
    );
    let pods = [
        ("a volume at /dev/shm", dshm(asking())),
        ("the same, nothing asked", dshm(pod(json!({})))),
        ("the same, in one that does not ask, too", beside),
        ("the same, on nodes that share without MPS", on(dshm(asking()), "share")),
        ("the same, on nodes under MPS", on(dshm(asking()), "mps")),
        ("the same, and another system's nodes", on(dshm(asking()), "cgpu")),
        ("the same, and several cards", on(dshm(cards("7")), "share")),
        ("the same, and no hostIPC", dshm(pod(json!({"aliyun.com/gpu-mem": "7"})))),
        ("the same, and users of its own", dshm(own_users)),
        ("at /dev/shm/", mounted(asking(), memory(), at("/dev/shm/"))),
        ("at //dev/./shm", mounted(asking(), memory(), at("//dev/./shm"))),
        ("at dev/shm", mounted(asking(), memory(), at("dev/shm"))),
        ("below /dev/shm", mounted(asking(), memory(), at("/dev/shm/x"))),
        ("elsewhere", mounted(asking(), memory(), at("/cache"))),
        (
            "a claim",
            mounted(asking(), json!({"persistentVolumeClaim": {"claimName": "c"}}), at("/dev/shm")),
        ),
        (
            "a kind that nobody knows yet",
            mounted(asking(), json!({"new\u{1b}Kind": {}, "emptyDir": null}), at("/dev/shm")),
        ),
        ("a volume that does not say what it is", mounted(asking(), json!({}), at("/dev/shm"))),
        ("the host's /dev/shm", mounted(asking(), host("/dev/shm"), at("/dev/shm"))),
        ("the host's, written otherwise", mounted(asking(), host("//dev/shm/"), at("/dev/shm"))),
        (
            "the host's, below its /dev",
            mounted(asking(), host("/dev"), json!({"mountPath": "/dev/shm", "subPath": "shm"})),
        ),
        (
            "the same by an expression",
            mounted(asking(), host("/dev"), json!({"mountPath": "/dev/shm", "subPathExpr": "shm"})),
        ),
        (
            "the same with a variable in it",
            mounted(
                asking(),
                host("/dev"),
                json!({"mountPath": "/dev/shm", "subPathExpr": "shm/$(WHERE)"}),
            ),
        ),
        ("another path of the host", mounted(asking(), host("/var/shm"), at("/dev/shm"))),
        (
            "a part of the host's",
            mounted(asking(), host("/dev/shm"), json!({"mountPath": "/dev/shm", "subPath": "x"})),
        ),
        ("two at /dev/shm, of which the last counts", twice),
        ("a volume that is not there", with(dshm(asking()), "/spec/volumes", json!([7, {}]))),
    ];
    let mut all: Vec<Case> = pods.map(|(name, pod)| (name, of_pod(&pod))).into();
    all.push((
        "a Deployment with a volume at /dev/shm",
        template("Deployment", "CREATE", &dshm(asking()), None),
    ));
    all
}

fn nodes() -> Vec<Case> {
    let alone = || pod(json!({"aliyun.com/gpu-mem": "7"}));
    let pods = [
        ("share: no hostIPC needed", on(alone(), "share")),
        ("mps: no hostIPC", on(alone(), "mps")),
        ("another system's nodes", on(visible(alone(), "all"), "cgpu")),
        ("affinity to share", affinity(&[&["share"]])),
        ("affinity to share or mps", affinity(&[&["share", "mps"]])),
        ("affinity to share, or anything", affinity(&[&["share"], &[]])),
        ("2 cards, 7 GiB", on(cards("2"), "share")),
        (
            "2 cards, 8 GiB",
            on(
                with(
                    cards("2"),
                    "/spec/containers/0/resources/limits",
                    json!({"aliyun.com/gpu-mem": 8}),
                ),
                "share",
            ),
        ),
        ("2 cards under MPS", on(cards("2"), "mps")),
        (
            "2 cards, any node, no hostIPC",
            with(
                with(
                    cards("2"),
                    "/spec/containers/0/resources/limits",
                    json!({"aliyun.com/gpu-mem": 8}),
                ),
                "/spec/hostIPC",
                json!(false),
            ),
        ),
        ("1 card", cards("1")),
        ("two cards, in words", cards("two")),
        ("no card", cards("0")),
    ];
    pods.map(|(name, pod)| (name, of_pod(&pod))).into()
}

fn objects() -> Vec<Case> {
    let bad = pod(json!({"aliyun.com/gpu-mem": 7}));
    let good = asking();
    let mirror = of_pod(&with(
        bad.clone(),
        "/metadata/annotations",
        json!({"kubernetes.io/config.mirror": "x"}),
    ));
    let debug = |value: &str| {
        let env = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]);
        with(bad.clone(), "/spec/ephemeralContainers", json!([{"name": "debug", "env": env}]))
    };
    let mut owned = template("ReplicaSet", "CREATE", &bad, None);
    owned["request"]["object"]["metadata"] = json!({"ownerReferences": [{"controller": true}]});
    vec![
        ("a Deployment", template("Deployment", "CREATE", &bad, None)),
        ("a Deployment that is right", template("Deployment", "CREATE", &good, None)),
        ("a Deployment that is scaled", template("Deployment", "UPDATE", &bad, Some(&bad))),
        ("a Deployment that is changed", template("Deployment", "UPDATE", &bad, Some(&good))),
        ("a CronJob", template("CronJob", "CREATE", &bad, None)),
        ("a ReplicaSet of a Deployment", owned),
        ("a mirror pod", by(mirror.clone(), "system:node:n1", &["system:nodes"])),
        ("a mirror pod, a tenant says", mirror.clone()),
        (
            "a mirror pod, a user in the nodes' group says",
            by(mirror.clone(), "bob", &["system:nodes"]),
        ),
        (
            "a mirror pod, a user with a node's name says",
            by(mirror, "system:node:n1", &["tenants"]),
        ),
        ("a pod's label changes", review("Pod", "UPDATE", "", bad.clone(), bad.clone())),
        ("a pod's status", review("Pod", "UPDATE", "status", bad.clone(), bad.clone())),
        (
            "kubectl debug",
            review("Pod", "UPDATE", "ephemeralcontainers", debug("void"), bad.clone()),
        ),
        (
            "kubectl debug names a card",
            review("Pod", "UPDATE", "ephemeralcontainers", debug("0"), bad.clone()),
        ),
        (
            "kubectl debug once more",
            review("Pod", "UPDATE", "ephemeralcontainers", debug("0"), debug("0")),
        ),
        ("a pod is deleted", review("Pod", "DELETE", "", Value::Null, bad.clone())),
        ("something else", review("Secret", "CREATE", "", json!({}), Value::Null)),
    ]
}

fn placements() -> Vec<Case> {
    let claim = json!({"version": 1, "node": "n1", "time": "2026-01-31T12:00:00Z", "containers": {"web": {"0": 7}}});
    let claim = claim.to_string();
    let with_annotations =
        |pod: Value, annotations: Value| with(pod, "/metadata/annotations", annotations);
    let placed = with_annotations(asking(), json!({"mpsgate.io/placement": claim}));
    let nothing = with_annotations(pod(json!({})), json!({"mpsgate.io/placement": claim}));
    let moved = with_annotations(asking(), json!({"mpsgate.io/placement": "{}"}));
    let index = |index: &str| with_annotations(asking(), json!({"ALIYUN_COM_GPU_MEM_IDX": index}));
    let both = |index: &str| {
        with_annotations(
            asking(),
            json!({"mpsgate.io/placement": claim, "ALIYUN_COM_GPU_MEM_IDX": index}),
        )
    };
    let noted =
        with_annotations(placed.clone(), json!({"mpsgate.io/placement": claim, "team": "a"}));
    let elsewhere = on(index("0"), "cgpu");
    let bound = |count: &str| with(cards(count), "/spec/nodeName", json!("n1"));
    // What else is in it is more than anybody looks at.
    let mounts: Vec<Value> = (0..10_001).map(|_| json!({"name": "m"})).collect();
    let huge = with(placed.clone(), "/spec/containers/0/volumeMounts", json!(mounts));
    let update = |now: &Value, then: &Value| review("Pod", "UPDATE", "", now.clone(), then.clone());
    vec![
        ("a new pod that was placed already", of_pod(&placed)),
        ("the same, and it asks for nothing", of_pod(&nothing)),
        (
            "the same, and it waits for a gate",
            of_pod(&with(placed.clone(), "/spec/schedulingGates", json!([{"name": "x"}]))),
        ),
        ("the same, and it is too long to be looked at", of_pod(&huge)),
        ("the same, by the scheduler", by(of_pod(&placed), SCHEDULER, &["system:serviceaccounts"])),
        (
            "the same, by another scheduler's name in another namespace",
            by(of_pod(&placed), "system:serviceaccount:tenant:mpsgate-scheduler", &[]),
        ),
        ("a new pod that gpushare has placed already", of_pod(&index("0"))),
        ("the same, for another system's nodes", of_pod(&elsewhere)),
        (
            "a Deployment of pods that were placed already",
            template("Deployment", "CREATE", &placed, None),
        ),
        ("a placement comes to a pod", update(&placed, &asking())),
        ("a placement goes", update(&asking(), &placed)),
        ("a placement changes", update(&moved, &placed)),
        ("a placement changes, by the scheduler", by(update(&moved, &placed), SCHEDULER, &[])),
        ("an annotation beside the placement", update(&noted, &placed)),
        ("gpushare's card comes to a pod, by its scheduler", update(&index("0"), &asking())),
        ("gpushare's card changes on a pod that mpsgate placed", update(&both("1"), &both("0"))),
        ("the number of cards changes, before there is a node", update(&cards("2"), &cards("1"))),
        ("the number of cards changes on a node", update(&bound("2"), &bound("1"))),
    ]
}
