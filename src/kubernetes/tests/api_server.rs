//! Against a real API server (1.20.2, tests/k8s/api-server), as the user mpsgated, who may do what
//! `RULES` says and nothing else. Skipped, with the reason, where Kubernetes was not built
//! (`tests/k8s/build`; not by this test: it takes minutes).

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event as CoreEvent, Namespace, Node as CoreNode, Pod as CorePod};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use mpsgate_kubernetes::{
    CARDS, ConditionReport, Event, NodeReport, Pods, RULES, Reason, Settings, Severity, State,
    Subject, bound_pods, events, node, pods,
};
use mpsgate_model::{CardReport, Kind, Mib};
use mpsgate_testing::need;
use mpsgate_testing::programs::cache;
use serde_json::{Value, json};
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(90);
const NODE: &str = "gpu-1";

/// The server; it ends when its stdin does.
struct Server {
    process: Child,
    dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Result<Self, &'static str> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let built = std::fs::read_dir(cache()).ok().is_some_and(|mut all| {
            all.any(|one| {
                one.is_ok_and(|one| one.file_name().to_string_lossy().starts_with("kubernetes-"))
            })
        });
        if !built {
            return Err("needs Kubernetes; tests/k8s/build makes it");
        }
        let dir = tempfile::tempdir().expect("a directory");
        #[expect(clippy::disallowed_types, reason = "the server under test is a program")]
        let mut process = std::process::Command::new(repository.join("tests/k8s/api-server"))
            .arg("--until-eof")
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("tests/k8s/api-server starts");
        let mut line = String::new();
        let out = process.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("it speaks");
        assert_eq!(line.trim(), "ready", "the API server says why on stderr");
        Ok(Self { process, dir })
    }

    fn kubeconfig(&self, user: &str) -> PathBuf {
        self.dir.path().join(format!("{user}.kubeconfig"))
    }

    async fn admin(&self) -> Client {
        let file = Kubeconfig::read_from(self.kubeconfig("admin")).expect("written");
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .expect("valid");
        Client::try_from(config).expect("valid")
    }

    fn settings(&self) -> Settings {
        Settings::find(Some(self.kubeconfig("mpsgated")), NODE).expect("named")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ended = self.process.wait();
    }
}

/// The role of `RULES`, less one verb where that is asked for; and the user bound to it.
async fn grant(admin: &Client, without: Option<(&str, &str)>) {
    let rules: Vec<Value> = RULES
        .iter()
        .map(|rule| {
            let verbs: Vec<_> =
                rule.verbs.iter().filter(|verb| without != Some((rule.resource, **verb))).collect();
            json!({"apiGroups": [rule.group], "resources": [rule.resource], "verbs": verbs})
        })
        // An empty rule is none.
        .filter(|rule| rule["verbs"] != json!([]))
        .collect();
    let roles = Api::<ClusterRole>::all(admin.clone());
    let role = json!({"metadata": {"name": "mpsgated"}, "rules": rules});
    let patch = PatchParams::apply("test").force();
    let typed = |mut object: Value, kind: &str| {
        object["apiVersion"] = "rbac.authorization.k8s.io/v1".into();
        object["kind"] = kind.into();
        object
    };
    roles
        .patch("mpsgated", &patch, &Patch::Apply(typed(role, "ClusterRole")))
        .await
        .expect("the role");
    let binding = json!({
        "metadata": {"name": "mpsgated"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mpsgated"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "mpsgated"}],
    });
    let bindings = Api::<ClusterRoleBinding>::all(admin.clone());
    bindings
        .patch("mpsgated", &patch, &Patch::Apply(typed(binding, "ClusterRoleBinding")))
        .await
        .expect("the binding");
}

async fn make_node(admin: &Client) {
    let node: CoreNode = serde_json::from_value(json!({
        "metadata": {"name": NODE, "labels": {"ack.node.gpu.schedule": "mps", "other": "kept"}, "annotations": {"other": "kept"}},
    }))
    .expect("a node");
    Api::<CoreNode>::all(admin.clone())
        .create(&PostParams::default(), &node)
        .await
        .expect("created");
    let status = json!({"status": {"capacity": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}});
    Api::<CoreNode>::all(admin.clone())
        .patch_status(NODE, &PatchParams::default(), &Patch::Strategic(status))
        .await
        .expect("patched");
}

async fn make_pod(admin: &Client, name: &str, memory: &str) -> String {
    let pod: CorePod = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": NODE, "terminationGracePeriodSeconds": 0,
            "initContainers": [{"name": "first", "image": "x", "resources": {"limits": {"aliyun.com/gpu-mem": "2"}}}],
            "containers": [{"name": "main", "image": "x", "resources": {"limits": {"aliyun.com/gpu-mem": memory}}}],
        },
    }))
    .expect("a pod");
    let made = Api::<CorePod>::namespaced(admin.clone(), "default")
        .create(&PostParams::default(), &pod)
        .await;
    made.expect("created").metadata.uid.expect("every object has one")
}

/// With bytes in its `managedFields` that are no text, as whoever makes a pod may have it. A server
/// that keeps them sends them in each list that the pod is in.
async fn make_odd_pod(admin: &Client) {
    let head = format!(
        r#"{{"apiVersion":"v1","kind":"Pod",
            "spec":{{"nodeName":"{NODE}","containers":[{{"name":"main","image":"x"}}]}},
            "metadata":{{"name":"odd","managedFields":[{{"manager":"x","operation":"Update","apiVersion":"v1",
                "time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":"#
    );
    let parts: [&[u8]; 5] = [
        head.as_bytes(),
        br#"{"f:metadata":{"f:annotations":{"f:x":{"f:"#,
        b"\xff\xfe",
        br#"":{}}}}}"#,
        b"}]}}",
    ];
    let pods = kube::core::Request::new("/api/v1/namespaces/default/pods");
    let request = pods.create(&PostParams::default(), parts.concat()).expect("a request");
    match admin.request_text(request).await {
        Ok(_) | Err(kube::Error::FromUtf8(_)) => {}
        Err(error) => panic!("it is not made: {error}"),
    }
}

fn report() -> NodeReport {
    NodeReport {
        cards: Some(vec![CardReport {
            name: "Tesla T4".to_owned(),
            ..CardReport::example("GPU-1", 0, Mib(15360))
        }]),
        ready: Some(ConditionReport {
            holds: Some(true),
            reason: "Ready".to_owned(),
            message: "1 card".to_owned(),
        }),
        ..NodeReport::default()
    }
}

fn event(uid: &str, message: &str) -> Event {
    Event {
        subject: Subject::Pod {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            uid: uid.to_owned(),
        },
        reason: Reason::GpuMemoryRefused,
        severity: Severity::Warning,
        message: message.to_owned(),
    }
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited too long for: {what}"))
}

/// One server for all of it, as it takes seconds to start.
#[tokio::test]
async fn everything_works_with_the_rights_of_rules_and_each_thing_fails_without_its_own() {
    let server = need!(Server::start());
    let admin = server.admin().await;
    within("the namespace", async {
        while Api::<Namespace>::all(admin.clone()).get("default").await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    make_node(&admin).await;
    grant(&admin, None).await;
    pods_come_and_go(&server, &admin).await;
    the_node_is_written_and_taken_back(&server, &admin).await;
    the_same_event_is_counted(&server, &admin).await;
    for rule in &RULES {
        for verb in rule.verbs {
            grant(&admin, Some((rule.resource, verb))).await;
            missing(&server, &admin, rule.resource, verb).await;
        }
    }
}

async fn pods_come_and_go(server: &Server, admin: &Client) {
    let (mut seen, run) = pods(server.settings());
    let check = async {
        within("the list", seen.wait_for(|pods| pods.state.is_current())).await.expect("polled");
        assert!(seen.borrow().is_empty());
        // It stays: every other list and watch here has it.
        make_odd_pod(admin).await;
        let has_odd = |pods: &Arc<Pods>| pods.iter().any(|pod| pod.name == "odd");
        within("the odd pod", seen.wait_for(has_odd)).await.expect("polled");
        let (mut anew, run) = pods(server.settings());
        let listed = within("another list", anew.wait_for(has_odd));
        tokio::select! { never = run => match never {}, listed = listed => drop(listed.expect("polled")) }
        let uid = make_pod(admin, "web", "7k").await;
        let shown = within("the pod", seen.wait_for(|pods| pods.get(&uid).is_some()))
            .await
            .expect("polled")
            .clone();
        let bound = bound_pods(&shown);
        assert_eq!(bound.len(), 1);
        assert_eq!(bound[0].request.gpu_mem, 7000);
        assert_eq!(bound[0].containers[0].1, Kind::Init);
        Api::<CorePod>::namespaced(admin.clone(), "default")
            .delete("web", &DeleteParams::default().grace_period(0))
            .await
            .expect("deleted");
        within("the end of the pod", seen.wait_for(|pods| pods.get(&uid).is_none()))
            .await
            .expect("polled");
    };
    tokio::select! { never = run => match never {}, () = check => {} }
}

async fn the_node_is_written_and_taken_back(server: &Server, admin: &Client) {
    let (send, receive) = watch::channel(Some(report()));
    let (mut seen, run) = node(server.settings(), receive);
    let nodes = Api::<CoreNode>::all(admin.clone());
    let ready = |node: &CoreNode| {
        let conditions = node.status.clone().unwrap_or_default().conditions.unwrap_or_default();
        conditions.into_iter().find(|condition| condition.type_ == "GPUMemorySharingReady")
    };
    let check = async {
        let labels = within("the node", seen.wait_for(|node| node.state.is_current()))
            .await
            .expect("polled")
            .labels
            .clone();
        assert_eq!(labels.schedule.as_deref(), Some("mps"));
        let written = within("the writes", async {
            loop {
                let node = nodes.get(NODE).await.expect("there");
                if ready(&node).is_some() {
                    break node;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        let meta = &written.metadata;
        let annotations = meta.annotations.clone().unwrap_or_default();
        assert!(annotations[CARDS].contains("GPU-1") && annotations["other"] == "kept");
        let labels = meta.labels.clone().unwrap_or_default();
        assert_eq!(labels["aliyun.accelerator/nvidia_name"], "Tesla-T4");
        assert_eq!(labels["aliyun.accelerator/nvidia_mem"], "15360MiB");
        assert_eq!(labels["other"], "kept");
        let capacity = written.status.clone().unwrap_or_default().capacity.unwrap_or_default();
        assert_eq!(
            (capacity["aliyun.com/gpu-count"].0.as_str(), capacity["cpu"].0.as_str()),
            ("1", "8")
        );
        let version = meta.resource_version.clone();
        // Nothing changed, nothing is written: a label of somebody else's is the next change.
        let other = json!({"metadata": {"labels": {"other": "changed"}}});
        let next = nodes
            .patch(NODE, &PatchParams::default(), &Patch::Merge(other))
            .await
            .expect("patched");
        assert_ne!(version, next.metadata.resource_version);
        send.send_replace(Some(NodeReport { cards: Some(Vec::new()), ..NodeReport::default() }));
        within("what was written is taken away", async {
            loop {
                let node = nodes.get(NODE).await.expect("there");
                let annotations = node.metadata.annotations.clone().unwrap_or_default();
                if ready(&node).is_none() && !annotations.contains_key(CARDS) {
                    let capacity =
                        node.status.clone().unwrap_or_default().capacity.unwrap_or_default();
                    assert!(
                        !capacity.contains_key("aliyun.com/gpu-count")
                            && capacity.contains_key("cpu")
                    );
                    let conditions = node.status.unwrap_or_default().conditions.unwrap_or_default();
                    assert!(conditions.iter().any(|condition| condition.type_ == "Ready"));
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    };
    tokio::select! { never = run => match never {}, () = check => {} }
}

async fn events_of(admin: &Client, uid: &str) -> Vec<CoreEvent> {
    let of_pod = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
    Api::<CoreEvent>::all(admin.clone()).list(&of_pod).await.expect("listed").items
}

async fn the_same_event_is_counted(server: &Server, admin: &Client) {
    let (recorder, run) = events(server.settings());
    let check = async {
        recorder.report(event("counted", "no memory; hint: less"));
        within("the event", async {
            while events_of(admin, "counted").await.is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        recorder.report(event("counted", "no memory; hint: less"));
        recorder.report(Event { subject: Subject::Node, ..event("", "a fault") });
        within("the count", async {
            while events_of(admin, "counted").await[0].count != Some(2) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        let all = events_of(admin, "counted").await;
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].reason.as_deref(), Some("GPUMemoryRefused"));
        within("the node's event", async {
            while events_of(admin, NODE).await.is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    };
    tokio::select! { never = run => match never {}, () = check => {} }
}

/// What needs `verb` on `resource` says so, and does not happen.
async fn missing(server: &Server, admin: &Client, resource: &str, verb: &str) {
    let what = format!("a word about {verb} {resource}");
    let forbidden = |state: &State| match state {
        State::Failing { error, hint } | State::Stale { error, hint, .. } => {
            error.contains("forbidden") && hint.contains("clusterrole")
        }
        _ => false,
    };
    match (resource, verb) {
        ("pods", _) => {
            let (mut seen, run) = pods(server.settings());
            let check = within(&what, seen.wait_for(|pods| forbidden(&pods.state)));
            tokio::select! { never = run => match never {}, _ = check => {} }
        }
        ("nodes", "list" | "watch") => {
            let (_send, receive) = watch::channel(None);
            let (mut seen, run) = node(server.settings(), receive);
            let check = within(&what, seen.wait_for(|node| forbidden(&node.state)));
            tokio::select! { never = run => match never {}, _ = check => {} }
        }
        ("nodes" | "nodes/status", _) => {
            // Metadata is written first: without cards only the status differs.
            let mut wanted = report();
            if resource == "nodes/status" {
                wanted.cards = Some(Vec::new());
            }
            let (_send, receive) = watch::channel(Some(wanted));
            let (mut seen, run) = node(server.settings(), receive);
            let check = within(
                &what,
                seen.wait_for(|node| {
                    node.write_error.as_ref().is_some_and(|error| error.contains("forbidden"))
                }),
            );
            tokio::select! { never = run => match never {}, _ = check => {} }
        }
        ("events", _) => {
            let uid = format!("without-{verb}");
            let (recorder, run) = events(server.settings());
            let check = async {
                recorder.report(event(&uid, "once"));
                if verb == "patch" {
                    within("the event", async {
                        while events_of(admin, &uid).await.is_empty() {
                            tokio::time::sleep(Duration::from_millis(50)).await;
                        }
                    })
                    .await;
                    recorder.report(event(&uid, "once"));
                }
                // It is tried again, so the right that comes later shows that it was wanting.
                tokio::time::sleep(Duration::from_secs(2)).await;
                let written = events_of(admin, &uid).await;
                assert_eq!(
                    written.iter().filter_map(|event| event.count).sum::<i32>(),
                    i32::from(verb == "patch")
                );
                grant(admin, None).await;
                let wanted = if verb == "patch" { 2 } else { 1 };
                within(&what, async {
                    while events_of(admin, &uid)
                        .await
                        .iter()
                        .filter_map(|event| event.count)
                        .sum::<i32>()
                        != wanted
                    {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                })
                .await;
            };
            tokio::select! { never = run => match never {}, () = check => {} }
        }
        _ => panic!("a rule without a test: {verb} {resource}"),
    }
}
