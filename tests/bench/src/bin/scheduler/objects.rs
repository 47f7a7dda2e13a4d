//! Nodes and pods as an API server has them, and questions as kube-scheduler sends them.

use mpsgate_cluster::{Container, Node, Pod};
use mpsgate_model::Kind;
use serde_json::{Value, json};

/// A node with its cards, as mpsgated reports them.
pub(crate) fn node(node: &Node, version: usize) -> Value {
    let report = json!({"version": 1, "cards": node.cards}).to_string();
    json!({
        "metadata": {
            "name": node.name, "uid": format!("node-{version}"), "resourceVersion": version.to_string(),
            "labels": {"kubernetes.io/hostname": node.name, "ack.node.gpu.schedule": "mps"},
            "annotations": {"mpsgate.io/cards": report},
        },
    })
}

/// A pod; bound where it has a node, with its cards written on it.
pub(crate) fn pod(pod: &Pod, version: usize) -> Value {
    let mut annotations = serde_json::Map::new();
    if let (Some(node), Some(layout)) = (&pod.node, &pod.layout) {
        let placed = json!({"version": 1, "node": node, "time": "2026-01-31T12:00:00Z", "containers": layout});
        annotations.insert("mpsgate.io/placement".to_owned(), placed.to_string().into());
    }
    let of = |main: bool| {
        let wanted = move |one: &&Container| (one.kind == Kind::Main) == main;
        pod.request.containers.iter().filter(wanted).map(container).collect::<Vec<_>>()
    };
    let created = "2026-01-31T11:59:58Z";
    json!({
        "metadata": {
            "name": pod.name, "generateName": "inference-5d59d67564-", "namespace": pod.namespace, "uid": pod.uid,
            "resourceVersion": version.to_string(), "creationTimestamp": created, "annotations": annotations,
            "labels": {"app": "inference", "pod-template-hash": "5d59d67564"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "inference-5d59d67564",
                "uid": "3bd5ea1b-4dd6-4f9c-8e5e-2ff1ba3da1a4", "controller": true, "blockOwnerDeletion": true}],
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "time": created,
                "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:app": {},
                "f:pod-template-hash": {}}, "f:ownerReferences": {".": {}, "k:{\"uid\":\"3bd5ea1b-4dd6-4f9c-8e5e-2ff1ba3da1a4\"}": {}}},
                "f:spec": {"f:containers": {"k:{\"name\":\"main\"}": {".": {}, "f:env": {}, "f:image": {}, "f:imagePullPolicy": {},
                "f:name": {}, "f:resources": {".": {}, "f:limits": {".": {}, "f:aliyun.com/gpu-mem": {}}}}}, "f:dnsPolicy": {},
                "f:enableServiceLinks": {}, "f:hostIPC": {}, "f:restartPolicy": {}, "f:schedulerName": {}}}}],
        },
        "spec": {
            "volumes": [{"name": "kube-api-access-x7k2p", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}}],
            "initContainers": of(false), "containers": of(true), "nodeName": pod.node,
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "serviceAccount": "default", "hostIPC": true, "securityContext": {},
            "schedulerName": "default-scheduler", "priority": 0, "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        },
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    })
}

fn container(one: &Container) -> Value {
    let mut limits = json!({"aliyun.com/gpu-mem": (one.memory.0 / 1024).to_string()});
    if one.core_percent > 0 {
        limits["aliyun.com/gpu-core.percentage"] = one.core_percent.to_string().into();
    }
    json!({
        "name": one.name, "image": "registry.example.com/models/inference:2026.1", "imagePullPolicy": "IfNotPresent",
        "command": ["/usr/bin/serve"], "args": ["--model", "/models/7b", "--port", "8080"],
        "env": [{"name": "MODEL", "value": "7b"}, {"name": "LOG_LEVEL", "value": "info"}],
        "resources": {"limits": limits, "requests": limits},
        "volumeMounts": [{"name": "kube-api-access-x7k2p", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
    })
}

/// `ExtenderArgs` with `nodeCacheCapable: true`, as Go writes it. The pod is its JSON.
pub(crate) fn question(pod: &str, names: &[&str]) -> String {
    let names = serde_json::to_string(names).expect("strings are JSON");
    format!(r#"{{"Pod":{pod},"Nodes":null,"NodeNames":{names}}}"#)
}
