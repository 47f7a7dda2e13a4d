//! The plugin on a fake kubelet: what a real kubelet does, and what it cannot be made to do.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
#![allow(clippy::disallowed_methods, reason = "a test is not held to what the library may do")]

mod host;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fake_kubelet::{Checkpoint, Kubelet, Manner, allocate_request, connect, directory, eventually};
use host::Daemon;
use mpsgate_deviceplugin::api::Empty;
use mpsgate_deviceplugin::{Inventory, Pace, Place, Retry, Stock, serve};
use mpsgate_model::{Mib, Resource, example_gpu as uuid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const MEM: &str = "aliyun.com/gpu-mem";
const SOCKET: &str = "mpsgate-aliyun.com_gpu-mem.sock";

/// Two cards of 16 and 8 GiB.
fn inventory() -> Inventory {
    let card = |index, gib: u64| {
        let (memory, withheld) = (Mib(gib * 1024), Mib(0));
        Stock { index, memory, withheld, trouble: None, numa: None }
    };
    Inventory { cards: [(uuid(0), card(0, 16)), (uuid(1), card(1, 8))].into(), spread: false }
}

/// A plugin that runs until it is stopped or dropped.
struct Running {
    daemon: Arc<Daemon>,
    cards: watch::Sender<Inventory>,
    task: JoinHandle<()>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl Running {
    fn start(directory: &Path) -> Self {
        Self::of(directory, Resource::Memory)
    }

    fn of(directory: &Path, resource: Resource) -> Self {
        let daemon = Arc::new(Daemon::default());
        let cards = watch::Sender::new(inventory());
        // Long enough that only inotify can be as quick as the tests; short for retries.
        let pace = Pace {
            retry: Retry {
                first: Duration::from_millis(20),
                most: Duration::from_millis(100),
                poll: Duration::from_secs(3600),
            },
            answer: Duration::from_secs(2),
            grant: Duration::from_secs(1),
        };
        let place = Place { directory: directory.to_owned(), pace };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let host = Arc::clone(&daemon);
        let task = tokio::spawn(serve(place, resource, cards.subscribe(), host, async {
            let _ = stopped.await;
        }));
        Self { daemon, cards, task, stop: Some(stop) }
    }

    async fn stop(mut self) {
        drop(self.stop.take());
        (&mut self.task).await.unwrap();
    }

    fn change(&self, card: u32, change: impl FnOnce(&mut Stock)) {
        self.cards.send_modify(|now| change(now.cards.get_mut(&uuid(card)).unwrap()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn until_listed(kubelet: &Kubelet, devices: (usize, usize)) {
    let what = format!("{devices:?} devices");
    eventually(&what, || kubelet.devices(MEM) == devices).await;
}

#[tokio::test(flavor = "current_thread")]
async fn kubelet_sees_health_go_and_come_back() {
    let dir = directory();
    let kubelet = Kubelet::start(dir.path(), Manner::Reads, Checkpoint::default());
    let plugin = Running::start(dir.path());
    until_listed(&kubelet, (24, 24)).await;
    let request = kubelet.registrations().remove(0);
    assert_eq!((request.version.as_str(), request.endpoint.as_str()), ("v1beta1", SOCKET));
    assert_eq!(request.resource_name, MEM);
    plugin.change(1, |card| card.trouble = Some("Xid 79".to_owned()));
    until_listed(&kubelet, (16, 24)).await;
    // A local container's grant, which kubelet did not give out.
    plugin.change(0, |card| card.withheld = Mib(3 * 1024 + 1));
    until_listed(&kubelet, (12, 24)).await;
    plugin.cards.send_replace(inventory());
    until_listed(&kubelet, (24, 24)).await;
    plugin.cards.send_modify(|now| drop(now.cards.remove(&uuid(0))));
    until_listed(&kubelet, (8, 8)).await;
    assert_eq!(kubelet.registrations().len(), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn a_container_gets_a_token_of_one_card_or_a_sentence() {
    let dir = directory();
    let kubelet = Kubelet::start(dir.path(), Manner::Reads, Checkpoint::default());
    let plugin = Running::start(dir.path());
    until_listed(&kubelet, (24, 24)).await;
    let first = kubelet.admit("a", MEM, 7).await.unwrap();
    assert_eq!(first.annotations["mpsgate.io/grant"], "token-1");
    assert_eq!(first.envs["ALIYUN_COM_GPU_MEM_CONTAINER"], "7");
    assert_eq!(first.envs["ALIYUN_COM_GPU_MEM_IDX"], "1");
    assert!(first.mounts.is_empty() && first.devices.is_empty() && first.cdi_devices.is_empty());
    // The smaller card has one unit left.
    let second = kubelet.admit("b", MEM, 2).await.unwrap();
    assert_eq!(second.envs["ALIYUN_COM_GPU_MEM_IDX"], "0");
    let third = kubelet.admit("c", MEM, 1).await.unwrap();
    assert_eq!(third.envs["ALIYUN_COM_GPU_MEM_IDX"], "1");
    let asked = plugin.daemon.asked.lock().unwrap().clone();
    let asked: Vec<_> = asked.iter().map(|one| (one.memory, one.card().cloned())).collect();
    let gib = |gib: u64| Some(Mib(gib * 1024));
    let (zero, one) = (Some(uuid(0)), Some(uuid(1)));
    assert_eq!(asked, [(gib(7), one.clone()), (gib(2), zero), (gib(1), one)]);
    let denied = kubelet.admit("d", MEM, 9).await.unwrap_err();
    assert_eq!(denied.code(), tonic::Code::FailedPrecondition);
    assert_eq!(denied.message(), "no token: the keys cannot be read, run mpsgate doctor");
}

#[tokio::test(flavor = "current_thread")]
async fn several_containers_in_one_call_are_all_or_nothing() {
    let dir = directory();
    let kubelet = Kubelet::start(dir.path(), Manner::Reads, Checkpoint::default());
    let plugin = Running::start(dir.path());
    until_listed(&kubelet, (24, 24)).await;
    let mut client = kubelet.plugin(MEM).await;
    let ids = |numbers: std::ops::Range<u32>| numbers.map(|n| format!("{}-{n}", uuid(0))).collect();
    let both = allocate_request([ids(0..2), ids(2..5)]);
    let answers = client.allocate(both).await.unwrap().into_inner().container_responses;
    let env = |n: usize, name: &str| answers[n].envs[&format!("ALIYUN_COM_GPU_MEM_{name}")].clone();
    let of = |n| [env(n, "CONTAINER"), env(n, "POD"), env(n, "DEV")];
    assert_eq!(
        (of(0), of(1)),
        (["2", "5", "16"].map(Into::into), ["3", "5", "16"].map(Into::into))
    );
    assert_ne!(answers[0].annotations, answers[1].annotations);
    let twice = allocate_request([ids(0..2), ["0"; 2].map(|n| format!("{}-{n}", uuid(0))).into()]);
    let error = client.allocate(twice).await.unwrap_err();
    assert!(error.message().ends_with("twice"), "{error}");
    assert_eq!(plugin.daemon.asked.lock().unwrap().len(), 2);
    let foreign = client.allocate(allocate_request([vec!["\u{0}../../x".to_owned()]])).await;
    assert!(foreign.unwrap_err().message().contains("is not a device of mpsgate"));
    let unasked =
        client.pre_start_container(mpsgate_deviceplugin::api::PreStartContainerRequest::default());
    assert_eq!(unasked.await.unwrap_err().code(), tonic::Code::Unimplemented);
}

#[tokio::test(flavor = "current_thread")]
async fn a_restarted_kubelet_finds_the_same_devices() {
    let dir = directory();
    let checkpoint = Checkpoint::default();
    let kubelet = Kubelet::start(dir.path(), Manner::Reads, checkpoint.clone());
    let plugin = Running::start(dir.path());
    until_listed(&kubelet, (24, 24)).await;
    kubelet.admit("a", MEM, 7).await.unwrap();
    for _ in 0..5 {
        drop(kubelet_again(&dir, &checkpoint).await);
    }
    let kubelet = kubelet_again(&dir, &checkpoint).await;
    // The container still has its devices: the next one gets others.
    kubelet.admit("b", MEM, 1).await.unwrap();
    let kept = checkpoint.lock().unwrap();
    assert!(kept["a"].0.is_disjoint(&kept["b"].0));
    assert_eq!(plugin.daemon.count("Warn: "), 0, "{:?}", plugin.daemon.events);
}

async fn kubelet_again(dir: &tempfile::TempDir, checkpoint: &Checkpoint) -> Kubelet {
    let kubelet = Kubelet::start(dir.path(), Manner::Reads, checkpoint.clone());
    until_listed(&kubelet, (24, 24)).await;
    kubelet
}

#[tokio::test(flavor = "current_thread")]
async fn a_restarted_plugin_replaces_its_stale_socket_and_registers() {
    let dir = directory();
    let kubelet = Kubelet::start(dir.path(), Manner::Reads, Checkpoint::default());
    // A daemon that was killed leaves the file.
    drop(std::os::unix::net::UnixListener::bind(dir.path().join(SOCKET)).unwrap());
    let first = Running::start(dir.path());
    until_listed(&kubelet, (24, 24)).await;
    first.stop().await;
    until_listed(&kubelet, (0, 0)).await;
    assert!(!dir.path().join(SOCKET).exists());
    let _second = Running::start(dir.path());
    until_listed(&kubelet, (24, 24)).await;
    assert_eq!(kubelet.registrations().len(), 2);
}

#[tokio::test(flavor = "current_thread")]
async fn a_socket_that_is_removed_or_replaced_is_made_anew_in_mid_stream() {
    let dir = directory();
    let kubelet = Kubelet::start(dir.path(), Manner::Reads, Checkpoint::default());
    let plugin = Running::start(dir.path());
    until_listed(&kubelet, (24, 24)).await;
    std::fs::remove_file(dir.path().join(SOCKET)).unwrap();
    eventually("a second registration", || kubelet.registrations().len() == 2).await;
    until_listed(&kubelet, (24, 24)).await;
    let other = dir.path().join("other");
    let _thief = std::os::unix::net::UnixListener::bind(&other).unwrap();
    std::fs::rename(&other, dir.path().join(SOCKET)).unwrap();
    eventually("a third registration", || kubelet.registrations().len() == 3).await;
    until_listed(&kubelet, (24, 24)).await;
    assert_eq!(plugin.daemon.count("has gone"), 2);
}

#[tokio::test(flavor = "current_thread")]
async fn a_kubelet_that_comes_later_is_found() {
    let dir = directory();
    let kubelets = dir.path().join("device-plugins");
    let plugin = Running::start(&kubelets);
    eventually("no directory", || plugin.daemon.count("cannot look at") == 1).await;
    std::fs::create_dir(&kubelets).unwrap();
    std::fs::set_permissions(&kubelets, std::os::unix::fs::PermissionsExt::from_mode(0o750))
        .unwrap();
    eventually("no kubelet", || plugin.daemon.count("no kubelet") == 1).await;
    let kubelet = Kubelet::start(&kubelets, Manner::Reads, Checkpoint::default());
    until_listed(&kubelet, (24, 24)).await;
    assert_eq!(plugin.daemon.count("cannot look at"), 1);
}

#[tokio::test(flavor = "current_thread")]
async fn what_kubelet_refuses_is_reported_once_in_its_words_and_tried_again() {
    let dir = directory();
    let words = "requested API version \"v1beta1\" is not supported by kubelet. Supported versions are [\"v2\"]";
    let manner = Manner::Refuses(words.to_owned());
    let kubelet = Kubelet::start(dir.path(), manner, Checkpoint::default());
    let plugin = Running::start(dir.path());
    eventually("several tries", || kubelet.registrations().len() > 3).await;
    let sentence = format!("Warn: kubelet does not register {MEM}: {words}");
    assert_eq!(plugin.daemon.count(&sentence), 1, "{:?}", plugin.daemon.events);
    kubelet.behave(Manner::Reads);
    until_listed(&kubelet, (24, 24)).await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_kubelet_that_is_silent_or_babbles_is_left_and_tried_again() {
    for (manner, sentence) in [
        (Manner::IsSilent, "kubelet has not answered on "),
        (Manner::Babbles, "cannot speak to kubelet on "),
    ] {
        let dir = directory();
        let kubelet = Kubelet::start(dir.path(), manner, Checkpoint::default());
        let plugin = Running::start(dir.path());
        eventually(sentence, || plugin.daemon.count(sentence) == 1).await;
        kubelet.behave(Manner::Reads);
        until_listed(&kubelet, (24, 24)).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_kubelet_that_does_not_ask_or_hangs_up_is_registered_with_again() {
    let dir = directory();
    let kubelet = Kubelet::start(dir.path(), Manner::Ignores, Checkpoint::default());
    let plugin = Running::start(dir.path());
    let sentence = "did not ask for its list for 2 s";
    eventually(sentence, || plugin.daemon.count(sentence) == 1).await;
    kubelet.behave(Manner::HangsUp);
    eventually("it hung up", || plugin.daemon.count("reads the list no longer") > 0).await;
    kubelet.behave(Manner::Reads);
    until_listed(&kubelet, (24, 24)).await;
    let so_far = kubelet.registrations().len();
    plugin.change(0, |card| card.withheld = Mib(1024));
    until_listed(&kubelet, (23, 24)).await;
    assert_eq!(kubelet.registrations().len(), so_far);
}

#[tokio::test(flavor = "current_thread")]
async fn a_slow_reader_or_garbage_delays_no_other() {
    let dir = directory();
    let kubelet = Kubelet::start(dir.path(), Manner::Reads, Checkpoint::default());
    let plugin = Running::of(dir.path(), Resource::by(1).unwrap());
    let fine = "mpsgate.io/gpu-mem-1mi";
    let total = 24 * 1024;
    eventually("the list", || kubelet.devices(fine) == (total, total)).await;
    let path = dir.path().join("mpsgate-mpsgate.io_gpu-mem-1mi.sock");
    let mut hanging = Vec::new();
    for bytes in
        [&b""[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0xff; 4096], b"GET / HTTP/1.1\r\n\r\n"]
    {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        hanging.push(stream);
    }
    // Its window is full after 64 KiB of 1.5 MB, and it reads no further.
    let mut slow = connect(&path).await.list_and_watch(Empty {}).await.unwrap().into_inner();
    for mib in 1..=50 {
        plugin.change(0, |card| card.withheld = Mib(mib));
        tokio::task::yield_now().await;
    }
    eventually("the last list", || kubelet.devices(fine) == (total - 50, total)).await;
    assert_eq!(
        kubelet.admit("a", fine, 100).await.unwrap().envs["ALIYUN_COM_GPU_MEM_CONTAINER"],
        "100"
    );
    // It then soon reads the newest list, not all that it missed.
    let healthy = |devices: &[mpsgate_deviceplugin::api::Device]| {
        devices.iter().filter(|device| device.health == "Healthy").count()
    };
    let mut read = 0;
    loop {
        let list = slow.message().await.unwrap().unwrap();
        read += 1;
        if healthy(&list.devices) == total - 50 {
            break;
        }
    }
    assert!(read <= 5, "{read} lists of 51");
    drop(hanging);
}

#[tokio::test(flavor = "current_thread")]
async fn a_daemon_that_does_not_answer_costs_that_container_alone() {
    let dir = directory();
    let kubelet = Kubelet::start(dir.path(), Manner::Reads, Checkpoint::default());
    let plugin = Running::start(dir.path());
    until_listed(&kubelet, (24, 24)).await;
    plugin.daemon.hangs.store(true, Ordering::SeqCst);
    let mut client = kubelet.plugin(MEM).await;
    let mut call = Box::pin(client.allocate(allocate_request([vec![format!("{}-0", uuid(0))]])));
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut call).await.is_err());
    plugin.change(0, |card| card.withheld = Mib(1024));
    until_listed(&kubelet, (23, 24)).await;
    let sentence = call.await.unwrap_err().message().to_owned();
    assert_eq!(sentence, "mpsgated has not answered for 1 s: run mpsgate status on the node");
}

/// A request as kubelets before 1.27 made it: grpc-go without `WithAuthority` on a unix socket.
fn old_request(authority: &str) -> Vec<u8> {
    let literal = |text: &str| {
        assert!(text.len() < 127);
        [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
    };
    let headers = [
        // HPACK's table: POST, http; then :path, :authority, content-type and te with literal
        // values.
        vec![0x83, 0x86, 0x04],
        literal("/v1beta1.DevicePlugin/ListAndWatch"),
        vec![0x01],
        literal(authority),
        vec![0x0f, 0x10],
        literal("application/grpc"),
        vec![0x00],
        literal("te"),
        literal("trailers"),
    ]
    .concat();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let length = u8::try_from(headers.len()).unwrap();
    let frame = [0, 0, length, 1, 4, 0, 0, 0, 1];
    let body = [0, 0, 5, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0];
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &frame, &headers, &body].concat()
}

async fn events_after(authority: &str) -> (String, usize, usize) {
    let dir = directory();
    let kubelet = Kubelet::start(dir.path(), Manner::Ignores, Checkpoint::default());
    let plugin = Running::start(dir.path());
    eventually("a registration", || plugin.daemon.count("registered with kubelet") > 0).await;
    let mut stream = UnixStream::connect(dir.path().join(SOCKET)).await.unwrap();
    stream.write_all(&old_request(authority)).await.unwrap();
    let seen = || plugin.daemon.count("malformed HTTP/2") + plugin.daemon.count("reads the list:");
    eventually("an answer", || seen() > 0).await;
    let mut answer = vec![0; 4096];
    assert!(stream.read(&mut answer).await.unwrap() > 0);
    let malformed = plugin.daemon.count("malformed HTTP/2");
    (format!("{:?}", plugin.daemon.events), malformed, kubelet.registrations().len())
}

#[tokio::test(flavor = "current_thread")]
async fn a_kubelet_before_1_27_is_named_as_the_cause() {
    let path = format!("/var/lib/kubelet/device-plugins/{SOCKET}");
    for authority in [path.clone(), path.replace('/', "%2F")] {
        let (events, malformed, _) = events_after(&authority).await;
        assert_eq!(malformed, 1, "{events}");
    }
    // The same bytes with the authority of 1.27 are an ordinary request.
    let (events, malformed, _) = events_after("localhost").await;
    assert_eq!(malformed, 0, "{events}");
}

#[tokio::test(flavor = "current_thread")]
async fn resources_come_and_go_one_by_one() {
    let dir = directory();
    let kubelet = Kubelet::start(dir.path(), Manner::Reads, Checkpoint::default());
    let memory = Running::start(dir.path());
    let slice = Running::of(dir.path(), Resource::slice(10).unwrap());
    let count = Running::of(dir.path(), Resource::Cards);
    until_listed(&kubelet, (24, 24)).await;
    let ten = "nvidia.com/gpu-10gb";
    // 16 GiB hold one, 8 GiB none.
    eventually("a slice", || kubelet.devices(ten) == (1, 1)).await;
    eventually("cards", || kubelet.devices("aliyun.com/gpu-count") == (2, 2)).await;
    slice.change(0, |card| card.withheld = Mib(7 * 1024));
    eventually("no slice", || kubelet.devices(ten) == (0, 1)).await;
    slice.stop().await;
    eventually("it is gone", || kubelet.devices(ten) == (0, 0)).await;
    let sockets = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(sockets, 3, "kubelet's, memory's and that of the count");
    until_listed(&kubelet, (24, 24)).await;
    drop((memory, count));
}

#[tokio::test(flavor = "current_thread")]
async fn a_list_that_does_not_fit_is_reported_and_not_advertised() {
    let dir = directory();
    let kubelet = Kubelet::start(dir.path(), Manner::Reads, Checkpoint::default());
    let plugin = Running::start(dir.path());
    until_listed(&kubelet, (24, 24)).await;
    plugin.change(0, |card| card.memory = Mib(1 << 40));
    until_listed(&kubelet, (0, 0)).await;
    assert_eq!(
        plugin.daemon.count("Error: nothing is advertised: the node has 1073741832 devices"),
        1
    );
}
