//! Claims, from kubelet's call to a container and back, on fakes of kubelet and of an API
//! server with `resource.k8s.io/v1`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread::JoinHandle;

use fake_api_server::{Fault, Resources, Store};
use fake_kubelet::dra::{Kubelet, Manner, claim};
use mpsgate_api::{Engine, Reserve};
use mpsgate_config::{Kubeconfig, NodeName, Switch};
use mpsgate_dra::api::dra::Device;
use mpsgate_model::PodContainer;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::harness::{Container, Node, Running, files, request, uuid, wait_for};

/// An API server and a kubelet around a node.
struct Cluster {
    api: Resources,
    kubelet: Option<Kubelet>,
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Cluster {
    /// With a node whose daemon serves claims once it is started.
    fn around(node: &mut Node) -> Self {
        let mut store = Store::default();
        store.add_node("n");
        let api = Resources::start(store);
        let kubernetes = &mut node.config.kubernetes;
        kubernetes.dra = Switch::On;
        kubernetes.kubeconfig = Kubeconfig::File(api.server.kubeconfig.path().to_owned());
        kubernetes.node_name = NodeName::Named("n".to_owned());
        let plugins = node.paths.kubelets[0].clone();
        let root = plugins.parent().unwrap();
        let registry = root.join("plugins_registry");
        for directory in [&plugins, &registry, &root.join("plugins")] {
            fs::create_dir_all(directory).unwrap();
            fs::set_permissions(directory, PermissionsExt::from_mode(0o750)).unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = runtime.block_on(stopped);
        });
        let kubelet = {
            let _guard = handle.enter();
            Kubelet::start(&registry, Manner::NEW)
        };
        Self { api, kubelet: Some(kubelet), handle, stop: Some(stop), thread: Some(thread) }
    }

    /// Starts the daemon, and waits until kubelet knows it and the cluster sees its cards.
    fn start(&self, node: &Node) -> Running {
        let running = node.start();
        let registered = || running.status().claims.is_some_and(|all| all.problem.is_none());
        wait_for("claims are served", registered);
        let slice = || self.api.store(|store| store.names("resourceslices"));
        wait_for("the slice is there", || slice() == ["n-mpsgate.io"]);
        running
    }

    fn kubelet(&self) -> &Kubelet {
        self.kubelet.as_ref().unwrap()
    }

    /// As kube-scheduler leaves it: so much memory of the first card for one pod.
    fn allocate(&self, id: &str, memory: &str, pods: &[&str]) {
        self.api.store(|store| {
            store.add_claim("default", &format!("web-{id}"), id, allocated(memory, pods));
        });
    }

    fn prepare(&self, ids: &[&str]) -> Vec<Result<Vec<Device>, String>> {
        let claims = ids.iter().map(|id| claim("default", &format!("web-{id}"), id));
        let answer = self.handle.block_on(self.kubelet().prepare(claims)).unwrap();
        let of = |id: &&str| {
            let one = answer.claims[*id].clone();
            if one.error.is_empty() { Ok(one.devices) } else { Err(one.error) }
        };
        ids.iter().map(of).collect()
    }

    fn prepare_one(&self, id: &str) -> Result<Vec<Device>, String> {
        self.prepare(&[id]).remove(0)
    }

    fn unprepare(&self, id: &str) -> String {
        let one = claim("default", &format!("web-{id}"), id);
        let answer = self.handle.block_on(self.kubelet().unprepare([one])).unwrap();
        answer.claims[id].error.clone()
    }

    /// What stands in the claim's status of its one device.
    fn told(&self, id: &str) -> Value {
        let claim = self.api.store(|store| store.get(&format!("resourceclaims/default/web-{id}")));
        claim["status"]["devices"][0].clone()
    }

    fn capacity(&self) -> Value {
        let slice = self.api.store(|store| store.get("resourceslices/n-mpsgate.io"));
        slice["spec"]["devices"][0]["capacity"]["memory"]["value"].clone()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kubelet = None;
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

fn allocated(memory: &str, pods: &[&str]) -> Value {
    let reserved: Vec<Value> =
        pods.iter().map(|pod| json!({"resource": "pods", "name": pod, "uid": pod})).collect();
    json!({
        "allocation": {"devices": {"results": [{
            "request": "gpu", "driver": "mpsgate.io", "pool": "n",
            "device": uuid(0).to_lowercase(),
            "shareID": "5ad3f6c2-0000-4000-8000-000000000001",
            "consumedCapacity": {"memory": memory, "clients": "1", "compute": "0"},
        }]}},
        "reservedFor": reserved,
    })
}

/// The token that the engine puts into a container with this claim.
fn token(node: &Node, id: &str) -> String {
    let path = node.paths.cdi.join(format!("mpsgate.io-claim_{id}.json"));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let file: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let device = &file["devices"][0];
    assert_eq!(device["name"], format!("{id}-gpu"));
    let edits = device["containerEdits"].as_object().unwrap();
    assert_eq!(edits.keys().collect::<Vec<_>>(), ["env"], "nothing else is edited");
    let variable = edits["env"][0].as_str().unwrap();
    variable.strip_prefix(&format!("MPSGATE_GRANT_web-{id}.gpu=")).unwrap().to_owned()
}

/// A call of the shim's for a container of that pod.
fn call(container: &str, token: &str, pod: &str) -> Reserve {
    let mut call = request(container, 1);
    call.engine = Engine::Kubernetes;
    call.request.memory = None;
    call.request.token = Some(token.to_owned());
    call.pod = Some(PodContainer {
        uid: pod.to_owned(),
        namespace: "default".to_owned(),
        pod: "web".to_owned(),
        container: container.to_owned(),
    });
    call
}

/// Files of claims that are there.
fn left(node: &Node) -> usize {
    if node.paths.cdi.exists() { files(&node.paths.cdi).len() } else { 0 }
}

fn prepared(daemon: &Running) -> u64 {
    daemon.status().claims.unwrap().prepared
}

#[test]
fn a_claim_goes_from_kubelet_to_one_container_of_its_pod_and_back() {
    let mut node = Node::new(1);
    let cluster = Cluster::around(&mut node);
    let daemon = cluster.start(&node);
    assert_eq!(cluster.capacity(), "15Gi");
    cluster.allocate("c1", "7Gi", &["p1"]);
    let devices = cluster.prepare_one("c1").unwrap();
    assert_eq!(devices[0].cdi_device_ids, ["mpsgate.io/claim=c1-gpu"]);
    assert_eq!(devices[0].share_id.as_deref(), Some("5ad3f6c2-0000-4000-8000-000000000001"));
    assert_eq!(cluster.prepare_one("c1").unwrap(), devices, "kubelet asks again");
    assert_eq!((prepared(&daemon), daemon.card(0).promised_mib), (1, 7168));
    wait_for("the claim's author is told", || {
        cluster.told("c1")["conditions"][0]["status"] == "True"
    });
    assert_eq!(cluster.told("c1")["data"]["memoryMiB"], 7168);

    let token = token(&node, "c1");
    let stranger = daemon.reserve(call("x", &token, "p2")).unwrap_err();
    assert_eq!(stranger.code, "E_UNCONFIRMED");
    assert!(stranger.sentence.contains("another pod's"), "{}", stranger.sentence);
    // Nobody else gets what waits for the pod.
    assert_eq!(daemon.reserve(request("local", 9)).unwrap_err().code, "E_NO_CAPACITY");
    let grant = daemon.reserve(call("main", &token, "p1")).unwrap();
    assert_eq!((grant.memory.0, daemon.card(0).promised_mib), (7168, 0));
    let second = daemon.reserve(call("side", &token, "p1")).unwrap_err();
    assert_eq!(second.code, "E_CLAIM", "{}", second.sentence);
    let init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    // A local container is taken off what the cluster sees; the claim is not.
    daemon.reserve(request("local", 3)).unwrap();
    wait_for("the slice is smaller", || cluster.capacity() == "12Gi");

    assert_eq!(cluster.unprepare("c1"), "");
    assert_eq!((cluster.unprepare("c1").as_str(), cluster.unprepare("unknown").as_str()), ("", ""));
    assert_eq!((left(&node), prepared(&daemon)), (0, 0));
    assert_eq!(daemon.card(0).granted_mib, 10 * 1024, "its processes have it");
    let late = cluster.prepare_one("c1").unwrap_err();
    assert!(late.contains("unprepared for this pod already"), "{late}");
    assert_eq!(left(&node), 0);
}

#[test]
fn what_no_container_can_be_held_to_is_refused_and_leaves_nothing() {
    let mut node = Node::new(1);
    let cluster = Cluster::around(&mut node);
    let daemon = cluster.start(&node);
    let edited = |edit: fn(&mut Value)| {
        let mut status = allocated("7Gi", &["p1"]);
        edit(&mut status);
        status
    };
    let result = "/allocation/devices/results/0";
    for (id, status, said) in [
        ("two-pods", allocated("7Gi", &["p1", "p2"]), "two pods"),
        ("no-pod", allocated("7Gi", &[]), "no pod"),
        ("zero", allocated("0", &["p1"]), "0"),
        ("a-byte", allocated("1", &["p1"]), "MiB"),
        ("too-large", allocated("16Gi", &["p1"]), "E_TOO_LARGE"),
        ("not-allocated", json!({}), "E_CLAIM"),
        (
            "whole-card",
            edited(|s| {
                drop(
                    s.pointer_mut("/allocation/devices/results/0")
                        .unwrap()
                        .as_object_mut()
                        .unwrap()
                        .remove("consumedCapacity"),
                )
            }),
            "DRAConsumableCapacity",
        ),
        (
            "elsewhere",
            edited(|s| s["allocation"]["devices"]["results"][0]["pool"] = "m".into()),
            "pool",
        ),
        (
            "no-card",
            edited(|s| s["allocation"]["devices"]["results"][0]["device"] = "gpu-x".into()),
            "gpu-x",
        ),
        (
            "two-cards",
            edited(|s| {
                let results = s["allocation"]["devices"]["results"].as_array_mut().unwrap();
                results.push(results[0].clone());
            }),
            "E_MULTI_CARD",
        ),
    ] {
        assert!(status.pointer(result).is_some() || id == "not-allocated");
        cluster.api.store(|store| store.add_claim("default", &format!("web-{id}"), id, status));
        let error = cluster.prepare_one(id).unwrap_err();
        assert!(error.contains(said) && error.contains("hint"), "{id}: {error}");
        assert_eq!((left(&node), prepared(&daemon)), (0, 0), "{id}");
    }
    let gone = cluster.prepare_one("gone").unwrap_err();
    assert!(gone.contains("has no claim default/web-gone"), "{gone}");
    // Another claim has its name now.
    cluster.api.store(|store| {
        store.add_claim("default", "web-old", "new-uid", allocated("1Gi", &["p1"]));
    });
    let other = cluster.prepare_one("old").unwrap_err();
    assert!(other.contains("E_CLAIM"), "{other}");
    for fault in [Fault::Cut, Fault::Garbage, Fault::Status(503)] {
        cluster.allocate("late", "7Gi", &["p1"]);
        cluster.api.store(|store| store.faults.push_back(("GET /resourceclaims/web-late", fault)));
        let error = cluster.prepare_one("late").unwrap_err();
        assert!(error.contains("cannot be read from the API server"), "{fault:?}: {error}");
    }
    assert_eq!((left(&node), prepared(&daemon)), (0, 0));
    // Of one call each claim has its own answer.
    cluster.allocate("fits", "7Gi", &["p1"]);
    let answers = cluster.prepare(&["too-large", "fits", "gone"]);
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, false]);
    wait_for("the author is told why", || {
        cluster.told("too-large")["conditions"][0]["status"] == "False"
    });
}

#[test]
fn what_is_prepared_outlives_mpsgated_and_not_a_reboot() {
    let mut node = Node::new(1);
    let cluster = Cluster::around(&mut node);
    let daemon = cluster.start(&node);
    for id in ["c1", "c2"] {
        cluster.allocate(id, "4Gi", &[&format!("pod-of-{id}")]);
        cluster.prepare_one(id).unwrap();
    }
    drop(daemon);
    fs::remove_file(node.paths.cdi.join("mpsgate.io-claim_c1.json")).unwrap();
    fs::write(node.paths.cdi.join("mpsgate.io-claim_stray.json"), "{}").unwrap();
    fs::write(node.paths.cdi.join("another.json"), "{}").unwrap();
    let daemon = cluster.start(&node);
    wait_for("files are as they were", || {
        left(&node) == 3 && node.paths.cdi.join("mpsgate.io-claim_c1.json").exists()
    });
    let grant = daemon.reserve(call("main", &token(&node, "c1"), "pod-of-c1")).unwrap();
    daemon.release(&grant.key);
    // Unprepare needs nobody: the API server is gone, and NVML does not answer.
    cluster.api.store(|store| store.served = false);
    assert_eq!(cluster.unprepare("c2"), "");
    assert_eq!(prepared(&daemon), 1);
    cluster.api.store(|store| store.served = true);
    drop(daemon);
    fs::remove_dir_all(node.paths.ledger()).unwrap();
    fs::remove_dir_all(&node.paths.cdi).unwrap();
    let daemon = cluster.start(&node);
    assert_eq!(prepared(&daemon), 0);
    cluster.prepare_one("c1").unwrap();
    daemon.reserve(call("main", &token(&node, "c1"), "pod-of-c1")).unwrap();
}

/// Another pod of the namespace names the claim, and kubelet asks again after its own restart.
#[test]
fn a_claim_that_is_prepared_stays_its_pods_whoever_names_it_meanwhile() {
    let mut node = Node::new(1);
    let cluster = Cluster::around(&mut node);
    let daemon = cluster.start(&node);
    cluster.allocate("c1", "7Gi", &["p1"]);
    let devices = cluster.prepare_one("c1").unwrap();
    for pods in [&["p1", "p2"][..], &["p2", "p1"][..], &["p1"][..]] {
        cluster.allocate("c1", "7Gi", pods);
        assert_eq!(cluster.prepare_one("c1").as_ref(), Ok(&devices), "{pods:?}");
    }
    let other = daemon.reserve(call("other", &token(&node, "c1"), "p2")).unwrap_err();
    assert_eq!(other.code, "E_UNCONFIRMED", "{}", other.sentence);
    daemon.reserve(call("main", &token(&node, "c1"), "p1")).unwrap();
    // Its pod has it no more, or it was allocated anew.
    for (memory, pods, said) in [
        ("7Gi", &["p2", "p3"][..], "two pods"),
        ("7Gi", &["p2"][..], "prepared already, for another pod or with another allocation"),
        ("6Gi", &["p1"][..], "prepared already, for another pod or with another allocation"),
    ] {
        cluster.allocate("c1", memory, pods);
        let error = cluster.prepare_one("c1").unwrap_err();
        assert!(error.contains(said), "{pods:?}: {error}");
    }
    assert_eq!(prepared(&daemon), 1);
}

/// As Kubernetes makes it of a container's limits, for whoever may create pods.
#[test]
fn a_claim_that_is_made_of_limits_is_a_whole_card_where_a_setting_says_so() {
    for allowed in [false, true] {
        let mut node = Node::new(1);
        node.config.kubernetes.dra_extended_resources = allowed;
        let cluster = Cluster::around(&mut node);
        let daemon = cluster.start(&node);
        cluster.allocate("c1", "15Gi", &["p1"]);
        cluster.api.store(|store| {
            store.edit("resourceclaims/default/web-c1", |claim| {
                claim["metadata"]["annotations"] =
                    json!({"resource.kubernetes.io/extended-resource-claim": "true"});
            });
        });
        match cluster.prepare_one("c1") {
            Ok(devices) => assert!(allowed, "{devices:?}"),
            Err(error) => {
                assert!(!allowed && error.contains("E_CLAIM"), "{error}");
                assert!(error.contains("kubernetes.dra_extended_resources"), "{error}");
            }
        }
        let promised = if allowed { 15 * 1024 } else { 0 };
        assert_eq!(daemon.card(0).promised_mib, promised);
        assert_eq!(left(&node), usize::from(allowed));
    }
}

/// Kubelet tries each minute, and each try would be a write that says nothing new.
#[test]
fn a_refusal_is_written_into_the_claim_once() {
    let mut node = Node::new(1);
    let cluster = Cluster::around(&mut node);
    let _daemon = cluster.start(&node);
    let written = || {
        cluster.api.store(|store| {
            let is_it = |asked: &&String| asked.starts_with("PATCH ") && asked.contains("web-big");
            store.asked.iter().filter(is_it).count()
        })
    };
    cluster.allocate("big", "16Gi", &["p1"]);
    cluster.prepare_one("big").unwrap_err();
    wait_for("the author is told why", || {
        cluster.told("big")["conditions"][0]["status"] == "False"
    });
    let told = cluster.told("big");
    for _ in 0..3 {
        cluster.prepare_one("big").unwrap_err();
    }
    // By then those of the tries would be written, too.
    cluster.allocate("fits", "7Gi", &["p2"]);
    cluster.prepare_one("fits").unwrap();
    wait_for("another's is written", || cluster.told("fits")["conditions"][0]["status"] == "True");
    assert_eq!((written(), cluster.told("big")), (1, told));
}

#[test]
fn of_a_thousand_claims_as_many_are_prepared_as_the_card_has_room_for() {
    let mut node = Node::new(1);
    let cluster = Cluster::around(&mut node);
    let daemon = cluster.start(&node);
    let ids: Vec<String> = (0..1000).map(|n| format!("c{n}")).collect();
    for id in &ids {
        cluster.allocate(id, "1Gi", &[id]);
    }
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let answers = cluster.prepare(&ids);
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 15);
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    for error in refused {
        assert!(error.contains("E_NO_CAPACITY"), "{error}");
    }
    assert_eq!((left(&node), prepared(&daemon), daemon.card(0).promised_mib), (15, 15, 15 * 1024));
}
