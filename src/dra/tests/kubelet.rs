//! The driver on a fake kubelet: what a real kubelet does, and what it cannot be made to do.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
#![allow(clippy::disallowed_methods, reason = "a test is not held to what the library may do")]

mod host;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fake_kubelet::dra::{Kubelet, Manner, claim, garbage_uids};
use fake_kubelet::eventually;
use host::Daemon;
use mpsgate_dra::api::dra::{Device, NodePrepareResourcesRequest};
use mpsgate_dra::api::health_v1;
use mpsgate_dra::{DeviceHealth, Pace, Place, Retry, serve};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const UID: &str = "8ec7a6b9-9a3c-4bd6-ae0e-3b5f4f3e9a10";

/// Kubelet's two directories.
struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        make(&node.registry());
        make(&node.plugins());
        node
    }

    fn registry(&self) -> PathBuf {
        self.0.path().join("plugins_registry")
    }

    fn plugins(&self) -> PathBuf {
        self.0.path().join("plugins")
    }

    fn registration(&self, instance: &str) -> PathBuf {
        self.registry().join(format!("mpsgate.io@{instance}-reg.sock"))
    }

    fn socket(&self, instance: &str) -> PathBuf {
        self.plugins().join(format!("mpsgate.io/dra-{instance}.sock"))
    }

    /// Files of both directories, other than the driver's own.
    fn sockets(&self) -> usize {
        let count = |path: &Path| std::fs::read_dir(path).map_or(0, Iterator::count);
        count(&self.registry()) + count(&self.plugins().join("mpsgate.io"))
    }

    fn kubelet(&self, manner: Manner) -> Kubelet {
        Kubelet::start(&self.registry(), manner)
    }
}

fn make(directory: &Path) {
    std::fs::create_dir(directory).unwrap();
    std::fs::set_permissions(directory, Permissions::from_mode(0o750)).unwrap();
}

/// Long enough that only inotify can be as quick as the tests; short for retries.
const PACE: Pace = Pace {
    retry: Retry {
        first: Duration::from_millis(20),
        most: Duration::from_millis(100),
        poll: Duration::from_secs(3600),
    },
    asked: Duration::from_secs(3600),
    claim: Duration::from_secs(30),
    health: Duration::from_secs(3600),
};

/// A driver that runs until it is stopped or dropped.
struct Running {
    daemon: Arc<Daemon>,
    health: watch::Sender<Vec<DeviceHealth>>,
    task: JoinHandle<()>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Running {
    fn start(node: &Node) -> Self {
        Self::of(node, "node", PACE)
    }

    fn of(node: &Node, instance: &str, pace: Pace) -> Self {
        let daemon = Arc::new(Daemon::default());
        let health = watch::Sender::new(vec![device("gpu-0", Some(true))]);
        let (registry, plugins) = (node.registry(), node.plugins());
        let place = Place { registry, plugins, instance: instance.to_owned(), pace };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let host = Arc::clone(&daemon);
        let task = tokio::spawn(serve(place, health.subscribe(), host, async {
            let _ = stopped.await;
        }));
        Self { daemon, health, task, stop: Some(stop) }
    }

    async fn stop(mut self) {
        drop(self.stop.take());
        (&mut self.task).await.unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn device(name: &str, healthy: Option<bool>) -> DeviceHealth {
    let [pool, device, message] = ["node-1", name, "Xid 79"].map(str::to_owned);
    DeviceHealth { pool, device, healthy, message, since_s: 1_700_000_000 }
}

async fn until_registered(kubelet: &Kubelet, plugins: usize) {
    let what = format!("{plugins} plugins");
    eventually(&what, || kubelet.registered().len() == plugins).await;
}

/// Waits until the driver is registered again, with more than `asked` questions of kubelet.
async fn until_again(kubelet: &Kubelet, asked: usize) {
    eventually("again", || kubelet.asked() > asked && kubelet.registered().len() == 1).await;
}

#[tokio::test(flavor = "current_thread")]
async fn kubelet_finds_the_driver_and_forgets_it_at_the_end() {
    let node = Node::new();
    let kubelet = node.kubelet(Manner::NEW);
    let driver = Running::start(&node);
    until_registered(&kubelet, 1).await;
    let info = kubelet.registered().remove(0);
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "mpsgate.io"));
    assert_eq!(info.endpoint, node.socket("node").to_str().unwrap());
    assert_eq!(
        info.supported_versions,
        ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
    );
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(node.plugins().join("mpsgate.io")) & 0o027, 0);
    assert_eq!([mode(node.socket("node")), mode(node.registration("node"))], [0o600; 2]);
    let daemon = Arc::clone(&driver.daemon);
    eventually("it is reported", || daemon.count("Info: registered with kubelet") == 1).await;
    driver.stop().await;
    until_registered(&kubelet, 0).await;
    assert_eq!(node.sockets(), 0);
    assert_eq!(daemon.count("Warn: "), 0, "{:?}", daemon.events);
}

#[tokio::test(flavor = "current_thread")]
async fn a_socket_that_is_removed_or_replaced_is_made_anew() {
    let node = Node::new();
    let kubelet = node.kubelet(Manner::NEW);
    let driver = Running::start(&node);
    until_registered(&kubelet, 1).await;
    for path in [node.registration("node"), node.socket("node")] {
        let asked = kubelet.asked();
        std::fs::remove_file(&path).unwrap();
        until_again(&kubelet, asked).await;
        let asked = kubelet.asked();
        let other = node.0.path().join("other");
        let _thief = std::os::unix::net::UnixListener::bind(&other).unwrap();
        std::fs::rename(&other, &path).unwrap();
        until_again(&kubelet, asked).await;
        kubelet.prepare([claim("default", "a", UID)]).await.unwrap();
    }
    assert_eq!(driver.daemon.count("has gone"), 4);
    let asked = kubelet.asked();
    std::fs::remove_dir_all(node.plugins().join("mpsgate.io")).unwrap();
    until_again(&kubelet, asked).await;
    assert_eq!(node.sockets(), 2);
}

#[tokio::test(flavor = "current_thread")]
async fn directories_that_come_later_are_found() {
    let node = Node::new();
    std::fs::remove_dir(node.registry()).unwrap();
    std::fs::remove_dir(node.plugins()).unwrap();
    let driver = Running::start(&node);
    let count = |sentence: &str| driver.daemon.count(sentence);
    eventually("no directory", || count("Warn: cannot look at") == 1).await;
    make(&node.plugins());
    eventually("no registry", || count("plugins_registry: No such file") == 1).await;
    make(&node.registry());
    let kubelet = node.kubelet(Manner::NEW);
    until_registered(&kubelet, 1).await;
    assert_eq!(count("Warn: "), 2, "{:?}", driver.daemon.events);
}

#[tokio::test(flavor = "current_thread")]
async fn a_directory_that_others_can_write_gets_no_socket() {
    for (which, sockets) in [(Node::registry as fn(&Node) -> PathBuf, 1), (Node::plugins, 0)] {
        let node = Node::new();
        std::fs::set_permissions(which(&node), Permissions::from_mode(0o777)).unwrap();
        let driver = Running::start(&node);
        let sentence = "is not a directory of root's alone";
        eventually(sentence, || driver.daemon.count(sentence) == 1).await;
        assert_eq!(node.sockets(), sockets);
        assert!(!node.registration("node").exists());
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_stale_socket_is_replaced_and_what_is_none_is_left_alone() {
    let node = Node::new();
    make(&node.plugins().join("mpsgate.io"));
    // A daemon that was killed leaves both.
    for path in [node.socket("node"), node.registration("node")] {
        drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    }
    let kubelet = node.kubelet(Manner::NEW);
    let driver = Running::start(&node);
    until_registered(&kubelet, 1).await;
    driver.stop().await;
    std::fs::write(node.registration("node"), "").unwrap();
    let driver = Running::start(&node);
    eventually("a file", || driver.daemon.count("is not a socket") == 1).await;
    assert_eq!(std::fs::read(node.registration("node")).unwrap(), b"");
    std::fs::remove_file(node.registration("node")).unwrap();
    until_registered(&kubelet, 1).await;
}

#[tokio::test(flavor = "current_thread")]
async fn two_instances_are_side_by_side_and_the_end_of_one_is_its_own() {
    let node = Node::new();
    let kubelet = node.kubelet(Manner::NEW);
    let old = Running::of(&node, "0b1c", PACE);
    until_registered(&kubelet, 1).await;
    let new = Running::of(&node, "node", PACE);
    until_registered(&kubelet, 2).await;
    kubelet.prepare([claim("default", "a", UID)]).await.unwrap();
    assert_eq!((old.daemon.calls().len(), new.daemon.calls().len()), (0, 1));
    old.stop().await;
    until_registered(&kubelet, 1).await;
    kubelet.unprepare([claim("default", "a", UID)]).await.unwrap();
    assert_eq!(new.daemon.calls().len(), 2);
    assert_eq!(new.daemon.count("has gone"), 0);
    assert_eq!(node.sockets(), 2);
}

#[tokio::test(flavor = "current_thread")]
async fn an_instance_that_names_no_file_is_reported_and_makes_none() {
    let node = Node::new();
    let driver = Running::of(&node, "../../x", PACE);
    let sentence = "Error: \"../../x\" cannot be part of a socket's name";
    eventually(sentence, || driver.daemon.count(sentence) == 1).await;
    driver.stop().await;
    assert_eq!(node.sockets(), 0);
}

#[tokio::test(flavor = "current_thread")]
async fn a_claim_that_is_prepared_twice_is_the_same_until_it_is_given_back() {
    let node = Node::new();
    let kubelet = node.kubelet(Manner::NEW);
    let driver = Running::start(&node);
    until_registered(&kubelet, 1).await;
    let asked = || [claim("default", "a", UID)];
    let first = kubelet.prepare(asked()).await.unwrap();
    let answer = &first.claims[UID];
    let device = Device {
        // Containers do not name the alternative.
        request_names: vec!["gpu".to_owned()],
        pool_name: "node-1".to_owned(),
        device_name: "gpu-0".to_owned(),
        cdi_device_ids: vec![format!("mpsgate.io/claim={UID}")],
        share_id: Some("b6c1f3f2-share".to_owned()),
    };
    assert_eq!((answer.error.as_str(), &answer.devices), ("", &vec![device]));
    assert_eq!(kubelet.prepare(asked()).await.unwrap(), first);
    // One claim that is left from before kubelet's start, and one that is unknown.
    let unknown = claim("default", "unknown", "1");
    let again = asked().into_iter().chain([unknown]);
    let unprepared = kubelet.unprepare(again).await.unwrap();
    let errors: Vec<_> = unprepared.claims.iter().map(|(uid, one)| (&**uid, &*one.error)).collect();
    assert_eq!(errors, [("1", ""), (UID, "")]);
    assert_eq!(driver.daemon.prepared(), [""; 0]);
    kubelet.unprepare(asked()).await.unwrap();
    assert_eq!(driver.daemon.count("Info: claim default/a prepared: 1 devices"), 2);
    assert_eq!(driver.daemon.count("Info: claim default/a unprepared"), 2);
}

#[tokio::test(flavor = "current_thread")]
async fn an_error_of_one_claim_is_its_own() {
    let node = Node::new();
    let kubelet = node.kubelet(Manner::NEW);
    let driver = Running::start(&node);
    until_registered(&kubelet, 1).await;
    let asked = || {
        let whole = [claim("default", "a", "0"), claim("default", "refused", "1")];
        let wrong = [claim("default", "b", "2"), claim("other", "b", "2"), claim("A", "c", "3")];
        let garbage = garbage_uids().into_iter().map(|uid| claim("default", "d", &uid));
        whole.into_iter().chain(wrong).chain(garbage).collect::<Vec<_>>()
    };
    let uids = 4 + garbage_uids().len();
    let prepared = kubelet.prepare(asked()).await.unwrap().claims;
    assert_eq!(prepared.len(), uids);
    assert_eq!((prepared["0"].error.as_str(), prepared["0"].devices.len()), ("", 1));
    let refused = "default/refused: no card has 7 GiB left\\nrun mpsgate status";
    assert_eq!((prepared["1"].error.as_str(), prepared["1"].devices.len()), (refused, 0));
    assert!(prepared["2"].error.starts_with("kubelet gives uid 2 to both default/b and other/b"));
    let unprepared = kubelet.unprepare(asked()).await.unwrap().claims;
    assert_eq!(unprepared.len(), uids);
    for (uid, answer) in &prepared {
        assert_eq!(answer.error, unprepared[uid].error);
        assert_eq!(answer.error.is_empty(), uid == "0", "{uid:?}");
        assert!(answer.error.chars().count() <= 1024);
        assert!(!answer.error.chars().any(char::is_control), "{:?}", answer.error);
    }
    let mut calls = driver.daemon.calls();
    calls.sort_unstable();
    assert_eq!(calls, ["prepare 0", "prepare 1", "unprepare 0", "unprepare 1"]);
    assert_eq!(driver.daemon.count("Warn: claim default/refused refused: "), 1);
    assert_eq!(driver.daemon.count("Warn: claim default/refused not unprepared: "), 1);
    assert!(!driver.daemon.events.lock().unwrap().iter().any(|event| event.contains('\u{1b}')));
}

#[tokio::test(flavor = "current_thread")]
async fn a_call_of_too_many_claims_does_not_reach_the_daemon() {
    let node = Node::new();
    let kubelet = node.kubelet(Manner::NEW);
    let driver = Running::start(&node);
    until_registered(&kubelet, 1).await;
    let asked = |n: usize| (0..n).map(|n| claim("default", "a", &n.to_string()));
    let prepared = kubelet.prepare(asked(1025)).await.unwrap().claims;
    assert_eq!(prepared.len(), 1025);
    let sentence = "kubelet names 1025 claims at once, and mpsgate takes 1024";
    assert!(prepared.values().all(|answer| answer.error.starts_with(sentence)));
    assert_eq!((driver.daemon.calls().len(), driver.daemon.count("1025 claims")), (0, 1));
    let prepared = kubelet.prepare(asked(1024)).await.unwrap().claims;
    assert!(prepared.len() == 1024 && prepared.values().all(|answer| answer.error.is_empty()));
    // More than a message holds is not a call.
    let long = (0..2000).map(|n| claim("default", &"a".repeat(1000), &n.to_string()));
    assert_eq!(kubelet.prepare(long).await.unwrap_err().code(), tonic::Code::OutOfRange);
    assert_eq!(driver.daemon.calls().len(), 1024);
}

#[tokio::test(flavor = "current_thread")]
async fn a_daemon_that_does_not_answer_costs_that_claim_alone() {
    let node = Node::new();
    let kubelet = node.kubelet(Manner::NEW);
    let driver = Running::of(&node, "node", Pace { claim: Duration::from_secs(1), ..PACE });
    until_registered(&kubelet, 1).await;
    let asked = [claim("default", "hangs", "0"), claim("default", "a", "1")];
    let prepared = kubelet.prepare(asked).await.unwrap().claims;
    let sentence = "mpsgated has not answered for 1 s, and kubelet asks again: run mpsgate status \
                    on the node";
    assert_eq!([&*prepared["0"].error, &*prepared["1"].error], [sentence, ""]);
    assert_eq!(driver.daemon.count("Warn: no answer for claim default/hangs for 1 s"), 1);
    assert_eq!(*driver.daemon.given_up.lock().unwrap(), 1);
    // It leaves nothing that the next call would wait for.
    let prepared = kubelet.prepare([claim("default", "a", "0")]).await.unwrap().claims;
    assert_eq!(prepared["0"].error, "");
}

#[tokio::test(flavor = "current_thread")]
async fn a_call_that_kubelet_gives_up_is_dropped() {
    let node = Node::new();
    let kubelet = node.kubelet(Manner::NEW);
    let driver = Running::start(&node);
    until_registered(&kubelet, 1).await;
    let mut plugin = kubelet.plugin();
    let claims = vec![claim("default", "hangs", "0")];
    let call = plugin.node_prepare_resources(NodePrepareResourcesRequest { claims });
    assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
    eventually("it is given up", || *driver.daemon.given_up.lock().unwrap() == 1).await;
    kubelet.prepare([claim("default", "a", "0")]).await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn calls_for_one_claim_are_one_after_the_other() {
    let node = Node::new();
    let kubelet = node.kubelet(Manner::NEW);
    let driver = Running::start(&node);
    until_registered(&kubelet, 1).await;
    // The daemon panics if two calls for one claim overlap.
    let (mut prepared, mut unprepared) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let kubelet = &kubelet;
        prepared.push(kubelet.prepare([claim("default", "a", UID), claim("default", "b", "1")]));
        unprepared.push(kubelet.unprepare([claim("default", "a", UID)]));
    }
    let mut calls: Vec<std::pin::Pin<Box<dyn Future<Output = String>>>> = Vec::new();
    for call in prepared {
        calls.push(Box::pin(async { call.await.unwrap().claims[UID].error.clone() }));
    }
    for call in unprepared {
        calls.push(Box::pin(async { call.await.unwrap().claims[UID].error.clone() }));
    }
    let mut open = calls.len();
    std::future::poll_fn(|cx| {
        calls.retain_mut(|call| match call.as_mut().poll(cx) {
            std::task::Poll::Ready(error) => {
                assert_eq!(error, "");
                open -= 1;
                false
            }
            std::task::Poll::Pending => true,
        });
        if open == 0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    assert_eq!(driver.daemon.calls().len(), 60);
}

#[tokio::test(flavor = "current_thread")]
async fn another_uid_under_one_name_is_another_claim() {
    let node = Node::new();
    let kubelet = node.kubelet(Manner::NEW);
    let driver = Running::start(&node);
    until_registered(&kubelet, 1).await;
    let one = kubelet.prepare([claim("default", "a", "0")]).await.unwrap().claims;
    let both = [claim("default", "a", "0"), claim("default", "a", "1")];
    let two = kubelet.prepare(both).await.unwrap().claims;
    assert_eq!(one["0"], two["0"]);
    assert_eq!(two["1"].devices[0].cdi_device_ids, ["mpsgate.io/claim=1"]);
    kubelet.unprepare([claim("default", "a", "0")]).await.unwrap();
    assert_eq!(driver.daemon.prepared(), ["1"]);
}

#[tokio::test(flavor = "current_thread")]
async fn a_connection_that_hangs_or_sends_garbage_delays_no_other() {
    let node = Node::new();
    let driver = Running::start(&node);
    eventually("it listens", || driver.daemon.count("listens on") == 2).await;
    let mut hanging = Vec::new();
    for path in [node.registration("node"), node.socket("node")] {
        for bytes in [
            &b""[..],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            &[0xff; 4096],
            b"GET / HTTP/1.1\r\n\r\n",
        ] {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            hanging.push(stream);
        }
    }
    let kubelet = node.kubelet(Manner::NEW);
    until_registered(&kubelet, 1).await;
    let prepared = kubelet.prepare([claim("default", "a", UID)]).await.unwrap();
    assert_eq!(prepared.claims[UID].error, "");
    assert_eq!(driver.daemon.count("Warn: "), 0, "{:?}", driver.daemon.events);
}

#[tokio::test(flavor = "current_thread")]
async fn kubelet_reads_health_at_once_with_each_change_and_again() {
    for manner in [Manner::NEW, Manner::OLD] {
        let node = Node::new();
        let kubelet = node.kubelet(manner.clone());
        let driver = Running::start(&node);
        eventually("the first list", || kubelet.lists().len() == 1).await;
        let first = kubelet.lists().remove(0);
        let wanted = |health: health_v1::HealthStatus, name: &str, message: String| {
            health_v1::DeviceHealth {
                device: Some(health_v1::DeviceIdentifier {
                    pool_name: "node-1".to_owned(),
                    device_name: name.to_owned(),
                }),
                health: health.into(),
                last_updated_time: 1_700_000_000,
                health_check_timeout_seconds: 3 * 3600,
                message,
            }
        };
        let xid = || "Xid 79".to_owned();
        assert_eq!(first, [wanted(health_v1::HealthStatus::Healthy, "gpu-0", xid())]);
        let mut long = device("gpu-1", None);
        long.message = format!("\u{1b}{}", "x".repeat(5000));
        driver.health.send_replace(vec![device("gpu-0", Some(false)), long]);
        eventually("the second list", || kubelet.lists().len() == 2).await;
        let second = kubelet.lists().remove(1);
        let cut = format!("\\u{{1b}}{}…", "x".repeat(1017));
        assert_eq!(second[0], wanted(health_v1::HealthStatus::Unhealthy, "gpu-0", xid()));
        assert_eq!(second[1], wanted(health_v1::HealthStatus::Unknown, "gpu-1", cut));
        assert_eq!(driver.daemon.count("Debug: kubelet reads the health of 1 devices"), 1);
        drop(driver);
        let again = Pace { health: Duration::from_millis(10), ..PACE };
        let _driver = Running::of(&node, "node", again);
        eventually("the same again", || {
            let lists = kubelet.lists();
            lists.len() > 3 && lists.windows(2).all(|two| two[0] == two[1])
        })
        .await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn what_kubelet_refuses_is_reported_once_in_its_words() {
    let node = Node::new();
    let words = "RegisterPlugin error -- no handler registered for plugin type: DRAPlugin";
    let kubelet = node.kubelet(Manner::Refuses(words.to_owned()));
    let driver = Running::start(&node);
    eventually("several tries", || kubelet.failures().len() > 3).await;
    let sentence = format!("Warn: kubelet does not register the DRA driver: {words}");
    assert_eq!(driver.daemon.count(&sentence), 1, "{:?}", driver.daemon.events);
    kubelet.behave(Manner::NEW);
    until_registered(&kubelet, 1).await;
    eventually("it is reported", || driver.daemon.count("registered with kubelet as") == 1).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_kubelet_that_is_slow_hangs_up_or_babbles_finds_the_driver_later() {
    for manner in [Manner::HangsUp, Manner::Babbles] {
        let node = Node::new();
        let kubelet = node.kubelet(manner);
        let driver = Running::start(&node);
        eventually("several tries", || kubelet.failures().len() > 3).await;
        kubelet.behave(Manner::IsSlow(Duration::from_millis(50)));
        until_registered(&kubelet, 1).await;
        kubelet.prepare([claim("default", "a", UID)]).await.unwrap();
        assert_eq!(driver.daemon.count("Warn: "), 0, "{:?}", driver.daemon.events);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_restarted_kubelet_finds_the_driver_and_its_claims() {
    let node = Node::new();
    let kubelet = node.kubelet(Manner::OLD);
    let driver = Running::start(&node);
    until_registered(&kubelet, 1).await;
    let first = kubelet.prepare([claim("default", "a", UID)]).await.unwrap();
    drop(kubelet);
    for n in 2..6 {
        let kubelet = node.kubelet(Manner::NEW);
        until_registered(&kubelet, 1).await;
        assert_eq!(kubelet.prepare([claim("default", "a", UID)]).await.unwrap(), first);
        eventually("it is reported", || driver.daemon.count("registered with kubelet as") == n)
            .await;
    }
    assert_eq!(driver.daemon.count("has gone"), 0);
}

#[tokio::test(flavor = "current_thread")]
async fn a_kubelet_that_does_not_ask_is_reported_once() {
    let node = Node::new();
    let retry = Retry { poll: Duration::from_millis(5), ..PACE.retry };
    let pace = Pace { asked: Duration::from_millis(50), retry, ..PACE };
    let driver = Running::of(&node, "node", pace);
    let sentence = "Warn: kubelet has not asked for the DRA driver for 0 s";
    eventually(sentence, || driver.daemon.count(sentence) == 1).await;
    let kubelet = node.kubelet(Manner::NEW);
    until_registered(&kubelet, 1).await;
    assert_eq!(driver.daemon.count("Warn: "), 1);
}
