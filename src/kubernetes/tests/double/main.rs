//! What a real API server cannot be made to do: garbage, 410 Gone, 429, silence, a connection cut
//! in the middle.

mod resources;
mod silence;

use std::sync::Arc;
use std::time::Duration;

use fake_api_server::{Answer, ApiServer, Request, Said, managed_fields, status};
use mpsgate_kubernetes::{
    Binder, ConditionReport, Event, NodeReport, Pods, Reason, Settings, Severity, State, Subject,
    events, node, pods,
};
use mpsgate_model::{CardReport, Mib};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::sync::watch;

/// How long anything may take. Pauses of the crate between attempts are part of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The API server of a kubeconfig, for the node gpu-1.
fn settings(kubeconfig: &NamedTempFile) -> Settings {
    Settings::find(Some(kubeconfig.path().to_owned()), "gpu-1").expect("named")
}

fn pod(uid: &str, version: u32) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"uid": uid, "name": uid, "namespace": "n", "resourceVersion": version.to_string()},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "7"}}}]},
    })
}

fn bare_node() -> Value {
    json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "gpu-1", "resourceVersion": "5"}})
}

fn added(pod: &Value) -> Value {
    json!({"type": "ADDED", "object": pod})
}

fn bookmark(kind: &str, version: &str) -> Value {
    let metadata = json!({"resourceVersion": version});
    json!({"type": "BOOKMARK", "object": {"kind": kind, "apiVersion": "v1", "metadata": metadata}})
}

/// Runs the pod watch on `script` until `done`.
async fn watched(
    script: Vec<Answer>,
    done: impl FnMut(&Arc<Pods>) -> bool,
) -> (Arc<Pods>, Vec<Request>) {
    let double = ApiServer::scripted(script);
    let (mut seen, run) = pods(settings(&double.kubeconfig));
    let shown = tokio::select! {
        never = run => match never {},
        shown = tokio::time::timeout(PATIENCE, seen.wait_for(done)) => {
            Arc::clone(&shown.expect("in time").expect("the sender is polled"))
        }
    };
    (shown, double.asked())
}

fn has(pods: &Pods, uid: &str) -> bool {
    pods.state.is_current() && pods.get(uid).is_some()
}

fn ready(holds: bool) -> NodeReport {
    let ready = ConditionReport {
        holds: Some(holds),
        reason: "NoDriver".to_owned(),
        message: "m".to_owned(),
    };
    NodeReport { ready: Some(ready), ..NodeReport::default() }
}

#[tokio::test]
async fn asks_for_the_pods_of_this_node_from_the_servers_cache() {
    let (pods, asked) = watched(
        vec![Answer::list(5, &[pod("a", 1)]), Answer::watch([added(&pod("b", 6))], None)],
        |pods| has(pods, "b"),
    )
    .await;
    assert_eq!(pods.len(), 2);
    let (list, watch) = (&asked[0].line, &asked[1].line);
    assert!(
        list.starts_with("GET /api/v1/pods?")
            && list.contains("fieldSelector=spec.nodeName%3Dgpu-1"),
        "{list}"
    );
    assert!(list.contains("resourceVersion=0"), "{list}");
    assert!(watch.contains("watch=true") && watch.contains("resourceVersion=5"), "{watch}");
    assert!(watch.contains("allowWatchBookmarks=true"), "{watch}");
}

fn poisoned(mut pod: Value) -> Value {
    pod["metadata"]["managedFields"] = managed_fields(1000);
    pod
}

fn odd(mut pod: Value) -> Value {
    pod["metadata"]["labels"] = json!({"a": 1});
    pod
}

#[tokio::test]
async fn an_object_that_cannot_be_read_keeps_nobody_from_the_others() {
    let script = vec![
        Answer::list(5, &[pod("a", 1), odd(pod("b", 2)), poisoned(pod("c", 3))]),
        Answer::watch(
            [
                added(&poisoned(pod("d", 6))),
                added(&odd(pod("e", 7))),
                json!({"type": "DELETED", "object": odd(pod("b", 8))}),
                added(&pod("f", 9)),
            ],
            None,
        ),
    ];
    let (pods, asked) = watched(script, |pods| has(pods, "f")).await;
    let mut uids: Vec<_> = pods.iter().map(|pod| pod.uid.as_str()).collect();
    uids.sort_unstable();
    // What e asks for can be read, so it counts.
    assert_eq!(uids, ["a", "c", "d", "e", "f"]);
    let left: Vec<_> = pods.left_out.iter().map(|one| (one.name.as_str(), one.counts)).collect();
    assert_eq!(left, [("n/e", true)]);
    assert_eq!(asked.len(), 2, "nothing is listed anew");
}

#[tokio::test]
async fn a_version_that_is_gone_is_listed_anew() {
    let gone = json!({"type": "ERROR", "object": status(410, "too old resource version")});
    let script = vec![
        Answer::list(5, &[pod("a", 1)]),
        Answer::watch([gone], None),
        Answer::list(9, &[pod("b", 8)]),
        Answer::Cut,
    ];
    let (pods, _) = watched(script, |pods| has(pods, "b")).await;
    assert!(pods.get("a").is_none(), "a pod that was deleted meanwhile is still shown");
}

#[tokio::test]
async fn a_connection_cut_in_mid_watch_is_watched_on_from_the_last_version() {
    let script = vec![
        Answer::list(5, &[pod("a", 1)]),
        Answer::watch([added(&pod("b", 6))], Some(Said::Cut)),
        Answer::watch([added(&pod("c", 7))], None),
    ];
    let (pods, asked) = watched(script, |pods| has(pods, "c")).await;
    assert_eq!(pods.len(), 3);
    assert!(
        asked[2].line.contains("watch=true") && asked[2].line.contains("resourceVersion=6"),
        "{}",
        asked[2].line
    );
}

#[tokio::test]
async fn a_server_that_went_away_leaves_the_old_pods_shown_as_stale() {
    let script = vec![
        Answer::list(5, &[pod("a", 1)]),
        Answer::watch([added(&pod("b", 6)).to_string(), "{\"type\":".to_owned()], Some(Said::Cut)),
    ];
    let (pods, _) = watched(script, |pods| matches!(pods.state, State::Stale { .. })).await;
    assert_eq!(pods.len(), 2);
}

#[tokio::test]
async fn garbage_too_many_requests_and_a_server_error_are_tried_again() {
    let script = vec![
        Answer::Whole(200, "<html>not you again</html>".to_owned()),
        Answer::refusal(429, "patience"),
        Answer::list(5, &[pod("a", 1)]),
        Answer::watch([added(&pod("b", 6))], None),
    ];
    let mut before = String::new();
    let (_, asked) = watched(script, |pods| {
        if let State::Failing { error, hint } = &pods.state {
            before += &format!("{error} | {hint}\n");
        }
        has(pods, "b")
    })
    .await;
    assert_eq!(asked.len(), 4);
    assert!(
        before.contains("cannot watch the pods of node gpu-1") && before.contains("patience"),
        "{before}"
    );
}

#[tokio::test]
async fn a_slow_server_leaves_the_pods_unknown_and_nothing_waits_for_it() {
    let double = ApiServer::scripted(vec![Answer::Silence]);
    let (seen, run) = pods(settings(&double.kubeconfig));
    tokio::select! {
        never = run => match never {},
        () = async { while double.asked().is_empty() { tokio::time::sleep(Duration::from_millis(10)).await } } => {}
    }
    assert_eq!(seen.borrow().state, State::Waiting);
}

#[tokio::test]
async fn a_node_that_is_not_there_is_named() {
    let double = ApiServer::scripted(vec![Answer::list(5, &[]), Answer::Cut]);
    let (_report, receive) = watch::channel(None);
    let (mut seen, run) = node(settings(&double.kubeconfig), receive);
    tokio::select! {
        never = run => match never {},
        shown = tokio::time::timeout(PATIENCE, seen.wait_for(|node| node.state != State::Waiting)) => {
            let shown = shown.expect("in time").expect("the sender is polled");
            let State::Failing { error, hint } = &shown.state else { panic!("{:?}", shown.state) };
            assert!(error.contains("knows no node gpu-1") && hint.contains("kubectl get nodes"), "{error} {hint}");
        }
    }
}

#[tokio::test]
async fn a_write_that_fails_is_shown_and_tried_again() {
    let mut written = bare_node();
    let condition = json!({"type": "GPUMemorySharingReady", "status": "False", "reason": "NoDriver", "message": "m"});
    written["status"] = json!({"conditions": [condition]});
    // List and watch come on one connection each, in this order; then the writes.
    let script = vec![
        Answer::list(5, &[bare_node()]),
        Answer::watch([bookmark("Node", "5")], None),
        Answer::refusal(403, "nodes \\\"gpu-1\\\" is forbidden"),
        Answer::Whole(200, written.to_string()),
    ];
    let double = ApiServer::scripted(script);
    let (report, receive) = watch::channel(None);
    let (mut seen, run) = node(settings(&double.kubeconfig), receive);
    let check = async {
        seen.wait_for(|node| node.state.is_current()).await.expect("polled");
        while double.asked().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        report.send_replace(Some(NodeReport { cards: Some(vec![]), ..ready(false) }));
        let shown = seen.wait_for(|node| node.write_error.is_some()).await.expect("polled");
        let error = shown.write_error.clone().expect("waited for");
        assert!(
            error.contains("patch the status of node gpu-1") && error.contains("clusterrole"),
            "{error}"
        );
        drop(shown);
        seen.wait_for(|node| node.write_error.is_none()).await.expect("polled");
    };
    tokio::select! {
        never = run => match never {},
        done = tokio::time::timeout(PATIENCE, check) => done.expect("in time"),
    }
    let asked = double.asked();
    assert_eq!(asked.len(), 4, "{asked:?}");
    assert!(asked[3].line.starts_with("PATCH /api/v1/nodes/gpu-1/status?"), "{}", asked[3].line);
}

#[tokio::test]
async fn events_are_written_again_after_a_failure_and_created_anew_when_forgotten() {
    let double = ApiServer::scripted(vec![
        Answer::refusal(503, "later"),
        created("p.1"),
        Answer::refusal(404, "gone"),
        created("p.2"),
    ]);
    let (recorder, run) = events(settings(&double.kubeconfig));
    let report = || recorder.report(of_pod("n", "no"));
    let asked = |n: usize| {
        let double = &double;
        async move {
            while double.asked().len() < n {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    let check = async {
        report();
        asked(2).await;
        // Until its answer was read, another one is part of the same.
        tokio::time::sleep(Duration::from_millis(300)).await;
        report();
        asked(4).await;
    };
    tokio::select! {
        never = run => match never {},
        done = tokio::time::timeout(PATIENCE, check) => done.expect("in time"),
    }
    let heads: Vec<_> = double.asked().into_iter().map(|asked| asked.line).collect();
    assert!(heads[0].starts_with("POST /api/v1/namespaces/n/events?"), "{heads:?}");
    assert!(heads[1].starts_with("POST ") && heads[3].starts_with("POST "), "{heads:?}");
    assert!(heads[2].starts_with("PATCH /api/v1/namespaces/n/events/p.1?"), "{heads:?}");
    assert_eq!(recorder.dropped(), 0);
}

fn created(name: &str) -> Answer {
    let event = json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": name}, "involvedObject": {}});
    Answer::Whole(201, event.to_string())
}

fn of_pod(namespace: &str, message: &str) -> Event {
    Event {
        subject: Subject::Pod {
            namespace: namespace.to_owned(),
            name: "p".to_owned(),
            uid: "u".to_owned(),
        },
        reason: Reason::GpuMemoryRefused,
        severity: Severity::Warning,
        message: message.to_owned(),
    }
}

/// One event is answered with `no`; how the paths of the requests go on when the node has a fault
/// then.
async fn after_a_refusal(no: Answer, wanted: usize) -> Vec<String> {
    let double = ApiServer::scripted(vec![no, created("fault"), created("other"), created("p.1")]);
    let (recorder, run) = events(settings(&double.kubeconfig));
    let asked = async |n: usize| {
        while double.asked().len() < n {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let check = async {
        recorder.report(of_pod("refusing", "no"));
        asked(1).await;
        recorder.report(Event {
            subject: Subject::Node,
            reason: Reason::MpsFault,
            ..of_pod("", "a fault")
        });
        asked(2).await;
        recorder.report(of_pod("team", "no"));
        asked(wanted).await;
    };
    tokio::select! {
        never = run => match never {},
        done = tokio::time::timeout(PATIENCE, check) => done.expect("in time"),
    }
    let namespace =
        |asked: &Request| asked.line.split('/').nth(4).map(str::to_owned).unwrap_or_default();
    double.asked().iter().map(namespace).collect()
}

#[tokio::test]
async fn an_event_that_the_api_server_refuses_is_put_aside_and_the_others_go_on() {
    for code in [402, 403, 409, 413, 418, 429, 500, 502, 503, 504] {
        let paths = after_a_refusal(Answer::refusal(code, "no"), 4).await;
        // What was refused comes again, when its time has come; never before another one twice.
        let others: Vec<&str> =
            paths.iter().map(String::as_str).filter(|path| *path != "refusing").collect();
        assert_eq!((others, paths.len()), (vec!["default", "team"], 4), "{code}: {paths:?}");
        assert_eq!(paths[0], "refusing", "{code}");
    }
}

#[tokio::test]
async fn an_event_that_is_never_answered_holds_up_its_own_namespace_alone() {
    let paths = after_a_refusal(Answer::Silence, 3).await;
    assert_eq!(paths, ["refusing", "default", "team"]);
}

#[tokio::test]
async fn a_node_whose_labels_may_not_be_written_has_its_condition_written() {
    let script = vec![
        Answer::list(5, &[bare_node()]),
        Answer::watch([bookmark("Node", "5")], None),
        Answer::refusal(403, "a policy forbids it"),
        Answer::Whole(200, bare_node().to_string()),
    ];
    let double = ApiServer::scripted(script);
    let (report, receive) = watch::channel(None);
    let (mut seen, run) = node(settings(&double.kubeconfig), receive);
    let check = async {
        seen.wait_for(|node| node.state.is_current()).await.expect("polled");
        while double.asked().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let card = CardReport {
            name: "A card".to_owned(),
            one_uid: false,
            ..CardReport::example("GPU-1", 0, Mib(1024))
        };
        report.send_replace(Some(NodeReport { cards: Some(vec![card]), ..ready(true) }));
        let shown = seen.wait_for(|node| node.write_error.is_some()).await.expect("polled");
        let error = shown.write_error.clone().expect("waited for");
        assert!(
            error.contains("cannot patch node gpu-1: ") && error.contains("a policy forbids it"),
            "{error}"
        );
    };
    tokio::select! {
        never = run => match never {},
        done = tokio::time::timeout(PATIENCE, check) => done.expect("in time"),
    }
    let asked = double.asked();
    assert!(asked[2].line.starts_with("PATCH /api/v1/nodes/gpu-1?"), "{asked:?}");
    assert!(asked[3].line.starts_with("PATCH /api/v1/nodes/gpu-1/status?"), "{asked:?}");
}

#[tokio::test]
async fn a_pod_is_bound_and_annotated_in_one_write_that_names_the_pod_that_was_read() {
    let bound =
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}"#;
    let lease = r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"l"},"spec":{"holderIdentity":"me"}}"#;
    let double = ApiServer::scripted(vec![
        Answer::Whole(200, pod("a", 7).to_string()),
        Answer::Whole(201, bound.to_owned()),
        Answer::Whole(200, lease.to_owned()),
        Answer::refusal(404, "no lease"),
    ]);
    let binder = Binder::new(settings(&double.kubeconfig), PATIENCE);
    let fetched = binder.pod("n", "a").await.expect("answered").expect("there");
    let annotations = [("mpsgate.io/placement".to_owned(), "{}".to_owned())].into();
    binder.bind(&fetched, "gpu-1", &annotations).await.expect("bound");
    assert_eq!(binder.lease_holder("n", "l").await.expect("answered").as_deref(), Some("me"));
    assert_eq!(binder.lease_holder("n", "l").await.expect("answered"), None);
    let asked = double.asked();
    assert_eq!(asked.len(), 4);
    assert!(
        asked[1].line.starts_with("POST /api/v1/namespaces/n/pods/a/binding?"),
        "{}",
        asked[1].line
    );
    let body: Value = serde_json::from_str(&asked[1].body).expect("JSON");
    let metadata = json!({
        "namespace": "n", "name": "a", "uid": "a", "resourceVersion": "7",
        "annotations": {"mpsgate.io/placement": "{}"},
    });
    assert_eq!((&body["metadata"], &body["target"]["name"]), (&metadata, &"gpu-1".into()));
    assert!(
        asked[2].line.contains("/apis/coordination.k8s.io/v1/namespaces/n/leases/l"),
        "{}",
        asked[2].line
    );
}
