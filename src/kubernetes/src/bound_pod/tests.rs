use serde_json::{Value, json};

use super::*;

/// A pod of `(list, name, gpu-mem, state)`; a sidecar is written `sidecars`.
fn pod(policy: &str, deleting: bool, containers: &[(&str, &str, &str, Value)]) -> Pod {
    let (mut init, mut main, mut init_states, mut main_states) = (vec![], vec![], vec![], vec![]);
    for (list, name, memory, state) in containers {
        let mut container =
            json!({"name": name, "resources": {"limits": {"aliyun.com/gpu-mem": memory}}});
        let status = json!({"name": name, "state": state});
        if *list == "main" {
            main.push(container);
            main_states.push(status);
            continue;
        }
        if *list == "sidecar" {
            container["restartPolicy"] = "Always".into();
        }
        init.push(container);
        init_states.push(status);
    }
    let mut wire = json!({
        "metadata": {"uid": "u", "name": "p", "namespace": "n"},
        "spec": {"restartPolicy": policy, "initContainers": init, "containers": main},
        "status": {"initContainerStatuses": init_states, "containerStatuses": main_states},
    });
    if deleting {
        wire["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z".into();
    }
    Pod::reduce(serde_json::from_value(wire).expect("a pod")).expect("with a uid")
}

fn memory(pod: &Pod) -> Option<u64> {
    bound_pod(pod).map(|bound| mib(&bound.request) / 1024)
}

fn mib(limits: &Limits) -> u64 {
    limits.memory().fold(0, |sum, (_, mib)| sum.saturating_add(mib))
}

fn waiting() -> Value {
    json!({})
}
fn running() -> Value {
    json!({"running": {}})
}
fn ended(code: i32) -> Value {
    json!({"terminated": {"exitCode": code}})
}

#[test]
fn counts_as_kubernetes_does() {
    let w = waiting;
    for (containers, gib) in [
        (vec![("main", "a", "3", w()), ("main", "b", "4", w())], 7),
        // Init containers run one after another, before the others.
        (
            vec![
                ("init", "i", "5", w()),
                ("init", "j", "9", w()),
                ("main", "a", "3", w()),
                ("main", "b", "4", w()),
            ],
            9,
        ),
        (vec![("init", "i", "5", w()), ("main", "a", "3", w()), ("main", "b", "4", w())], 7),
        // A sidecar is added to what runs after it, and not to what ran before.
        (vec![("sidecar", "s", "2", w()), ("main", "a", "3", w())], 5),
        (vec![("sidecar", "s", "2", w()), ("init", "i", "9", w()), ("main", "a", "3", w())], 11),
        (vec![("init", "i", "9", w()), ("sidecar", "s", "2", w()), ("main", "a", "3", w())], 9),
        (vec![("sidecar", "s", "2", w()), ("sidecar", "t", "2", w()), ("main", "a", "0", w())], 4),
    ] {
        assert_eq!(memory(&pod("Always", false, &containers)), Some(gib), "{containers:?}");
    }
}

#[test]
fn what_ended_for_good_counts_no_more() {
    let done =
        [("init", "i", "9", ended(0)), ("main", "a", "3", running()), ("main", "b", "4", ended(0))];
    assert_eq!(memory(&pod("Never", false, &done)), Some(3));
    // Between two restarts it still counts.
    assert_eq!(memory(&pod("Always", false, &done)), Some(7));
    let bound = bound_pod(&pod("Never", false, &done)).expect("something");
    assert_eq!(bound.containers.iter().map(|(name, ..)| name.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn a_pod_that_is_being_deleted_keeps_only_what_runs() {
    let containers = [
        ("main", "a", "3", running()),
        ("main", "b", "4", waiting()),
        ("main", "c", "5", ended(1)),
    ];
    assert_eq!(memory(&pod("Always", false, &containers)), Some(12));
    assert_eq!(memory(&pod("Always", true, &containers)), Some(3));
}

#[test]
fn a_finished_pod_and_one_without_gpu_take_nothing() {
    let mut finished = pod("Always", false, &[("main", "a", "3", waiting())]);
    finished.finished = true;
    assert_eq!(bound_pod(&finished), None);
    assert_eq!(bound_pod(&pod("Always", false, &[("main", "a", "0", waiting())])), None);
}

#[test]
fn a_limit_that_cannot_be_counted_counts_for_nothing() {
    let containers = [("main", "a", "1500m", waiting()), ("main", "b", "4", waiting())];
    let bound = bound_pod(&pod("Always", false, &containers)).expect("something");
    assert_eq!(mib(&bound.request), 4096);
}

#[test]
fn resources_are_counted_apart_and_added_up_as_memory() {
    let limits = |gpu_mem, slices: &[(u64, u64)]| Limits {
        gpu_mem,
        slices: slices.iter().copied().collect(),
        ..Limits::default()
    };
    let mut sum = limits(7, &[(10, 1)]);
    sum.add(&limits(1, &[(10, 1), (5, 1)]));
    assert_eq!(sum, limits(8, &[(10, 2), (5, 1)]));
    assert_eq!(mib(&sum), 33 * 1024);
    sum.raise(&limits(9, &[(10, 1), (20, 1)]));
    assert_eq!(sum, limits(9, &[(10, 2), (5, 1), (20, 1)]));
    assert_eq!(mib(&limits(u64::MAX, &[(u64::MAX, 2)])), u64::MAX);
    let units = Limits { units: [(256, 3)].into(), ..limits(1, &[(2, 1)]) };
    let each: Vec<_> = units.memory().collect();
    let named = |name: &str, mib| (name.to_owned(), mib);
    assert_eq!(
        each,
        [
            named("aliyun.com/gpu-mem", 1024),
            named("nvidia.com/gpu-2gb", 2048),
            named("mpsgate.io/gpu-mem-256mi", 768)
        ]
    );
}

#[test]
fn bound_pods_come_by_uid() {
    let pods: Pods = ["b", "a"]
        .into_iter()
        .map(|uid| Pod {
            uid: uid.to_owned(),
            ..pod("Always", false, &[("main", "m", "1", waiting())])
        })
        .collect();
    let uids: Vec<_> = bound_pods(&pods).into_iter().map(|bound| bound.uid).collect();
    assert_eq!(uids, ["a", "b"]);
}
