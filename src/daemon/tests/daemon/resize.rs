//! `mpsgate resize`: a container that runs gets more or less, and nobody's card is given twice.

use std::fs;

use mpsgate_api::{Call, Engine, ExecRecord, FILES_FORMAT, Reply, Resize, WireRefusal};
use mpsgate_config::Schedule;
use mpsgate_model::{Grant, GrantKey, Mib, PodContainer};
use mpsgate_token::Store;
use serde_json::json;

use crate::grants::Cgroup;
use crate::harness::{Container, Node, Running, need, on_card, request, uuid, wait_for};
use crate::limits::{calls, charge, entry, grant_in, level, limits, node, recorded};

fn resize(daemon: &Running, container: &str, mib: u64) -> Result<String, WireRefusal> {
    let call = Resize { container: container.to_owned(), memory: Mib(mib) };
    match daemon.call(Call::Resize(call)) {
        Reply::Resized { lines } => Ok(lines.join("\n")),
        Reply::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

/// `CODE: sentence` of a refusal.
fn refusal(daemon: &Running, container: &str, mib: u64) -> String {
    let WireRefusal { code, sentence, hint } = resize(daemon, container, mib).unwrap_err();
    assert!(!hint.is_empty(), "{sentence}");
    format!("{code}: {sentence}")
}

fn active(daemon: &Running, name: &str, gib: u64) -> (Grant, Container) {
    let grant = daemon.reserve(on_card(request(name, gib), 0)).unwrap();
    let init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    (grant, init)
}

fn record_path(node: &Node, grant: &Grant) -> std::path::PathBuf {
    let (root, id) = (&grant.key.runtime_root, grant.key.container_id.as_str());
    node.paths.grants().join(GrantKey::record_name(root, id).unwrap())
}

/// As the shim writes it, for a container with such a limit of its own.
fn write_record(node: &Node, grant: &Grant, own_mib: u64) {
    let record = ExecRecord {
        format: FILES_FORMAT,
        grant: grant.clone(),
        drop: Vec::new(),
        set: vec![
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".to_owned(), format!("0={own_mib}M")),
            ("NVIDIA_VISIBLE_DEVICES".to_owned(), uuid(0)),
        ],
        closed: Vec::new(),
    };
    fs::write(record_path(node, grant), serde_json::to_vec(&record).unwrap()).unwrap();
}

/// What `exec` is told: the grant's memory, and the limit of a process.
fn record(node: &Node, grant: &Grant) -> (u64, String) {
    let record = ExecRecord::parse(&fs::read(record_path(node, grant)).unwrap()).unwrap();
    (record.grant.memory.0, record.set[0].1.clone())
}

#[test]
fn more_is_recorded_for_the_card_for_exec_and_over_a_restart() {
    let node = Node::new(1);
    let daemon = node.start();
    let (web, init) = active(&daemon, "web-1", 7);
    write_record(&node, &web, 7168);
    let text = resize(&daemon, "web-1", 9216).unwrap();
    assert!(text.starts_with("container web-1 has 9 GiB of GPU 0 now, and had 7 GiB\n"), "{text}");
    assert_eq!(daemon.granted_mib(), 9216);
    assert_eq!(record(&node, &web), (9216, "0=9216M".to_owned()));
    let on_disk = |key: &str| entry(&node)[key].clone();
    assert_eq!(
        (on_disk("grant")["memory"].clone(), on_disk("created_with")),
        (9216.into(), 7168.into())
    );
    // The rest of the card is others', and no more.
    assert_eq!(daemon.reserve(request("db", 7)).unwrap_err().code, "E_NO_CAPACITY");
    let (_db, _init) = active(&daemon, "db", 6);
    assert_eq!(
        refusal(&daemon, "web-1", 9217),
        "E_NO_CAPACITY: container web-1 stays at 9 GiB: GPU 0 has 0 MiB left, and it would take 1 MiB"
    );
    assert!(refusal(&daemon, "web-1", 16 * 1024).starts_with("E_TOO_LARGE: "));
    assert!(refusal(&daemon, "web-1", 5120).contains("MPS takes a process's limit when that"));
    assert_eq!(resize(&daemon, "web", 9216).unwrap(), "container web-1 has 9 GiB of GPU 0 already");
    assert_eq!((daemon.granted_mib(), record(&node, &web).0), (15 * 1024, 9216));
    // Killed before it came to the record.
    write_record(&node, &web, 2048);
    daemon.stop().unwrap();
    let daemon = node.start();
    assert_eq!(daemon.granted_mib(), 15 * 1024);
    assert_eq!(record(&node, &web), (9216, "0=2048M".to_owned()), "a lower limit of its own stays");
    drop(init);
    wait_for("it ends", || daemon.granted_mib() == 6 * 1024);
}

#[test]
fn what_cannot_be_recorded_is_not_changed() {
    let node = Node::new(1);
    let daemon = node.start();
    let (web, _init) = active(&daemon, "web", 2);
    write_record(&node, &web, 2048);
    // Where the ledger lay is nothing to write to.
    fs::rename(node.paths.ledger(), node.dir.path().join("away")).unwrap();
    assert!(refusal(&daemon, "web", 3072).starts_with("E_LEDGER: "));
    assert_eq!((daemon.granted_mib(), record(&node, &web).0), (2048, 2048));
}

#[test]
fn a_container_that_is_not_there_or_not_the_only_one_is_named() {
    let node = Node::new(1);
    let daemon = node.start();
    assert_eq!(
        refusal(&daemon, "web", 1024),
        "E_RESIZE: no container or process \"web\" has a grant on this node"
    );
    assert!(refusal(&daemon, "", 1024).contains("no container or process \"\""));
    let _reserved = daemon.reserve(request("made", 1)).unwrap();
    assert_eq!(refusal(&daemon, "made", 2048), "E_RESIZE: container made is being created");
    let (_a, init) = active(&daemon, "web-1", 1);
    let (_b, _init) = active(&daemon, "web-2", 1);
    assert_eq!(
        refusal(&daemon, "web", 2048),
        "E_RESIZE: \"web\" may mean any of: /run/runc/web-1, /run/runc/web-2"
    );
    assert!(refusal(&daemon, "web-2", 0).starts_with("E_RESIZE: 0 MiB cannot be given"));
    // Its id is the beginning of another's.
    let (_c, _init) = active(&daemon, "web", 1);
    let said = refusal(&daemon, "web", 2048);
    assert!(said.ends_with("any of: /run/runc/web-1, /run/runc/web-2, /run/runc/web"), "{said}");
    resize(&daemon, "/run/runc/web", 2048).unwrap();
    drop(init);
    let gone = |why: &str| why.contains("has ended") || why.contains("no container");
    assert!(gone(&refusal(&daemon, "web-1", 2048)));
}

#[test]
fn a_pod_gets_no_more_than_its_limits() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut call = request("main", 1);
    call.engine = Engine::Kubernetes;
    call.request.memory = None;
    let token = Store::open(&node.paths.tokens(), 0).unwrap().sign(7168, None, None).unwrap();
    call.request.token = Some(token);
    let [uid, namespace, pod, container] = ["p1", "default", "web", "main"].map(str::to_owned);
    call.pod = Some(PodContainer { uid, namespace, pod, container });
    let grant = daemon.reserve(call).unwrap();
    let init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    assert_eq!(
        refusal(&daemon, "main", 7169),
        "E_RESIZE: container main stays at 7 GiB: its pod's limits give it 7 GiB, and kubelet counts no more \
         than that"
    );
}

#[test]
fn the_drivers_limit_goes_with_it_in_both_directions() {
    let (root, cgroup) = need!(Cgroup::on_v2("resized"));
    let node = node(root, json!({}));
    let daemon = node.start();
    let web = grant_in(&daemon, "web", cgroup);
    let path = web.cgroup.id().path;
    write_record(&node, &web.grant, 1024);
    let limit = |mib: u64| [(path.clone(), 0, mib << 20)];
    wait_for("it is recorded", || recorded(&node) == Some(1024));
    resize(&daemon, "web", 4096).unwrap();
    assert_eq!((limits(&node).as_slice(), daemon.granted_mib()), (limit(4096).as_slice(), 4096));
    assert_eq!((recorded(&node), level(&daemon, "web").as_str()), (Some(4096), "cgroup"));
    charge(&node, &path, 3000);
    let text = resize(&daemon, "web", 3000).unwrap();
    assert!(text.contains("holds all its processes together to 3000 MiB from now on"), "{text}");
    assert_eq!((limits(&node).as_slice(), daemon.granted_mib()), (limit(3000).as_slice(), 3000));
    assert_eq!(record(&node, &web.grant), (3000, "0=3000M".to_owned()));
    // NVML tells nobody's use here: the driver knows it.
    let why = refusal(&daemon, "web", 2999);
    assert!(why.starts_with("E_RESIZE: "), "{why}");
    assert!(why.contains("uses 3000 MiB of the card, more than the 2999 MiB"), "{why}");
    assert_eq!((limits(&node).as_slice(), daemon.granted_mib()), (limit(3000).as_slice(), 3000));
    assert_eq!((record(&node, &web.grant).0, level(&daemon, "web").as_str()), (3000, "cgroup"));
    // The next look finds what the ledger says.
    daemon.stop().unwrap();
    let daemon = node.start();
    wait_for("it is told", || level(&daemon, "web") == "cgroup");
    assert_eq!(limits(&node), limit(3000));
}

#[test]
fn where_the_driver_refuses_more_nothing_is_changed() {
    let (root, cgroup) = need!(Cgroup::on_v2("refused"));
    let node = node(root, json!({}));
    let daemon = node.start();
    let web = grant_in(&daemon, "web", cgroup);
    write_record(&node, &web.grant, 1024);
    // A driver that rounds up so far that nobody is held: refused like one that lies.
    node.nvml(|state| state["memory_limits"] = json!({ "round_mib": 16384 }));
    let why = refusal(&daemon, "web", 4096);
    assert!(why.contains("holds nobody"), "{why}");
    assert_eq!((daemon.granted_mib(), record(&node, &web.grant).0), (1024, 1024));
    assert_eq!(entry(&node)["created_with"], serde_json::Value::Null);
    // It cannot have the limit of before from this driver either; from an honest one it has.
    node.nvml(|state| state["memory_limits"] = json!({}));
    let path = web.cgroup.id().path;
    wait_for("it is there again", || limits(&node) == [(path.clone(), 0, 1 << 30)]);
}

#[test]
fn a_crash_between_ledger_and_driver_is_made_up_for() {
    let (root, cgroup) = need!(Cgroup::on_v2("between"));
    let node = node(root, json!({}));
    let daemon = node.start();
    let web = grant_in(&daemon, "web", cgroup);
    resize(&daemon, "web", 4096).unwrap();
    daemon.stop().unwrap();
    // The driver has the amount of before.
    let id = web.cgroup.id();
    node.nvml(|state| state["cards"][0]["limits"][&id.path]["hard_bytes"] = (1_u64 << 30).into());
    let daemon = node.start();
    wait_for("it has all", || limits(&node) == [(id.path.clone(), 0, 4 << 30)]);
    wait_for("it is told", || level(&daemon, "web") == "cgroup");
}

#[test]
fn without_mps_each_card_gives_an_equal_part() {
    let (root, cgroup) = need!(Cgroup::on_v2("parts"));
    let mut node = Node::new(2);
    node.paths.cgroups = root;
    node.config.gpus.schedule = Schedule::Share;
    node.nvml(|state| state["memory_limits"] = json!({}));
    let daemon = node.start();
    let mut call = request("web", 2);
    call.request.cards = std::num::NonZeroU32::new(2).unwrap();
    let grant = daemon.reserve(call).unwrap();
    let init = Container::new();
    cgroup.add(&init);
    daemon.activate(&grant, &init, Some(cgroup.id())).unwrap();
    assert!(refusal(&daemon, "web", 4097).contains("equal parts to the 2 cards"));
    let text = resize(&daemon, "web", 4096).unwrap();
    assert!(text.starts_with("container web has 2 GiB of each of 2 GPUs now"), "{text}");
    assert_eq!(daemon.granted_mib(), 4096);
    let path = cgroup.id().path;
    let set = |card: u32| format!("set {} {path} soft 0 hard {}", uuid(card), 2_u64 << 30);
    let calls = calls(&node);
    assert_eq!(calls[calls.len() - 2..], [set(0), set(1)]);
    resize(&daemon, "web", 1024).unwrap();
    assert_eq!(daemon.granted_mib(), 1024);
}

#[test]
fn without_mps_and_without_limits_more_is_an_agreement_and_less_is_refused() {
    let mut node = Node::new(1);
    node.config.gpus.schedule = Schedule::Share;
    let daemon = node.start();
    let (_web, _init) = active(&daemon, "web", 2);
    assert!(refusal(&daemon, "web", 1024).contains("nothing holds it to its memory"));
    assert!(resize(&daemon, "web", 3072).unwrap().contains("by agreement"));
    assert_eq!(daemon.granted_mib(), 3072);
}
