//! Pods that choose a handler, in a cluster where one node leads NVIDIA's through mpsgate and
//! another does not.

use std::collections::BTreeMap;

use mpsgate_cluster::bypass::Known;
use mpsgate_cluster::cards::Cards;
use mpsgate_config::Exempt;
use mpsgate_model::{GpuNode, HandlerReport, Mib, RuntimeClass};
use serde_json::{Value, json};

use super::{Case, asking, below, of_pod, pod, review, template, visible, with};

/// One of the GPU operator's.
const OPERAND: &str = "nvcr.io/nvidia/k8s/dcgm-exporter";

pub(crate) fn exempt() -> Vec<Exempt> {
    vec![Exempt { namespace: "gpu-operator".to_owned(), image: OPERAND.to_owned() }]
}

/// Nodes `gpu-1` and `gpu-2`, whose label `pool` is `round` and `led`; `gpu-3` in the pool `old`
/// says nothing of its handlers.
pub(crate) fn known() -> Known {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let node = |pool: &str, handlers| GpuNode {
        labels: [("pool".to_owned(), pool.to_owned())].into(),
        is_switched: true,
        handlers,
    };
    let says = |led: &[&str], round: &[&str]| {
        Ok(HandlerReport {
            default: Some("mpsgate".to_owned()),
            led: names(led),
            round: names(round),
            ..HandlerReport::default()
        })
    };
    let class = |handler: &str, pool: Option<&str>| RuntimeClass {
        handler: handler.to_owned(),
        selector: pool.map(|pool| ("pool".to_owned(), pool.to_owned())).into_iter().collect(),
        ..RuntimeClass::default()
    };
    let classes = [
        ("nvidia", class("nvidia", None)),
        ("mpsgate", class("mpsgate", None)),
        ("kata", class("kata", Some("cpu"))),
        ("hollow", class("", None)),
    ];
    let round = says(&["mpsgate", "runc"], &["kata", "nvidia"]);
    let led = says(&["mpsgate", "nvidia", "runc"], &["kata"]);
    Known {
        classes: Some(classes.map(|(name, class)| (name.to_owned(), class)).into()),
        nodes: BTreeMap::from([
            ("gpu-1".to_owned(), node("round", round)),
            ("gpu-2".to_owned(), node("led", led)),
            (
                "gpu-3".to_owned(),
                node("old", Err("has no annotation mpsgate.io/handlers".to_owned())),
            ),
        ]),
        cards: Cards {
            largest: [("gpu-1", 15), ("gpu-2", 80), ("gpu-3", 15)]
                .map(|(name, gib)| (name.to_owned(), Some(Mib(gib * 1024))))
                .into(),
            is_current: true,
        },
    }
}

fn class(pod: Value, name: &str) -> Value {
    with(pod, "/spec/runtimeClassName", json!(name))
}

fn pool(pod: Value, name: &str) -> Value {
    with(pod, "/spec/nodeSelector", json!({"pool": name}))
}

/// Ways to a card beside `NVIDIA_VISIBLE_DEVICES`, each beside what shows none, by a class that
/// bypasses mpsgate.
fn ways() -> Vec<Case> {
    let round = || class(pod(json!({})), "nvidia");
    let env = |variables: &[(&str, Option<&str>)]| {
        let one = |(name, value): &(&str, Option<&str>)| match value {
            Some(value) => json!({"name": name, "value": value}),
            None => {
                json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
            }
        };
        let list: Vec<Value> = variables.iter().map(one).collect();
        with(round(), "/spec/containers/0/env", json!(list))
    };
    let annotated =
        |name: &str, value: &str| with(round(), "/metadata/annotations", json!({name: value}));
    let mounted = |source: &str, sub_path: &str, place: &str| {
        let volume = json!([{"name": "v", "hostPath": {"path": source}}]);
        let mount = json!([{"name": "v", "mountPath": place, "subPath": sub_path}]);
        with(with(round(), "/spec/volumes", volume), "/spec/containers/0/volumeMounts", mount)
    };
    let devices = "/var/run/nvidia-container-devices";
    let cuda = ("CUDA_VERSION", Some("12.4"));
    let pods = [
        ("round: the variable from elsewhere", env(&[("NVIDIA_VISIBLE_DEVICES", None)])),
        (
            "round: a reference to another variable",
            env(&[("NVIDIA_VISIBLE_DEVICES", Some("$(X)"))]),
        ),
        ("round: void", env(&[("NVIDIA_VISIBLE_DEVICES", Some("void"))])),
        ("round: an old image's version", env(&[cuda])),
        (
            "round: the same with an empty requirement",
            env(&[cuda, ("NVIDIA_REQUIRE_CUDA", Some(""))]),
        ),
        (
            "round: the same with a requirement",
            env(&[cuda, ("NVIDIA_REQUIRE_CUDA", Some("cuda>=12"))]),
        ),
        ("round: the same with void", env(&[cuda, ("NVIDIA_VISIBLE_DEVICES", Some("void"))])),
        ("round: MIG capabilities", env(&[("NVIDIA_MIG_MONITOR_DEVICES", Some("all"))])),
        ("round: IMEX channels", env(&[("NVIDIA_IMEX_CHANNELS", Some("0"))])),
        ("round: a resource of swarm", env(&[("DOCKER_RESOURCE_GPU", Some("0"))])),
        ("round: other variables of NVIDIA's", env(&[("NVIDIA_DRIVER_CAPABILITIES", None)])),
        ("round: a CDI annotation", annotated("cdi.k8s.io/x", "nvidia.com/gpu=0")),
        ("round: one of another vendor", annotated("cdi.k8s.io/x", "vendor.com/net=eth0")),
        ("round: an NRI annotation", annotated("nvidia.cdi.k8s.io/container.web", "0")),
        ("round: the same for the whole pod", annotated("nvidia.cdi.k8s.io", "all")),
        ("round: a list of volumes", mounted("/dev/null", "", &format!("{devices}/all"))),
        (
            "round: the same otherwise written",
            mounted("/dev/null", "", &format!("/{devices}/./0/")),
        ),
        ("round: nothing of the list", mounted("/dev/null", "", &format!("{devices}/void"))),
        ("round: a device otherwise written", mounted("//dev/./nvidia0", "", "/x")),
        ("round: a device by its directory", mounted("/dev/", "nvidia0", "/x")),
        ("round: another device", mounted("/dev/", "null", "/x")),
        (
            "round: a device that a variable names",
            below(round(), "/", "subPathExpr", "dev/$(WHERE)"),
        ),
        (
            "round: the same in another directory",
            below(round(), "/", "subPathExpr", "dev/snd/$(WHERE)"),
        ),
    ];
    let mut all: Vec<Case> = pods.into_iter().map(|(name, pod)| (name, of_pod(&pod))).collect();
    let led = pool(env(&[cuda]), "led");
    all.push(("an old image's version by a class that is led", of_pod(&led)));
    let unknown = pool(env(&[cuda]), "old");
    all.push(("the same, where nobody knows where it leads", of_pod(&unknown)));
    all
}

pub(super) fn cases() -> Vec<Case> {
    let quiet = || pod(json!({}));
    let operand = |namespace: &str| {
        let pod = class(visible(quiet(), "all"), "nvidia");
        let mut review =
            of_pod(&with(pod, "/spec/containers/0/image", json!(format!("{OPERAND}:3.3.9"))));
        review["request"]["namespace"] = json!(namespace);
        review
    };
    let debugged = |value: &str| {
        let running = with(class(asking(), "nvidia"), "/spec/nodeName", json!("gpu-1"));
        let debugger = json!([{"name": "debugger", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]}]);
        let debugged = with(running.clone(), "/spec/ephemeralContainers", debugger);
        review("Pod", "UPDATE", "ephemeralcontainers", debugged, running)
    };
    let both = with(
        class(asking(), "nvidia"),
        "/spec/affinity",
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-2"]}]}
        ]}}}),
    );
    let pods = [
        (
            "nvidia's class with GPU memory, where its handler bypasses mpsgate",
            class(asking(), "nvidia"),
        ),
        ("the same, on the nodes where it does", pool(class(asking(), "nvidia"), "round")),
        ("the same, on the nodes where it is led", pool(class(asking(), "nvidia"), "led")),
        ("the same, on such a node by its name's field", both),
        ("the same, on a node of nobody's", pool(class(asking(), "nvidia"), "cpu")),
        (
            "the same, on a node that says nothing of its handlers",
            pool(class(asking(), "nvidia"), "old"),
        ),
        ("nvidia's class without GPU memory", class(quiet(), "nvidia")),
        ("the same, with all cards", pool(class(visible(quiet(), "all"), "nvidia"), "round")),
        ("a class that leads through mpsgate", pool(class(asking(), "mpsgate"), "round")),
        ("a class of Kata, on nodes without GPUs", class(visible(quiet(), "all"), "kata")),
        ("a class that is not there", class(asking(), "gvisor")),
        ("a class without a handler", class(asking(), "hollow")),
    ];
    let mut all: Vec<Case> = pods.into_iter().map(|(name, pod)| (name, of_pod(&pod))).collect();
    all.extend([
        ("an exempt operand of the GPU operator, with all cards", operand("gpu-operator")),
        ("the same image elsewhere", operand("tenant")),
        ("a debugger with all cards in a pod that bypasses mpsgate", debugged("all")),
        ("a debugger without", debugged("void")),
        (
            "a Deployment of nvidia's class with GPU memory",
            template("Deployment", "CREATE", &class(asking(), "nvidia"), None),
        ),
    ]);
    all.extend(ways());
    all.extend(steered());
    all
}

/// Pods that may go to the nodes of both pools, by a scheduler that asks our extender and by
/// another one; and what is asked again of those that wait.
fn steered() -> Vec<Case> {
    let both = |pod: Value| {
        with(
            pod,
            "/spec/affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["round", "led"]}]}
            ]}}}),
        )
    };
    let other = || both(class(asking(), "nvidia"));
    let placed = |pod: Value| with(pod, "/spec/schedulerName", json!("mpsgate"));
    let node = |pod: Value| with(pod, "/spec/nodeName", json!("gpu-1"));
    let opened = |pod: Value| {
        let more = with(pod.clone(), "/spec/tolerations", json!([{"operator": "Exists"}]));
        review("Pod", "UPDATE", "", more, pod)
    };
    let shows = both(class(visible(pod(json!({})), "all"), "nvidia"));
    vec![
        ("steered: one of its nodes bypasses mpsgate", of_pod(&placed(other()))),
        ("steered: the same, and nobody steers it", of_pod(&other())),
        ("steered: each of its nodes does", of_pod(&pool(placed(other()), "round"))),
        ("steered: it names its node", of_pod(&node(placed(other())))),
        ("steered: without GPU memory, with all cards", of_pod(&placed(shows))),
        ("steered: a Deployment", template("Deployment", "CREATE", &placed(other()), None)),
        ("opened: more is tolerated, and nobody steers it", opened(other())),
        ("opened: the same, and it is steered", opened(placed(other()))),
        ("opened: the same, and it has its node", opened(node(other()))),
        ("opened: the same, on nodes where it is led", opened(pool(other(), "led"))),
        ("opened: the same, and it shows no GPU", opened(both(class(pod(json!({})), "nvidia")))),
    ]
}
