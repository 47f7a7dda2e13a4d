//! Pods that choose a handler, in a cluster where one node leads NVIDIA's through mpsgate and another does not.

use std::collections::BTreeMap;

use mpsgate_cluster::handlers::{Class, Handlers, Known, Node};
use mpsgate_config::Exempt;
use serde_json::{Value, json};

use super::{Case, asking, of_pod, pod, review, template, visible, with};

/// One of the GPU operator's.
const OPERAND: &str = "nvcr.io/nvidia/k8s/dcgm-exporter";

pub(crate) fn exempt() -> Vec<Exempt> {
    vec![Exempt { namespace: "gpu-operator".to_owned(), image: OPERAND.to_owned() }]
}

/// Nodes `gpu-1` and `gpu-2`, whose label `pool` is `round` and `led`; `gpu-3` in the pool `old` says nothing of its handlers.
pub(crate) fn known() -> Known {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let node = |pool: &str, handlers| Node {
        labels: [("pool".to_owned(), pool.to_owned())].into(),
        taints: Vec::new(),
        handlers,
    };
    let says = |led: &[&str], round: &[&str]| {
        Ok(Handlers { default: Some("mpsgate".to_owned()), led: names(led), round: names(round) })
    };
    let class = |handler: &str, pool: Option<&str>| Class {
        handler: handler.to_owned(),
        selector: pool.map(|pool| ("pool".to_owned(), pool.to_owned())).into_iter().collect(),
        tolerations: Vec::new(),
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
    }
}

fn class(pod: Value, name: &str) -> Value {
    with(pod, "/spec/runtimeClassName", json!(name))
}

fn pool(pod: Value, name: &str) -> Value {
    with(pod, "/spec/nodeSelector", json!({"pool": name}))
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
        ("nvidia's class with GPU memory, where its handler goes round", class(asking(), "nvidia")),
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
        ("a debugger with all cards in a pod that goes round", debugged("all")),
        ("a debugger without", debugged("void")),
        (
            "a Deployment of nvidia's class with GPU memory",
            template("Deployment", "CREATE", &class(asking(), "nvidia"), None),
        ),
    ]);
    all
}
