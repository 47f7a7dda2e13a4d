use serde_json::{Value, json};

use super::*;

fn reduce(pod: Value) -> Pod {
    Pod::reduce(serde_json::from_value(pod).expect("a pod")).expect("with a uid")
}

fn with(spec: Value, status: Value) -> Pod {
    reduce(
        json!({"metadata": {"uid": "u", "name": "p", "namespace": "n"}, "spec": spec, "status": status}),
    )
}

/// The lifecycle of a container of `kind` under `policy`, with `state` reported.
fn life_of(list: &str, own: Value, policy: &str, state: Value) -> Lifecycle {
    let statuses = if list == "containers" { "containerStatuses" } else { "initContainerStatuses" };
    let mut container = own;
    container["name"] = "c".into();
    let pod = with(
        json!({"restartPolicy": policy, list: [container]}),
        json!({statuses: [{"name": "c", "state": state}]}),
    );
    pod.containers[0].lifecycle
}

#[test]
fn keeps_what_matters_of_a_pod_and_nothing_else() {
    let pod = reduce(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "uid": "u-1", "name": "web", "namespace": "shop", "deletionTimestamp": "2026-01-31T12:00:00Z",
            "labels": {"app": "web", "aliyun.com/gpu-count": "2"},
            "annotations": {
                "mpsgate.io/gpu-priority": "low", "ALIYUN_COM_GPU_MEM_IDX": "1",
                "scheduler.framework.gpushare.allocation": "{\"0\":{\"1\":7}}",
                "gpushare.alibabacloud.com/core-percentage": "{}", "kubernetes.io/config.hash": "abc",
                "kubectl.kubernetes.io/last-applied-configuration": "much",
                "mpsgate.io/long": "x".repeat(5000),
            },
        },
        "spec": {
            "nodeName": "gpu-1", "hostIPC": true, "restartPolicy": "OnFailure",
            "initContainers": [
                {"name": "fetch", "resources": {"limits": {"cpu": "500m", "aliyun.com/gpu-mem": "3"}}},
                {"name": "proxy", "restartPolicy": "Always", "resources": {}},
            ],
            "containers": [{"name": "main", "resources": {
                "limits": {"aliyun.com/gpu-mem": "1k", "nvidia.com/gpu-10gb": "1", "aliyun.com/gpu-count": 1},
                "requests": {"aliyun.com/gpu-mem": "1k"}}}],
            "ephemeralContainers": [{"name": "debug"}],
        },
        "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "x"}}}]},
    }));
    assert_eq!(
        (pod.uid.as_str(), pod.namespace.as_str(), pod.name.as_str()),
        ("u-1", "shop", "web")
    );
    assert_eq!(pod.static_hash.as_deref(), Some("abc"));
    assert!(pod.deleting && !pod.finished);
    assert_eq!(pod.gpu_count.as_deref(), Some("2"));
    let mut kept: Vec<_> = pod.annotations.keys().map(String::as_str).collect();
    kept.sort_unstable();
    assert_eq!(
        kept,
        [
            "ALIYUN_COM_GPU_MEM_IDX",
            "gpushare.alibabacloud.com/core-percentage",
            "mpsgate.io/gpu-priority",
            "scheduler.framework.gpushare.allocation"
        ]
    );
    let kinds: Vec<_> =
        pod.containers.iter().map(|c| (c.name.as_str(), c.kind, c.lifecycle)).collect();
    assert_eq!(
        kinds,
        [
            ("fetch", Kind::Init, Lifecycle::Waiting),
            ("proxy", Kind::Sidecar, Lifecycle::Waiting),
            ("main", Kind::Main, Lifecycle::Running)
        ]
    );
    let main = pod.container("main").expect("there").limits.clone().expect("readable");
    assert_eq!(
        main,
        Limits {
            gpu_mem: 1000,
            slices: BTreeMap::from([(10, 1)]),
            gpu_count: 1,
            ..Limits::default()
        }
    );
    assert!(pod.container("proxy").expect("there").limits.as_ref().expect("readable").is_empty());
    assert!(pod.container("debug").is_none());
}

#[test]
fn what_go_writes_as_null_is_empty() {
    let pod = reduce(json!({
        "metadata": {"uid": "u", "annotations": null},
        "spec": {"containers": null, "initContainers": null}, "status": null,
    }));
    assert!(pod.containers.is_empty());
    let pod =
        with(json!({"containers": [{"name": "c", "resources": {"limits": null}}]}), json!({}));
    assert!(pod.containers[0].limits.as_ref().expect("readable").is_empty());
}

#[test]
fn a_limit_that_cannot_be_counted_is_an_error_of_its_container_alone() {
    let pod = with(
        json!({"containers": [
            {"name": "bad", "resources": {"limits": {"aliyun.com/gpu-mem": "500m"}}},
            {"name": "good", "resources": {"limits": {"aliyun.com/gpu-mem": "7"}}},
        ]}),
        json!({}),
    );
    let error = pod.container("bad").expect("there").limits.clone().expect_err("no whole number");
    assert_eq!(error.to_string(), "limit aliyun.com/gpu-mem: \"500m\" cannot be counted");
    assert!(matches!(error, LimitError::Count { source: QuantityError::NotWhole, .. }));
    assert_eq!(pod.container("good").expect("there").limits.as_ref().expect("readable").gpu_mem, 7);
}

#[test]
fn a_container_that_ended_starts_again_as_its_policy_says() {
    let ended = |code: i32| json!({"terminated": {"exitCode": code}});
    for (list, own, policy, code, lifecycle) in [
        ("containers", json!({}), "Always", 0, Lifecycle::Between),
        ("containers", json!({}), "OnFailure", 0, Lifecycle::Ended),
        ("containers", json!({}), "OnFailure", 1, Lifecycle::Between),
        ("containers", json!({}), "Never", 1, Lifecycle::Ended),
        // Kubernetes 1.34: its own policy and rules.
        ("containers", json!({"restartPolicy": "Always"}), "Never", 1, Lifecycle::Between),
        ("containers", json!({"restartPolicy": "Never"}), "Always", 1, Lifecycle::Ended),
        (
            "containers",
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}),
            "Always",
            1,
            Lifecycle::Between,
        ),
        ("initContainers", json!({}), "Always", 0, Lifecycle::Ended),
        ("initContainers", json!({}), "Always", 1, Lifecycle::Between),
        ("initContainers", json!({}), "OnFailure", 0, Lifecycle::Ended),
        ("initContainers", json!({}), "Never", 1, Lifecycle::Ended),
        ("initContainers", json!({"restartPolicy": "Always"}), "Never", 0, Lifecycle::Between),
    ] {
        let case = format!("{list} {own} {policy} {code}");
        assert_eq!(life_of(list, own, policy, ended(code)), lifecycle, "{case}");
    }
    assert_eq!(
        life_of("containers", json!({}), "Never", json!({"waiting": {"reason": "x"}})),
        Lifecycle::Waiting
    );
    assert_eq!(
        life_of("containers", json!({}), "Never", json!({"running": {}})),
        Lifecycle::Running
    );
}

#[test]
fn a_static_pod_is_found_by_the_uid_that_its_containers_carry() {
    let pods: Pods = [reduce(json!({
        "metadata": {"uid": "mirror", "annotations": {"kubernetes.io/config.hash": "0123"}}
    }))]
    .into_iter()
    .collect();
    assert!(pods.get("mirror").is_some() && pods.get("0123").is_some() && pods.get("x").is_none());
}
