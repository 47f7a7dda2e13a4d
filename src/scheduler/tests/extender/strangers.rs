//! What whoever reaches the port can ask, and what it costs the others.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::{PATIENCE, Scheduler, world};

#[tokio::test]
async fn names_that_are_none_reach_neither_the_api_server_nor_a_long_answer() {
    let scheduler = Scheduler::active(world(&["a"])).await;
    let long = "x".repeat(10_000);
    let before = scheduler.world(|world| world.asked.len());
    for (place, text) in [
        ("PodNamespace", "kube-system/secrets/boot?x="),
        ("PodName", "p/log?tailLines=5"),
        ("PodName", "../../nodes/n1?"),
        ("PodName", long.as_str()),
        ("PodUID", "u\n"),
        ("Node", "n1\u{1b}[2J"),
    ] {
        let mut asked =
            json!({"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "n1"});
        asked[place] = text.into();
        let answer = scheduler.post("bind", &asked).await;
        let error = answer["Error"].as_str().unwrap();
        assert!(error.contains("is no ") && error.len() < 300, "{place}: {error}");
    }
    // RuntimeClasses are listed whenever it is: nobody waits for them.
    let own = |asked: &String| asked.contains("/leases") || asked.ends_with("/runtimeclasses");
    let leases_alone = scheduler.world(|world| world.asked.iter().skip(before).all(own));
    assert!(leases_alone, "nothing was asked of the API server");
    assert_eq!(scheduler.bind("a", "n1").await, "");
}

#[tokio::test]
async fn one_node_named_many_times_is_refused_and_nobody_waits() {
    let scheduler = Scheduler::active(world(&["a"])).await;
    let pod = scheduler.world(|world| world.get("pods/a"));
    let names = vec!["n1"; 200_000];
    for verb in ["filter", "prioritize"] {
        let body = json!({"Pod": pod, "NodeNames": names}).to_string();
        let (_, answer) = scheduler.ask("POST", &format!("/mpsgate/{verb}"), &body).await;
        assert!(answer.contains("names more than"), "{verb}: {answer}");
    }
    assert_eq!(scheduler.ask("GET", "/leaderz", "").await.0, 200);
    let args = json!({"Pod": pod, "NodeNames": ["n1"]});
    assert_eq!(scheduler.post("filter", &args).await["NodeNames"], json!(["n1"]));
}

#[tokio::test]
async fn idle_connections_of_one_address_leave_probes_on_their_own_address_alone() {
    let port = {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        free.local_addr().unwrap().port()
    };
    let probes = format!("127.0.0.1:{port}");
    let scheduler = Scheduler::start(world(&["a"]), &["--probe-listen", &probes]).await;
    scheduler.until("/leaderz", 200).await;
    let mut idle = Vec::new();
    for n in 0..300 {
        let mut stream = TcpStream::connect(scheduler.address).await.unwrap();
        // Some say nothing, some begin and never end.
        if n % 2 == 0 {
            let _ = stream.write_all(b"GET /healthz HT").await;
        }
        idle.push(stream);
    }
    let there = probes.parse().unwrap();
    for path in ["/healthz", "/readyz", "/leaderz", "/metrics", "/version"] {
        let asked = super::ask(there, "GET", path, "");
        let (code, _) = tokio::time::timeout(PATIENCE, asked).await.unwrap();
        assert_eq!(code, 200, "{path}");
    }
    for path in ["/mpsgate/inspect", "/mpsgate/bind", "/mpsgate/filter"] {
        assert_eq!(super::ask(there, "POST", path, "{}").await.0, 404, "{path} is not a probe");
    }
    // And the idle ones are ended for those who ask.
    let asks = async {
        loop {
            if let Ok(code) = super::try_ask(scheduler.address, "/healthz").await {
                return code;
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, asks).await.unwrap(), 200);
    drop(idle);
}

#[tokio::test]
async fn whoever_shows_no_certificate_is_not_told_the_uids_of_pods() {
    let scheduler = Scheduler::active(world(&["a"])).await;
    assert_eq!(scheduler.bind("a", "n1").await, "");
    let (_, body) = scheduler.ask("GET", "/mpsgate/inspect", "").await;
    let shown: Value = serde_json::from_str(&body).unwrap();
    let pod = &shown["nodes"][0]["devs"][0]["pods"][0];
    assert_eq!((&pod["name"], &pod["usedMib"]), (&json!("a"), &json!(7168)), "{shown}");
    assert!(!body.contains("uid-a"), "{body}");
}
