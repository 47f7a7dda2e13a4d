//! What a real API server cannot be made to do: garbage, 410 Gone, 429, silence, a connection cut in the middle.
//!
//! A listener that answers each connection with the next line of a script; what it has no line for gets 500.

use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mpsgate_kubernetes::{
    Event, NodeReport, Pods, Readiness, Reason, Settings, Severity, State, Subject, events, node,
    pods,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How long anything may take. Pauses of the crate between attempts are part of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// One answer. A body is sent chunked, and what follows it is said by the variant.
#[derive(Clone)]
enum Answer {
    /// Whole.
    Whole(u16, String),
    /// A watch: these lines, then nothing more until the client goes.
    Lines(Vec<String>),
    /// A watch: these lines, then the connection is cut without the last chunk.
    Cut(Vec<String>),
    /// Not even a status.
    Silence(Duration),
}

struct Double {
    settings: Settings,
    /// First lines of requests, and bodies.
    asked: Arc<Mutex<Vec<(String, String)>>>,
    _kubeconfig: tempfile::NamedTempFile,
}

impl Double {
    async fn start(script: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut kubeconfig = tempfile::NamedTempFile::new().expect("a file");
        write!(
            kubeconfig,
            "{{apiVersion: v1, kind: Config, current-context: x, contexts: [{{name: x, context: {{cluster: c, user: u}}}}], \
             clusters: [{{name: c, cluster: {{server: \"http://{}\"}}}}], users: [{{name: u, user: {{token: t}}}}]}}",
            listener.local_addr().expect("bound")
        )
        .expect("written");
        let settings = Settings::find(Some(kubeconfig.path().to_owned()), "gpu-1").expect("named");
        let asked = Arc::<Mutex<Vec<(String, String)>>>::default();
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let log = Arc::clone(&asked);
        #[expect(clippy::disallowed_methods, reason = "the double is a server of its own")]
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&script), Arc::clone(&log)));
            }
        });
        Self { settings, asked, _kubeconfig: kubeconfig }
    }

    fn asked(&self) -> Vec<(String, String)> {
        self.asked.lock().expect("no test panicked").clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    script: Arc<Mutex<VecDeque<Answer>>>,
    log: Arc<Mutex<Vec<(String, String)>>>,
) -> Option<()> {
    let mut held = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = held.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut held).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&held[..end]).into_owned();
        let length: usize = head
            .lines()
            .find_map(|line| {
                line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned)
            })
            .map_or(0, |text| text.trim().parse().expect("a number"));
        while held.len() < end + length {
            stream.read_buf(&mut held).await.ok()?;
        }
        let body = String::from_utf8_lossy(&held[end..end + length]).into_owned();
        held.drain(..end + length);
        log.lock().expect("no test panicked").push((head.lines().next()?.to_owned(), body));
        let answer = script.lock().expect("no test panicked").pop_front();
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
        match answer.unwrap_or_else(|| Answer::Whole(500, status(500, "the script is at its end")))
        {
            Answer::Whole(code, body) => {
                let head = format!(
                    "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all((head + &body).as_bytes()).await.ok()?;
            }
            Answer::Lines(lines) | Answer::Cut(lines) if lines.is_empty() => return None,
            ref answer @ (Answer::Lines(ref lines) | Answer::Cut(ref lines)) => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                stream.write_all(head.as_bytes()).await.ok()?;
                for line in lines {
                    stream.write_all(chunk(&format!("{line}\n")).as_bytes()).await.ok()?;
                }
                if matches!(answer, Answer::Cut(_)) {
                    return None;
                }
                let _end = stream.read_buf(&mut held).await;
                return None;
            }
            Answer::Silence(time) => tokio::time::sleep(time).await,
        }
    }
}

fn status(code: u16, message: &str) -> String {
    format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{message}","reason":"x","code":{code}}}"#
    )
}

fn pod(uid: &str, version: u32) -> String {
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"uid":"{uid}","name":"{uid}","namespace":"n","resourceVersion":"{version}"}},"spec":{{"containers":[{{"name":"main","resources":{{"limits":{{"aliyun.com/gpu-mem":"7"}}}}}}]}}}}"#
    )
}

fn list(version: u32, pods: &[String]) -> Answer {
    let items = pods.join(",");
    Answer::Whole(
        200,
        format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}},"items":[{items}]}}"#
        ),
    )
}

fn added(pod: &str) -> String {
    format!(r#"{{"type":"ADDED","object":{pod}}}"#)
}

/// Runs the pod watch on `script` until `done`.
async fn watched(
    script: Vec<Answer>,
    done: impl FnMut(&Arc<Pods>) -> bool,
) -> (Arc<Pods>, Vec<(String, String)>) {
    let double = Double::start(script).await;
    let (mut seen, run) = pods(double.settings.clone());
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

#[tokio::test]
async fn asks_for_the_pods_of_this_node_from_the_servers_cache() {
    let (pods, asked) =
        watched(vec![list(5, &[pod("a", 1)]), Answer::Lines(vec![added(&pod("b", 6))])], |pods| {
            has(pods, "b")
        })
        .await;
    assert_eq!(pods.len(), 2);
    let (list, watch) = (&asked[0].0, &asked[1].0);
    assert!(
        list.starts_with("GET /api/v1/pods?")
            && list.contains("fieldSelector=spec.nodeName%3Dgpu-1"),
        "{list}"
    );
    assert!(list.contains("resourceVersion=0"), "{list}");
    assert!(watch.contains("watch=true") && watch.contains("resourceVersion=5"), "{watch}");
    assert!(watch.contains("allowWatchBookmarks=true"), "{watch}");
}

#[tokio::test]
async fn a_version_that_is_gone_is_listed_anew() {
    let gone =
        format!(r#"{{"type":"ERROR","object":{}}}"#, status(410, "too old resource version"));
    let script = vec![
        list(5, &[pod("a", 1)]),
        Answer::Lines(vec![gone]),
        list(9, &[pod("b", 8)]),
        Answer::Lines(vec![]),
    ];
    let (pods, _) = watched(script, |pods| has(pods, "b")).await;
    assert!(pods.get("a").is_none(), "a pod that was deleted meanwhile is still shown");
}

#[tokio::test]
async fn a_connection_cut_in_mid_watch_is_watched_on_from_the_last_version() {
    let script = vec![
        list(5, &[pod("a", 1)]),
        Answer::Cut(vec![added(&pod("b", 6))]),
        Answer::Lines(vec![added(&pod("c", 7))]),
    ];
    let (pods, asked) = watched(script, |pods| has(pods, "c")).await;
    assert_eq!(pods.len(), 3);
    assert!(
        asked[2].0.contains("watch=true") && asked[2].0.contains("resourceVersion=6"),
        "{}",
        asked[2].0
    );
}

#[tokio::test]
async fn a_server_that_went_away_leaves_the_old_pods_shown_as_stale() {
    let script = vec![
        list(5, &[pod("a", 1)]),
        Answer::Cut(vec![added(&pod("b", 6)), "{\"type\":".to_owned()]),
    ];
    let (pods, _) = watched(script, |pods| matches!(pods.state, State::Stale { .. })).await;
    assert_eq!(pods.len(), 2);
}

#[tokio::test]
async fn garbage_too_many_requests_and_a_server_error_are_tried_again() {
    let script = vec![
        Answer::Whole(200, "<html>not you again</html>".to_owned()),
        Answer::Whole(429, status(429, "patience")),
        list(5, &[pod("a", 1)]),
        Answer::Lines(vec![added(&pod("b", 6))]),
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
async fn one_pod_that_cannot_be_read_is_an_error_that_is_shown_not_a_list_without_it() {
    let broken = r#"{"metadata":{"uid":"x"},"spec":{"containers":"none"}}"#.to_owned();
    let (pods, _) = watched(vec![list(5, &[pod("a", 1), broken])], |pods| {
        matches!(pods.state, State::Failing { .. })
    })
    .await;
    assert!(pods.is_empty());
}

#[tokio::test]
async fn a_slow_server_leaves_the_pods_unknown_and_nothing_waits_for_it() {
    let double = Double::start(vec![Answer::Silence(PATIENCE)]).await;
    let (seen, run) = pods(double.settings.clone());
    tokio::select! {
        never = run => match never {},
        () = async { while double.asked().is_empty() { tokio::time::sleep(Duration::from_millis(10)).await } } => {}
    }
    assert_eq!(seen.borrow().state, State::Waiting);
}

#[tokio::test]
async fn a_node_that_is_not_there_is_named() {
    let double = Double::start(vec![list(5, &[]), Answer::Lines(vec![])]).await;
    let (_report, receive) = watch::channel(None);
    let (mut seen, run) = node(double.settings.clone(), receive);
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
    let bare =
        r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"gpu-1","resourceVersion":"5"}}"#
            .to_owned();
    let condition = r#""status":{"conditions":[{"type":"GPUMemorySharingReady","status":"False","reason":"NoDriver","message":"m"}]}"#;
    let written = bare.replacen("}}", &format!("}},{condition}}}"), 1);
    // List and watch come on one connection each, in this order; then the writes.
    let script = vec![
        list(5, &[bare]),
        Answer::Lines(vec![r#"{"type":"BOOKMARK","object":{"kind":"Node","apiVersion":"v1","metadata":{"resourceVersion":"5"}}}"#.to_owned()]),
        Answer::Whole(403, status(403, "nodes \\\"gpu-1\\\" is forbidden")),
        Answer::Whole(200, written),
    ];
    let double = Double::start(script).await;
    let (report, receive) = watch::channel(None);
    let (mut seen, run) = node(double.settings.clone(), receive);
    let check = async {
        seen.wait_for(|node| node.state.is_current()).await.expect("polled");
        while double.asked().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let ready =
            Readiness { ready: false, reason: "NoDriver".to_owned(), message: "m".to_owned() };
        report.send_replace(Some(NodeReport { cards: Some(vec![]), ready: Some(ready) }));
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
    assert!(asked[3].0.starts_with("PATCH /api/v1/nodes/gpu-1/status?"), "{}", asked[3].0);
}

#[tokio::test]
async fn events_are_written_again_after_a_failure_and_created_anew_when_forgotten() {
    let created = |name: &str| {
        Answer::Whole(
            201,
            format!(
                r#"{{"kind":"Event","apiVersion":"v1","metadata":{{"name":"{name}"}},"involvedObject":{{}}}}"#
            ),
        )
    };
    let double = Double::start(vec![
        Answer::Whole(503, status(503, "later")),
        created("p.1"),
        Answer::Whole(404, status(404, "gone")),
        created("p.2"),
    ])
    .await;
    let (recorder, run) = events(double.settings.clone());
    let report = || {
        recorder.report(Event {
            subject: Subject::Pod {
                namespace: "n".to_owned(),
                name: "p".to_owned(),
                uid: "u".to_owned(),
            },
            reason: Reason::GpuMemoryRefused,
            severity: Severity::Warning,
            message: "no".to_owned(),
        });
    };
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
    let heads: Vec<_> = double.asked().into_iter().map(|(head, _)| head).collect();
    assert!(heads[0].starts_with("POST /api/v1/namespaces/n/events?"), "{heads:?}");
    assert!(heads[1].starts_with("POST ") && heads[3].starts_with("POST "), "{heads:?}");
    assert!(heads[2].starts_with("PATCH /api/v1/namespaces/n/events/p.1?"), "{heads:?}");
    assert_eq!(recorder.dropped(), 0);
}
