//! The device plugin on a kubelet double: what kubelet counts, what a container gets for it, and
//! what outlives what.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use fake_kubelet::{Checkpoint, Kubelet, Manner, allocate_request};
use mpsgate_api::{Call, CardState, Engine, NodeSnapshot, Reply, Reserve, ResourceStatus};
use mpsgate_config::Switch;
use mpsgate_model::{Mib, PodContainer};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::grants::Cgroup;
use crate::harness::{Container, Node, Running, need, on_card, request, servers, uuid, wait_for};
use crate::operator::settings;

pub(crate) const MEM: &str = "aliyun.com/gpu-mem";
const SLICE: &str = "nvidia.com/gpu-10gb";

/// A node's kubelet, on a thread of its own.
pub(crate) struct OnNode {
    directory: PathBuf,
    checkpoint: Checkpoint,
    kubelet: Option<Kubelet>,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OnNode {
    pub(crate) fn start(node: &Node) -> Self {
        let directory = node.paths.kubelets[0].clone();
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, PermissionsExt::from_mode(0o750)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = runtime.block_on(stopped);
        });
        let (stop, thread) = (Some(stop), Some(thread));
        let checkpoint = Checkpoint::default();
        let mut new = Self { directory, checkpoint, kubelet: None, handle, stop, thread };
        new.restart();
        new
    }

    /// Ends it, if it runs, and starts it: it removes all sockets, and its checkpoint stays.
    fn restart(&mut self) {
        self.kubelet = None;
        let _guard = self.handle.enter();
        let checkpoint = self.checkpoint.clone();
        self.kubelet = Some(Kubelet::start(&self.directory, Manner::Reads, checkpoint));
    }

    fn kubelet(&self) -> &Kubelet {
        self.kubelet.as_ref().unwrap()
    }

    pub(crate) fn until(&self, resource: &str, healthy: usize, all: usize) {
        let what = format!("{healthy} of {all} {resource}");
        wait_for(&what, || self.kubelet().devices(resource) == (healthy, all));
    }

    /// The token for a container with so many devices of a card.
    pub(crate) fn allocate(&self, resource: &str, card: u32, devices: usize) -> String {
        let ids = (0..devices).map(|n| format!("{}-{n}", uuid(card))).collect();
        let answer = self.handle.block_on(async {
            let mut plugin = self.kubelet().plugin(resource).await;
            plugin.allocate(allocate_request([ids])).await
        });
        let container = answer.unwrap().into_inner().container_responses.remove(0);
        container.annotations["mpsgate.io/grant"].clone()
    }
}

impl Drop for OnNode {
    fn drop(&mut self) {
        self.kubelet = None;
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What containerd and the shim make of a container with this token.
pub(crate) fn create(id: &str, uid: &str, token: &str) -> Reserve {
    let [uid, namespace, pod, container] = [uid, "default", "web", "main"].map(ToOwned::to_owned);
    let mut call = request(id, 1);
    call.engine = Engine::Kubernetes;
    call.request.memory = None;
    call.request.token = Some(token.to_owned());
    call.pod = Some(PodContainer { uid, namespace, pod, container });
    call
}

fn status(daemon: &Running, resource: &str) -> Option<ResourceStatus> {
    daemon.status().device_plugin.into_iter().find(|one| one.resource == resource)
}

fn snapshot(node: &Node) -> NodeSnapshot {
    NodeSnapshot::parse(&fs::read(node.paths.snapshot()).unwrap()).unwrap()
}

#[test]
fn what_kubelet_allocates_is_granted_on_the_card_that_it_chose_where_that_has_room() {
    let node = Node::new(2);
    let kubelet = OnNode::start(&node);
    let daemon = node.start();
    kubelet.until(MEM, 30, 30);
    // Two pods of one size at the same moment.
    let tokens = [kubelet.allocate(MEM, 1, 7), kubelet.allocate(MEM, 1, 7)];
    let grants: Vec<_> = std::thread::scope(|scope| {
        let create = |(n, token): (usize, &String)| {
            daemon.reserve(create(&format!("c{n}"), &format!("p{n}"), token)).unwrap()
        };
        let threads: Vec<_> =
            tokens.iter().enumerate().map(|one| scope.spawn(move || create(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for grant in &grants {
        assert_eq!((grant.memory, grant.cards[0].uuid.as_str()), (Mib(7168), uuid(1).as_str()));
    }
    // Kubelet's word is a hint: the card is full, and the other one is not.
    let third = kubelet.allocate(MEM, 1, 7);
    let grant = daemon.reserve(create("c2", "p2", &third)).unwrap();
    assert_eq!(grant.cards[0].uuid.as_str(), uuid(0));
    // Nobody else's, and no more than there is.
    let stolen = daemon.reserve(create("thief", "p9", &third)).unwrap_err();
    assert_eq!(stolen.code, "E_UNCONFIRMED");
    let fourth = kubelet.allocate(MEM, 0, 9);
    assert_eq!(daemon.reserve(create("c3", "p3", &fourth)).unwrap_err().code, "E_NO_CAPACITY");
    // What kubelet gave out it counts itself.
    kubelet.until(MEM, 30, 30);
    let told = status(&daemon, MEM).unwrap();
    assert_eq!((told.devices, told.healthy, told.allocations), (30, 30, 4));
    assert!(told.registered_ms.is_some() && told.problem.is_none(), "{told:?}");
}

#[test]
fn what_kubelet_did_not_give_out_is_taken_off_its_count_until_it_ends() {
    let mut node = Node::new(2);
    node.config.trust.local = Switch::On;
    node.config.kubernetes.slices_gib = vec![10];
    let kubelet = OnNode::start(&node);
    let daemon = node.start();
    kubelet.until(MEM, 30, 30);
    kubelet.until(SLICE, 2, 2);
    let local = daemon.reserve(on_card(request("docker", 6), 0)).unwrap();
    kubelet.until(MEM, 24, 30);
    kubelet.until(SLICE, 1, 2);
    // A slice takes from the other resource, and not from its own.
    let token = kubelet.allocate(SLICE, 1, 1);
    let slice = daemon.reserve(create("c", "p", &token)).unwrap();
    assert_eq!((slice.memory, slice.cards[0].uuid.as_str()), (Mib(10_240), uuid(1).as_str()));
    kubelet.until(MEM, 14, 30);
    kubelet.until(SLICE, 1, 2);
    daemon.release(&local.key);
    kubelet.until(MEM, 20, 30);
    kubelet.until(SLICE, 2, 2);
    // A restart knows whose is what.
    drop(daemon);
    let daemon = node.start();
    // Its shim, which is this test, lives.
    kubelet.until(MEM, 20, 30);
    kubelet.until(SLICE, 2, 2);
    daemon.release(&slice.key);
    kubelet.until(MEM, 30, 30);
}

#[test]
fn without_nvml_or_its_card_nothing_is_healthy_and_all_comes_back() {
    let node = Node::new(2);
    let kubelet = OnNode::start(&node);
    let daemon = node.start();
    kubelet.until(MEM, 30, 30);
    node.nvml(|state| state["cards"][1]["error"] = "GPU_IS_LOST".into());
    wait_for("the card is lost", || daemon.card(1).state != CardState::Ready);
    kubelet.until(MEM, 15, 30);
    node.nvml(|state| drop(state["cards"][1].as_object_mut().unwrap().remove("error")));
    wait_for("it is back", || daemon.card(1).state == CardState::Ready);
    kubelet.until(MEM, 30, 30);
    let state = node.dir.path().join("nvml.json");
    let aside = node.dir.path().join("nvml.aside");
    fs::rename(&state, &aside).unwrap();
    wait_for("NVML fails", || daemon.status().nvml_error.is_some());
    kubelet.until(MEM, 0, 30);
    fs::rename(&aside, &state).unwrap();
    wait_for("NVML answers", || daemon.status().nvml_error.is_none());
    kubelet.until(MEM, 30, 30);
}

#[test]
fn kubelets_restart_and_mpsgateds_lose_neither_registration_nor_token() {
    let node = Node::new(1);
    let mut kubelet = OnNode::start(&node);
    let daemon = node.start();
    kubelet.until(MEM, 15, 15);
    let token = kubelet.allocate(MEM, 0, 3);
    let first = daemon.reserve(create("c1", "p", &token)).unwrap();
    kubelet.restart();
    kubelet.until(MEM, 15, 15);
    daemon.release(&first.key);
    drop(daemon);
    kubelet.until(MEM, 0, 0);
    let daemon = node.start();
    kubelet.until(MEM, 15, 15);
    // Replayed from the checkpoint for the restarted container.
    assert_eq!(daemon.reserve(create("c2", "p", &token)).unwrap().memory, Mib(3072));
    kubelet.kubelet = None;
    wait_for("it is said", || status(&daemon, MEM).is_some_and(|one| one.registered_ms.is_none()));
    let told = status(&daemon, MEM).unwrap();
    assert!(told.problem.is_some() && told.hint.is_some(), "{told:?}");
}

#[test]
fn a_reload_switches_it_off_and_on_and_adds_resources() {
    let node = Node::new(1);
    let kubelet = OnNode::start(&node);
    let file = settings(&node, "");
    let daemon = node.start_with(&file);
    kubelet.until(MEM, 15, 15);
    wait_for("pods ask by limits", || snapshot(&node).device_plugin);
    let reload = |more: &str| {
        settings(&node, more);
        match daemon.call(Call::Reload) {
            Reply::Reloaded { lines } => lines,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(reload("kubernetes.device_plugin = \"off\""), ["kubernetes.device_plugin: taken"]);
    kubelet.until(MEM, 0, 0);
    wait_for("nothing is served", || daemon.status().device_plugin.is_empty());
    wait_for("nobody asks by limits", || !snapshot(&node).device_plugin);
    reload("kubernetes.memory_units_mib = [256]\nkubernetes.slices_gib = [10]");
    kubelet.until(MEM, 15, 15);
    kubelet.until("mpsgate.io/gpu-mem-256mi", 60, 60);
    kubelet.until(SLICE, 1, 1);
    let token = kubelet.allocate("mpsgate.io/gpu-mem-256mi", 0, 30);
    assert_eq!(daemon.reserve(create("c", "p", &token)).unwrap().memory, Mib(7680));
    kubelet.until(MEM, 7, 15);
    kubelet.until(SLICE, 0, 1);
}

#[test]
fn nothing_is_registered_while_no_card_is_handed_over() {
    let node = Node::unmanaged(1);
    let kubelet = OnNode::start(&node);
    let daemon = node.start();
    wait_for("the node is told", || node.paths.snapshot().exists());
    assert!(daemon.status().device_plugin.is_empty() && !snapshot(&node).device_plugin);
    daemon.done(Call::Enable { gpu: "0".to_owned() }).unwrap();
    kubelet.until(MEM, 15, 15);
    daemon.done(Call::Disable { gpu: "0".to_owned() }).unwrap();
    kubelet.until(MEM, 0, 0);
    wait_for("nothing is served", || daemon.status().device_plugin.is_empty());
}

#[test]
fn a_container_waits_for_its_pods_earlier_one_that_is_just_ending() {
    let cgroup = need!(Cgroup::new("pod"));
    let node = Node::new(1);
    let kubelet = OnNode::start(&node);
    let daemon = node.start();
    kubelet.until(MEM, 15, 15);
    let token = kubelet.allocate(MEM, 0, 10);
    let grant = daemon.reserve(create("first", "p", &token)).unwrap();
    let (mut init, mut rest) = (Container::new(), Container::new());
    cgroup.add(&init);
    cgroup.add(&rest);
    daemon.activate(&grant, &init, Some(cgroup.id())).unwrap();
    // Another pod's does not wait, and neither does this one's while the first lives.
    let other = kubelet.allocate(MEM, 0, 10);
    assert_eq!(daemon.reserve(create("o", "q", &other)).unwrap_err().code, "E_NO_CAPACITY");
    assert_eq!(daemon.reserve(create("n", "p", &token)).unwrap_err().code, "E_NO_CAPACITY");
    init.kill();
    let second = std::thread::scope(|scope| {
        let waits = scope.spawn(|| daemon.reserve(create("second", "p", &token)));
        // Refused at once for the other pod; by then the first one of ours is known to wait or to
        // have been refused.
        assert_eq!(daemon.reserve(create("o", "q", &other)).unwrap_err().code, "E_NO_CAPACITY");
        std::thread::sleep(Duration::from_millis(200));
        if waits.is_finished() {
            panic!("it did not wait: {:?}", waits.join().unwrap().map(|grant| grant.memory));
        }
        rest.kill();
        drop(rest);
        waits.join().unwrap()
    });
    assert_eq!(second.unwrap().memory, Mib(10_240));
}

/// The library without what says that its cards are simulated.
fn hide_the_simulation(node: &Node) {
    let marker = b"mpsgate_simulated_gpus\0";
    let mut library = fs::read(&node.config.nvml.library).unwrap();
    let at: Vec<_> = library
        .windows(marker.len())
        .enumerate()
        .filter(|(_, bytes)| bytes == marker)
        .map(|(at, _)| at)
        .collect();
    assert!(!at.is_empty());
    at.into_iter().for_each(|at| library[at] = b'x');
    fs::remove_file(&node.config.nvml.library).unwrap();
    fs::write(&node.config.nvml.library, library).unwrap();
}

#[test]
fn kubelet_is_told_of_a_card_once_it_was_asked() {
    need!(servers());
    let mut node = Node::new(2);
    node.qualify_first = Duration::from_secs(3600);
    node.config.trust.local = Switch::On;
    hide_the_simulation(&node);
    let kubelet = OnNode::start(&node);
    let daemon = node.start();
    wait_for("kubelet knows the resource", || {
        status(&daemon, MEM).is_some_and(|one| one.registered_ms.is_some())
    });
    kubelet.until(MEM, 0, 0);
    crate::qualify::qualified(&daemon);
    kubelet.until(MEM, 15, 15);
    // Asked by nobody, but 1 GiB of it is in use.
    daemon.reserve(on_card(request("local", 1), 1)).unwrap();
    kubelet.until(MEM, 29, 30);
}

#[test]
fn kubelet_is_told_of_a_card_that_nobody_asks() {
    need!(servers());
    let mut node = Node::new(1);
    node.qualify_first = Duration::from_secs(1);
    hide_the_simulation(&node);
    let kubelet = OnNode::start(&node);
    let daemon = node.start();
    kubelet.until(MEM, 15, 15);
    assert!(daemon.card(0).qualify.is_some(), "it is still due");
}
