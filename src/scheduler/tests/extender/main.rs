//! The whole program but its signals, over HTTP, against an API server that fails as it is told.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code fails by panicking")]

mod removal;
mod shown;
mod steered;
mod strangers;
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser as _;
use fake_api_server::{Cluster, Fault, World};
use mpsgate_kubernetes::Patience;
use mpsgate_scheduler::{Arguments, SchedulerError, serve};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

struct Scheduler {
    address: SocketAddr,
    api: Cluster,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), SchedulerError>>,
}

impl Scheduler {
    async fn start(world: World, flags: &[&str]) -> Self {
        Self::start_with(world, flags, Patience::default()).await
    }

    async fn start_with(world: World, flags: &[&str], patience: Patience) -> Self {
        let api = Cluster::start(world);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let kubeconfig = api.server.kubeconfig.path().to_str().unwrap();
        let mut line =
            vec!["mpsgate-scheduler", "--kubeconfig", kubeconfig, "--namespace", "kube-system"];
        line.extend(flags);
        let arguments = Arguments::parse_from(line);
        let (stop, stopped) = oneshot::channel::<()>();
        let until = async move { drop(stopped.await) };
        let ended = tokio::spawn(serve(arguments, patience, listener, until));
        Self { address, api, stop, ended }
    }

    /// One that binds.
    async fn active(world: World) -> Self {
        let scheduler = Self::start(world, &[]).await;
        scheduler.until("/leaderz", 200).await;
        scheduler
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        ask(self.address, method, path, body).await
    }

    async fn post(&self, verb: &str, body: &Value) -> Value {
        let (code, answer) = self.ask("POST", &format!("/mpsgate/{verb}"), &body.to_string()).await;
        assert_eq!(code, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    async fn until(&self, path: &str, code: u16) -> String {
        let wait = async {
            loop {
                let (found, body) = self.ask("GET", path, "").await;
                if found == code {
                    return body;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("in time")
    }

    /// The error of a bind; empty where there was none.
    async fn bind(&self, pod: &str, node: &str) -> String {
        let args = json!({"PodName": pod, "PodNamespace": "default", "PodUID": format!("uid-{pod}"), "Node": node});
        self.post("bind", &args).await["Error"].as_str().unwrap().to_owned()
    }

    /// MiB that the ledger has on the first card of n1.
    async fn used(&self) -> u64 {
        let (_, body) = self.ask("GET", "/mpsgate/inspect/n1", "").await;
        let shown: Value = serde_json::from_str(&body).unwrap();
        shown["nodes"][0]["devs"][0]["usedMib"].as_u64().unwrap()
    }

    fn world<T>(&self, with: impl FnOnce(&mut World) -> T) -> T {
        self.api.world(with)
    }

    fn asked(&self, request: &str) -> usize {
        self.world(|world| world.asked.iter().filter(|asked| asked.ends_with(request)).count())
    }
}

/// Asks once, on a connection of its own.
async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // Whoever refuses a body need not read it.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The status, where there is an answer.
async fn try_ask(address: SocketAddr, path: &str) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.ok_or_else(|| std::io::Error::other("no answer"))
}

/// One node with one card of 15 GiB, and pods of 7 GiB: two fit.
fn world(pods: &[&str]) -> World {
    let mut world = World::default();
    world.add_node("n1", &[15]);
    pods.iter().for_each(|name| world.add_pod(name, 7, json!({})));
    world
}

/// The scores of n1 and n2 for a pod's claims, or why not.
async fn score_claims(scheduler: &Scheduler, pod: &Value) -> Result<Vec<i64>, String> {
    let args = json!({"Pod": pod, "NodeNames": ["n1", "n2"]}).to_string();
    let (code, body) = scheduler.ask("POST", "/mpsgate/prioritize-claims", &args).await;
    if code != 200 {
        return Err(body);
    }
    let scores: Value = serde_json::from_str(&body).unwrap();
    Ok(scores.as_array().unwrap().iter().map(|one| one["Score"].as_i64().unwrap()).collect())
}

#[tokio::test]
async fn nodes_are_scored_for_pods_with_claims_which_are_read_when_it_is_asked() {
    const CLAIM: &str = "GET /apis/resource.k8s.io/v1/namespaces/default/resourceclaims/claims-gpu";
    let mut world = world(&[]);
    world.add_node("n2", &[32]);
    world.add_pod_of("claims", json!({}), json!({}));
    world.add_claim("claims", 12);
    world.add_pod_of("none", json!({}), json!({}));
    let scheduler = Scheduler::start(world, &[]).await;
    scheduler.until("/readyz", 200).await;
    let pod = |name: &str| scheduler.world(|world| world.get(&format!("pods/{name}")));
    assert_eq!(score_claims(&scheduler, &pod("none")).await, Ok(vec![0, 0]));
    assert_eq!(scheduler.asked(CLAIM), 0, "nothing is read for others");
    let (claims, full) = (pod("claims"), Ok(vec![8, 4]));
    assert_eq!(score_claims(&scheduler, &claims).await, full);
    assert_eq!(scheduler.asked(CLAIM), 1);
    for (fault, said) in [
        (Fault::Status(403), "claims-gpu"),
        (Fault::Status(500), "claims-gpu"),
        (Fault::Garbage, "claims-gpu"),
        (Fault::Silence, "in 1 s"),
    ] {
        scheduler.world(|world| world.faults.push_back(("GET resourceclaims/claims-gpu", fault)));
        let refused = score_claims(&scheduler, &claims).await.unwrap_err();
        assert!(refused.contains(said), "{fault:?}: {refused}");
        assert_eq!(score_claims(&scheduler, &claims).await, full, "after {fault:?}");
    }
    scheduler.world(|world| world.remove("resourceclaims/claims-gpu"));
    let older = score_claims(&scheduler, &claims).await.unwrap_err();
    assert!(older.contains("does not serve resource.k8s.io/v1"), "{older}");
}

#[tokio::test]
async fn a_pod_is_filtered_scored_and_bound_with_annotations_of_all_three_kinds() {
    let scheduler = Scheduler::active(world(&["a", "b", "c"])).await;
    let pod = scheduler.world(|world| world.get("pods/a"));
    let args = json!({"Pod": pod, "Nodes": null, "NodeNames": ["n1", "n2"]});
    let filtered = scheduler.post("filter", &args).await;
    assert_eq!(filtered["NodeNames"], json!(["n1"]));
    assert!(filtered["FailedAndUnresolvableNodes"]["n2"].is_string(), "{filtered}");
    let scores = scheduler.post("prioritize", &args).await;
    assert_eq!((&scores[0]["Host"], &scores[1]["Score"]), (&json!("n1"), &json!(0)), "{scores}");

    assert_eq!(scheduler.bind("a", "n1").await, "");
    let bound = scheduler.world(|world| world.get("pods/a"));
    assert_eq!(bound["spec"]["nodeName"], "n1");
    let annotations = &bound["metadata"]["annotations"];
    assert_eq!(annotations["ALIYUN_COM_GPU_MEM_IDX"], "0");
    assert_eq!(annotations["scheduler.framework.gpushare.allocation"], r#"{"0":{"0":7}}"#);
    let ours: Value =
        serde_json::from_str(annotations["mpsgate.io/placement"].as_str().unwrap()).unwrap();
    assert_eq!((&ours["node"], &ours["containers"]), (&json!("n1"), &json!({"main": {"0": 7168}})));

    assert_eq!(scheduler.bind("a", "n1").await, "", "the answer was lost and it is asked again");
    assert_eq!(scheduler.bind("b", "n1").await, "");
    assert_ne!(scheduler.bind("c", "n1").await, "", "two of 7 GiB fill a card of 15");
    assert_eq!(scheduler.used().await, 2 * 7168);
    assert_eq!(scheduler.asked("POST /api/v1/namespaces/default/pods/c/binding"), 0);
}

#[tokio::test]
async fn what_fails_for_sure_gives_the_memory_back() {
    const BIND: &str = "POST /pods/a/binding";
    for (fault, times, said) in [
        (Fault::Status(404), 1, "bind pod default/a to node n1"),
        (Fault::Status(403), 1, "clusterrole mpsgate-scheduler"),
        // Each time somebody else has written meanwhile.
        (Fault::Status(409), 4, "bind pod default/a to node n1"),
    ] {
        let scheduler = Scheduler::active(world(&["a"])).await;
        scheduler.world(|world| world.faults.extend((0..times).map(|_| (BIND, fault))));
        let error = scheduler.bind("a", "n1").await;
        assert!(error.contains(said), "{fault:?}: {error}");
        let placement = scheduler.world(|world| {
            world.get("pods/a")["metadata"]["annotations"]["mpsgate.io/placement"].clone()
        });
        assert!(placement.is_null(), "{fault:?}: {placement}");
        assert_eq!(scheduler.used().await, 0, "{fault:?}");
        assert_eq!(scheduler.bind("a", "n1").await, "", "{fault:?}: the next attempt");
    }
}

#[tokio::test]
async fn what_may_have_been_done_keeps_the_memory() {
    let scheduler = Scheduler::active(world(&["a", "b", "c"])).await;
    scheduler.world(|world| world.faults.push_back(("POST /pods/a/binding", Fault::Cut)));
    let error = scheduler.bind("a", "n1").await;
    assert!(error.contains("its memory is kept"), "{error}");
    assert_eq!(scheduler.bind("b", "n1").await, "");
    assert_ne!(scheduler.bind("c", "n1").await, "");
    assert_eq!(scheduler.bind("a", "n1").await, "", "its own memory is free for it");
    assert_eq!(scheduler.used().await, 2 * 7168);

    // A Binding that was made though nobody said so is found by looking.
    let scheduler = Scheduler::active(world(&["a"])).await;
    scheduler.world(|world| world.faults.push_back(("POST /pods/a/binding", Fault::DoneAndCut)));
    assert_eq!(scheduler.bind("a", "n1").await, "");
    assert_eq!(scheduler.used().await, 7168);
}

#[tokio::test]
async fn a_pod_that_somebody_else_wrote_meanwhile_is_read_again() {
    let scheduler = Scheduler::active(world(&["a"])).await;
    scheduler.world(|world| world.faults.push_back(("POST /pods/a/binding", Fault::Status(409))));
    assert_eq!(scheduler.bind("a", "n1").await, "");
    assert_eq!(scheduler.asked("POST /api/v1/namespaces/default/pods/a/binding"), 2);
    let gone = scheduler.bind("nobody", "n1").await;
    assert!(gone.contains("default/nobody is gone"), "{gone}");
}

#[tokio::test]
async fn a_placement_on_a_pod_that_is_not_bound_counts_nothing_and_is_written_over() {
    let placed = |time: &str| {
        let text =
            json!({"version": 1, "node": "n1", "time": time, "containers": {"main": {"0": 7168}}});
        json!({"mpsgate.io/placement": text.to_string(), "ALIYUN_COM_GPU_MEM_IDX": "9"})
    };
    let mut forged = world(&["b"]);
    forged.add_pod("a", 9_000_000, placed("2999-01-01T00:00:00Z"));
    forged.add_pod("c", 7, placed("2999-01-01T00:00:00Z"));
    let scheduler = Scheduler::active(forged).await;
    assert_eq!(scheduler.used().await, 0);
    assert_eq!(scheduler.bind("b", "n1").await, "");
    assert_eq!(scheduler.bind("c", "n1").await, "");
    assert_eq!(scheduler.used().await, 2 * 7168);
    let annotations =
        scheduler.world(|world| world.get("pods/c"))["metadata"]["annotations"].clone();
    assert!(
        !annotations["mpsgate.io/placement"].as_str().unwrap().contains("2999"),
        "{annotations}"
    );
    assert_eq!(annotations["ALIYUN_COM_GPU_MEM_IDX"], "0");
}

#[tokio::test]
async fn binding_changes_no_pod_but_by_its_binding() {
    let scheduler = Scheduler::active(world(&["a"])).await;
    assert_eq!(scheduler.bind("a", "n1").await, "");
    let writes = scheduler.world(|world| {
        let writes = |asked: &&String| !asked.starts_with("GET ") && !asked.contains("/leases");
        world.asked.iter().filter(writes).cloned().collect::<Vec<_>>()
    });
    assert_eq!(writes, ["POST /api/v1/namespaces/default/pods/a/binding"]);
}

#[tokio::test]
async fn a_pod_that_asks_for_nothing_of_ours_is_not_bound() {
    let mut world = world(&["a"]);
    world.add_pod_of("web", json!({"cpu": "1"}), json!({}));
    let scheduler = Scheduler::active(world).await;
    let error = scheduler.bind("web", "n1").await;
    assert!(
        error.contains("asks for no GPU memory") && error.contains("managedResources"),
        "{error}"
    );
    assert_eq!(scheduler.asked("POST /api/v1/namespaces/default/pods/web/binding"), 0);
    assert_eq!(scheduler.bind("a", "n1").await, "", "one that does is");
}

#[tokio::test]
async fn whoever_has_lost_the_lease_at_the_api_server_binds_nothing_whatever_its_clock_says() {
    let scheduler = Scheduler::active(world(&["a"])).await;
    scheduler.world(|world| world.set_lease("the-other"));
    let error = scheduler.bind("a", "n1").await;
    assert!(error.contains("replica"), "{error}");
    assert_eq!(scheduler.asked("POST /api/v1/namespaces/default/pods/a/binding"), 0);
    assert_eq!(scheduler.used().await, 0);
}

#[tokio::test]
async fn a_follower_answers_and_does_not_bind() {
    let mut world = world(&["a"]);
    world.set_lease("the-other");
    let scheduler = Scheduler::start(world, &[]).await;
    scheduler.until("/readyz", 200).await;
    let why = async {
        loop {
            let (code, why) = scheduler.ask("GET", "/leaderz", "").await;
            assert_eq!(code, 503);
            if why.contains("the-other") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, why).await.unwrap();
    let error = scheduler.bind("a", "n1").await;
    assert!(error.contains("replica the-other binds"), "{error}");
    let pod = scheduler.world(|world| world.get("pods/a"));
    let filtered = scheduler.post("filter", &json!({"Pod": pod, "NodeNames": ["n1"]})).await;
    assert_eq!(filtered["NodeNames"], json!(["n1"]));
    assert_eq!(
        scheduler.asked(
            "PUT /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/mpsgate-scheduler"
        ),
        0
    );
}

#[tokio::test]
async fn at_the_end_the_label_is_taken_off_and_the_lease_given_back() {
    let scheduler = Scheduler::start(world(&["me"]), &["--pod-name", "me"]).await;
    scheduler.until("/leaderz", 200).await;
    let label = |scheduler: &Scheduler| {
        scheduler
            .world(|world| world.get("pods/me")["metadata"]["labels"]["mpsgate.io/active"].clone())
    };
    let labelled = async {
        while label(&scheduler) != "true" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, labelled).await.unwrap();
    let Scheduler { api, stop, ended, .. } = scheduler;
    stop.send(()).unwrap();
    tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap().unwrap();
    let after = |key| api.world(|world| world.get(key));
    assert_eq!(after("pods/me")["metadata"]["labels"]["mpsgate.io/active"], Value::Null);
    assert_eq!(after("leases/mpsgate-scheduler")["spec"]["holderIdentity"], "");
}

#[tokio::test]
async fn without_an_api_server_it_lives_says_that_it_is_not_ready_and_places_nothing() {
    let mut world = world(&["a"]);
    world.faults.extend((0..100).map(|_| ("GET /api/v1/nodes", Fault::Status(503))));
    let scheduler = Scheduler::start(world, &[]).await;
    assert_eq!(scheduler.ask("GET", "/healthz", "").await.0, 200);
    let why = scheduler.until("/readyz", 503).await;
    assert!(why.contains("nodes are not current"), "{why}");
    let pod = scheduler.world(|world| world.get("pods/a"));
    let filtered = scheduler.post("filter", &json!({"Pod": pod, "NodeNames": ["n1"]})).await;
    assert!(
        filtered["Error"].as_str().unwrap().contains("has not read all nodes and pods yet"),
        "{filtered}"
    );
    assert_ne!(scheduler.bind("a", "n1").await, "");
    scheduler.world(|world| world.faults.clear());
    scheduler.until("/leaderz", 200).await;
    assert_eq!(scheduler.bind("a", "n1").await, "");
}

#[tokio::test]
async fn an_api_server_that_says_nothing_any_more_is_not_ready_until_it_is_heard_again() {
    let patience = Patience {
        watch_seconds: 1,
        silence: Duration::from_secs(4),
        answer: Duration::from_secs(5),
    };
    let scheduler = Scheduler::start_with(world(&["a"]), &[], patience).await;
    scheduler.until("/leaderz", 200).await;
    scheduler.world(|world| world.mute = true);
    let why = scheduler.until("/readyz", 503).await;
    assert!(why.contains("are not current") && why.contains("nothing was heard for"), "{why}");
    assert_ne!(scheduler.bind("a", "n1").await, "");
    scheduler.world(|world| world.mute = false);
    scheduler.until("/leaderz", 200).await;
    assert_eq!(scheduler.bind("a", "n1").await, "");
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_in_kube_schedulers_own_words() {
    let scheduler = Scheduler::start(world(&[]), &["--max-body", "1"]).await;
    let (code, body) =
        scheduler.ask("POST", "/gpushare-scheduler/filter", &" ".repeat((1 << 20) + 1)).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(code, 200);
    assert!(answer["Error"].as_str().unwrap().contains("nodeCacheCapable: true"), "{answer}");
    for (path, code) in [
        ("/version", 200),
        ("/metrics", 200),
        ("/gpushare-scheduler/inspect", 200),
        ("/nowhere", 404),
    ] {
        assert_eq!(scheduler.ask("GET", path, "").await.0, code, "{path}");
    }
}
