//! The driver's memory limit on a container's cgroup: real cgroups of v2, and a simulated NVML that
//! takes limits as r615's driver does where it counts by itself.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use mpsgate_api::{Call, Removal, Terminate};
use mpsgate_config::Schedule;
use mpsgate_model::Grant;
use mpsgate_model::ledger::CgroupId;
use serde_json::{Value, json};

use crate::grants::Cgroup;
use crate::harness::{Container, Node, Running, need, on_card, request, uuid, wait_for};

/// A container with a grant of 1 GiB on card 0, in a cgroup of v2.
pub(crate) struct Granted {
    pub(crate) init: Container,
    pub(crate) cgroup: Cgroup,
    pub(crate) grant: Grant,
}

/// A node whose driver has limits, and which takes `cgroup`'s tree for its own.
pub(crate) fn node(root: PathBuf, offer: Value) -> Node {
    let mut node = Node::new(1);
    node.paths.cgroups = root;
    node.nvml(|state| state["memory_limits"] = offer);
    node
}

pub(crate) fn grant_in(daemon: &Running, name: &str, cgroup: Cgroup) -> Granted {
    let grant = daemon.reserve(on_card(request(name, 1), 0)).unwrap();
    let init = Container::new();
    cgroup.add(&init);
    daemon.activate(&grant, &init, Some(cgroup.id())).unwrap();
    Granted { init, cgroup, grant }
}

pub(crate) fn level(daemon: &Running, name: &str) -> String {
    let grants = daemon.status().grants;
    grants.into_iter().find(|grant| grant.container_id == name).unwrap().guarantee.to_string()
}

/// The limits that the driver has, by cgroup: `(soft, hard)` in bytes. One that was cleared is an
/// entry without an end.
pub(crate) fn limits(node: &Node) -> Vec<(String, u64, u64)> {
    let text = fs::read_to_string(node.dir.path().join("nvml.json")).unwrap();
    let state: Value = serde_json::from_str(&text).unwrap();
    let bytes = |limit: &Value, key: &str| limit[key].as_u64().unwrap();
    let all = state["cards"][0]["limits"].as_object().cloned().unwrap_or_default();
    all.into_iter()
        .map(|(cgroup, limit)| (cgroup, bytes(&limit, "soft_bytes"), bytes(&limit, "hard_bytes")))
        .filter(|(_, _, hard)| *hard != u64::MAX)
        .collect()
}

/// Every call that changed a limit, oldest first.
pub(crate) fn calls(node: &Node) -> Vec<String> {
    let text = fs::read_to_string(node.dir.path().join("nvml.json.limits")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

pub(crate) fn entry(node: &Node) -> Value {
    let text = fs::read_to_string(node.paths.ledger().join("ledger.json")).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    file["entries"][0].clone()
}

pub(crate) fn recorded(node: &Node) -> Option<u64> {
    entry(node)["cgroup_limit"].as_u64()
}

/// The driver has such an entry for a cgroup.
fn has_limit(state: &mut Value, id: &CgroupId, hard_bytes: u64, charged_bytes: u64) {
    state["cards"][0]["limits"][&id.path] = json!({
        "soft_bytes": 0, "hard_bytes": hard_bytes, "inode": id.inode, "charged_bytes": charged_bytes
    });
}

pub(crate) fn charge(node: &Node, path: &str, mib: u64) {
    node.nvml(|state| state["cards"][0]["limits"][path]["charged_bytes"] = (mib << 20).into());
}

fn inode(path: &str) -> u64 {
    fs::metadata(path).unwrap().ino()
}

fn unlimited(daemon: &Running) -> String {
    daemon.card(0).unlimited.unwrap_or_default()
}

#[test]
fn an_active_grant_is_limited_told_recorded_and_its_limit_cleared_with_its_end() {
    let (root, cgroup) = need!(Cgroup::on_v2("limited"));
    let node = node(root, json!({}));
    let daemon = node.start();
    let mut web = grant_in(&daemon, "web", cgroup);
    let path = web.cgroup.id().path;
    // With the answer to the hook, so before the container's program runs.
    assert_eq!(limits(&node), [(path.clone(), 0, 1 << 30)], "hard is the grant, soft is none");
    assert_eq!((level(&daemon, "web").as_str(), daemon.card(0).unlimited), ("cgroup", None));
    wait_for("it is recorded", || recorded(&node) == Some(1024));
    // The cgroup is kept by this test: the limit goes all the same.
    web.init.kill();
    wait_for("its memory is free", || daemon.granted_mib() == 0);
    wait_for("the limit is cleared", || limits(&node).is_empty());
    let uuid = uuid(0);
    assert_eq!(
        calls(&node),
        [format!("set {uuid} {path} soft 0 hard {}", 1_u64 << 30), format!("clear {uuid} {path}")]
    );
}

#[test]
fn a_limit_that_the_driver_rounded_up_holds() {
    let (root, cgroup) = need!(Cgroup::on_v2("rounded"));
    let node = node(root, json!({ "round_mib": 3000 }));
    let daemon = node.start();
    let web = grant_in(&daemon, "web", cgroup);
    assert_eq!(level(&daemon, "web"), "cgroup");
    wait_for("it is recorded as read back", || recorded(&node) == Some(3000));
    daemon.release(&web.grant.key);
}

#[test]
fn a_limit_that_is_read_back_as_none_is_taken_away_and_not_told() {
    let (root, cgroup) = need!(Cgroup::on_v2("useless"));
    // Rounded to more than the card has.
    let node = node(root, json!({ "round_mib": 20_000 }));
    let daemon = node.start();
    let web = grant_in(&daemon, "web", cgroup);
    wait_for("the watchdog looks", || level(&daemon, "web") == "mps+watchdog");
    assert!(unlimited(&daemon).contains("which holds nobody on a card of 16 GiB"));
    assert_eq!(limits(&node), [], "nobody has a limit that is not told");
    assert_eq!(recorded(&node), None);
    drop(web);
}

#[test]
fn each_reason_for_the_next_level_is_told_and_the_container_lives() {
    let nothing = |_: &mut Value| ();
    type Edit = fn(&mut Value);
    let cases: [(&str, Value, Edit, &str); 4] = [
        ("absent", Value::Null, nothing, "driver 550.163.01 offers no memory limits for cgroups"),
        (
            "nofile",
            json!({ "needs": "dmem.none" }),
            nothing,
            "cannot set a memory limit of 1024 MiB",
        ),
        (
            "denied",
            json!({}),
            |state| {
                state["cards"][0]["error"] = "NO_PERMISSION".into();
                state["cards"][0]["error_in"] = json!(["nvmlDeviceSetMemoryLimits_v1"]);
            },
            "only root of the host may set limits",
        ),
        (
            "unread",
            json!({}),
            |state| {
                state["cards"][0]["error"] = "UNKNOWN".into();
                state["cards"][0]["error_in"] = json!(["nvmlDeviceGetMemoryLimits_v1"]);
            },
            "cannot read the memory limit of",
        ),
    ];
    for (name, offer, edit, reason) in cases {
        let (root, cgroup) = need!(Cgroup::on_v2(name));
        let node = node(root, offer);
        node.nvml(edit);
        let daemon = node.start();
        let mut web = grant_in(&daemon, "web", cgroup);
        assert!(unlimited(&daemon).contains(reason), "{name}: {}", unlimited(&daemon));
        wait_for("the watchdog looks", || level(&daemon, "web") == "mps+watchdog");
        assert_eq!(limits(&node), [], "{name}");
        assert!(web.init.lives(), "{name}");
    }
}

#[test]
fn beside_v1_nothing_is_tried() {
    // In whatever hierarchy there is; the tree of cgroups is a plain directory.
    let cgroup = need!(Cgroup::new("v1"));
    let elsewhere = tempfile::tempdir().unwrap();
    let node = node(elsewhere.path().to_owned(), json!({}));
    let daemon = node.start();
    let _web = grant_in(&daemon, "web", cgroup);
    assert!(unlimited(&daemon).contains("need cgroup v2"), "{}", unlimited(&daemon));
    assert_eq!(calls(&node), [""; 0]);
    wait_for("the watchdog looks", || level(&daemon, "web") == "mps+watchdog");
}

#[test]
fn after_a_restart_a_limit_is_told_only_once_it_was_read_back() {
    let (root, cgroup) = need!(Cgroup::on_v2("restart"));
    let node = node(root, json!({}));
    let daemon = node.start();
    let web = grant_in(&daemon, "web", cgroup);
    wait_for("it is recorded", || recorded(&node) == Some(1024));
    daemon.stop().unwrap();
    // Nobody can say now whether it holds.
    node.nvml(|state| {
        state["cards"][0]["error"] = "UNKNOWN".into();
        state["cards"][0]["error_in"] =
            json!(["nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"]);
    });
    let daemon = node.start();
    wait_for("it is looked for", || unlimited(&daemon).contains("memory limit"));
    assert_ne!(level(&daemon, "web"), "cgroup");
    assert_eq!(recorded(&node), Some(1024), "it is tried again");
    daemon.stop().unwrap();
    node.nvml(|state| {
        drop(state["cards"][0].as_object_mut().unwrap().remove("error"));
        drop(state["cards"][0].as_object_mut().unwrap().remove("error_in"));
    });
    let before = calls(&node).len();
    let daemon = node.start();
    wait_for("it is seen to hold", || level(&daemon, "web") == "cgroup");
    assert_eq!(calls(&node).len(), before, "reading back was enough");
    // The end of a container that nobody watched: the limit goes with the next start.
    daemon.stop().unwrap();
    let path = web.cgroup.id().path;
    let Granted { init, cgroup: _kept, .. } = web;
    drop(init);
    let daemon = node.start();
    // The driver's answer is there a moment before the call is written down.
    let clear = format!("clear {} {path}", uuid(0));
    wait_for("the limit is cleared", || calls(&node).last() == Some(&clear));
    assert!(limits(&node).is_empty());
    drop(daemon);
}

#[test]
fn a_limit_that_somebody_took_away_is_set_again() {
    let (root, cgroup) = need!(Cgroup::on_v2("again"));
    let node = node(root, json!({}));
    let daemon = node.start();
    let web = grant_in(&daemon, "web", cgroup);
    wait_for("it is recorded", || recorded(&node) == Some(1024));
    node.nvml(|state| state["cards"][0]["limits"] = json!({}));
    wait_for("it is there again", || limits(&node) == [(web.cgroup.id().path, 0, 1 << 30)]);
    wait_for("it is told", || level(&daemon, "web") == "cgroup");
}

#[test]
fn a_crash_before_the_limit_was_recorded_is_made_up_for() {
    let (root, cgroup) = need!(Cgroup::on_v2("crash"));
    let mut node = node(root.clone(), json!({}));
    // A first instance that knows nothing of v2 records none.
    node.paths.cgroups = node.dir.path().to_owned();
    let daemon = node.start();
    let web = grant_in(&daemon, "web", cgroup);
    daemon.stop().unwrap();
    assert_eq!(recorded(&node), None);
    let id = web.cgroup.id();
    node.nvml(|state| {
        let limit = json!({ "soft_bytes": 0, "hard_bytes": 1_u64 << 30, "inode": id.inode });
        state["cards"][0]["limits"] = json!({ id.path: limit });
    });
    node.paths.cgroups = root;
    let daemon = node.start();
    wait_for("it is seen", || level(&daemon, "web") == "cgroup");
    wait_for("it is recorded", || recorded(&node) == Some(1024));
    assert_eq!(calls(&node), [""; 0]);
}

const MIB: u64 = 1 << 20;

fn removes(daemon: &Running, web: &Granted, removal: Removal) {
    let call = Call::Terminate(Terminate { key: web.grant.key.clone(), removal });
    daemon.done(call).unwrap();
}

#[test]
fn a_limit_that_came_after_the_program_is_told_only_while_the_driver_counts_what_nvml_shows() {
    let (root, cgroup) = need!(Cgroup::on_v2("late"));
    let node = node(root, json!({}));
    let daemon = node.start();
    let web = grant_in(&daemon, "web", cgroup);
    let (path, pid) = (web.cgroup.id().path, web.init.pid());
    assert_eq!(level(&daemon, "web"), "cgroup");
    // The card has lost all limits while the container runs.
    node.nvml(|state| {
        state["cards"][0]["processes"] = json!([{ "pid": pid, "used_mib": 500, "kind": "mps" }]);
        state["cards"][0]["memory_used_mib"] = 500.into();
        state["cards"][0]["limits"] = json!({});
    });
    wait_for("it is there again", || limits(&node) == [(path.clone(), 0, 1 << 30)]);
    wait_for("the level falls", || level(&daemon, "web") == "mps+watchdog");
    let why = unlimited(&daemon);
    assert!(why.contains("counts from then on: 0 MiB of the 500 MiB that it uses"), "{why}");
    wait_for("it is recorded", || entry(&node)["limited_late"] == true);
    charge(&node, &path, 500);
    wait_for("it counts all", || level(&daemon, "web") == "cgroup");
    charge(&node, &path, 499);
    wait_for("it does not", || level(&daemon, "web") == "mps+watchdog");
    // Nor does the next mpsgated take it for one that was there from the start.
    daemon.stop().unwrap();
    let daemon = node.start();
    wait_for("it is looked at", || unlimited(&daemon).contains("of the 500 MiB that it uses"));
    assert_ne!(level(&daemon, "web"), "cgroup");
}

#[test]
fn a_limit_that_the_hook_did_not_wait_for_is_late() {
    let (root, cgroup) = need!(Cgroup::on_v2("slow"));
    let node = node(root, json!({}));
    let daemon = node.start();
    // The fake writes under this lock: SET waits for it.
    let lock = fs::File::create(node.dir.path().join("nvml.json.lock")).unwrap();
    lock.lock().unwrap();
    let _web = grant_in(&daemon, "web", cgroup);
    assert_ne!(level(&daemon, "web"), "cgroup");
    drop(lock);
    wait_for("it is recorded as late", || entry(&node)["limited_late"] == true);
    assert_eq!(recorded(&node), Some(1024));
}

#[test]
fn a_cgroup_below_with_a_limit_of_its_own_is_named_and_limited() {
    let (root, cgroup) = need!(Cgroup::on_v2("below"));
    let node = node(root, json!({}));
    let daemon = node.start();
    let web = grant_in(&daemon, "web", cgroup);
    let below = format!("{}/deep/er", web.cgroup.id().path);
    fs::create_dir_all(&below).unwrap();
    // Cleared once for another cgroup, which was at its address in the kernel.
    let stale = CgroupId { path: below.clone(), inode: inode(&below) };
    node.nvml(|state| has_limit(state, &stale, u64::MAX, 0));
    wait_for("the level falls", || level(&daemon, "web") == "mps+watchdog");
    let why = unlimited(&daemon);
    assert!(
        why.contains("deep/er has a memory limit of its own, which mpsgate did not set"),
        "{why}"
    );
    assert!(limits(&node).contains(&(below.clone(), 0, 1 << 30)), "no longer without any");
    // Now it shows the same limit, and other use.
    charge(&node, &below, 100);
    std::thread::sleep(std::time::Duration::from_secs(11));
    assert_eq!(level(&daemon, "web"), "mps+watchdog");
    fs::remove_dir(&below).unwrap();
    wait_for("it has gone", || level(&daemon, "web") == "cgroup");
    fs::remove_dir(format!("{}/deep", web.cgroup.id().path)).unwrap();
}

#[test]
fn the_limit_is_cleared_before_the_runtime_removes_the_cgroup() {
    let (root, cgroup) = need!(Cgroup::on_v2("removed"));
    let node = node(root, json!({}));
    let daemon = node.start();
    let mut web = grant_in(&daemon, "web", cgroup);
    let path = web.cgroup.id().path;
    removes(&daemon, &web, Removal::No);
    // Its runtime will refuse: the container runs.
    removes(&daemon, &web, Removal::Ended);
    assert_eq!(limits(&node), [(path.clone(), 0, 1 << 30)]);
    assert!(web.init.lives());
    removes(&daemon, &web, Removal::Forced);
    assert!(!web.init.lives());
    assert_eq!((limits(&node), daemon.granted_mib()), (vec![], 0), "with the answer");
    assert_eq!(calls(&node).last(), Some(&format!("clear {} {path}", uuid(0))));

    // What outlived its init, as a container in another's PID namespace may.
    let (_, cgroup) = need!(Cgroup::on_v2("outlived"));
    let mut web = grant_in(&daemon, "web", cgroup);
    let mut rest = Container::new();
    web.cgroup.add(&rest);
    web.init.kill();
    removes(&daemon, &web, Removal::Ended);
    assert!(!rest.lives());
    assert_eq!((limits(&node), daemon.granted_mib()), (vec![], 0));
}

#[test]
fn the_limits_below_are_cleared_with_it() {
    let (root, cgroup) = need!(Cgroup::on_v2("both"));
    let node = node(root, json!({}));
    let daemon = node.start();
    let web = grant_in(&daemon, "web", cgroup);
    let path = web.cgroup.id().path;
    let (own, other) = (format!("{path}/own"), format!("{path}/other"));
    fs::create_dir(&own).unwrap();
    fs::create_dir(&other).unwrap();
    let below = CgroupId { path: own.clone(), inode: inode(&own) };
    node.nvml(|state| has_limit(state, &below, 1 << 29, 0));
    removes(&daemon, &web, Removal::Forced);
    assert_eq!(limits(&node), []);
    // One that shows the limit of its container has none of its own to clear.
    let cleared = |path: &str| format!("clear {} {path}", uuid(0));
    let calls = calls(&node);
    let calls: Vec<_> = calls.iter().filter(|call| call.starts_with("clear")).collect();
    assert_eq!(calls, [&cleared(&path), &cleared(&own)]);
    fs::remove_dir(&own).unwrap();
    fs::remove_dir(&other).unwrap();
}

#[test]
fn a_limit_that_no_grant_stands_for_is_cleared() {
    let (root, cgroup) = need!(Cgroup::on_v2("granted"));
    let (_, stray) = need!(Cgroup::on_v2("stray"));
    let node = node(root, json!({}));
    // At the address of a container's that ended while mpsgated was away.
    node.nvml(|state| has_limit(state, &stray.id(), 3 << 30, 0));
    let daemon = node.start();
    let cleared = format!("clear {} {}", uuid(0), stray.id().path);
    wait_for("it is cleared", || calls(&node) == [cleared.as_str()]);
    assert_eq!(limits(&node), []);
    let web = grant_in(&daemon, "web", cgroup);
    // A grant's own stays, over some looks.
    std::thread::sleep(std::time::Duration::from_secs(21));
    assert_eq!(limits(&node), [(web.cgroup.id().path, 0, 1 << 30)]);
}

#[test]
fn a_limit_below_what_is_in_use_is_refused_with_how_much_that_is() {
    let (root, cgroup) = need!(Cgroup::on_v2("used"));
    let node = node(root, json!({}));
    let id = cgroup.id();
    let daemon = node.start();
    node.nvml(|state| has_limit(state, &id, u64::MAX, 2048 * MIB));
    let _web = grant_in(&daemon, "web", cgroup);
    let why = unlimited(&daemon);
    assert!(why.contains("uses 2 GiB of the card, more than the 1 GiB granted"), "{why}");
    assert_ne!(level(&daemon, "web"), "cgroup");
}

#[test]
fn without_mps_a_container_is_held_on_each_of_its_cards() {
    let (root, cgroup) = need!(Cgroup::on_v2("share"));
    let mut node = Node::new(2);
    node.paths.cgroups = root;
    node.config.gpus.schedule = Schedule::Share;
    node.nvml(|state| state["memory_limits"] = json!({}));
    let daemon = node.start();
    // Over both, so 1 GiB of each.
    let mut call = request("web", 2);
    call.request.cards = std::num::NonZeroU32::new(2).unwrap();
    let grant = daemon.reserve(call).unwrap();
    let init = Container::new();
    cgroup.add(&init);
    daemon.activate(&grant, &init, Some(cgroup.id())).unwrap();
    let levels: Vec<_> =
        daemon.status().grants.into_iter().map(|grant| grant.guarantee.to_string()).collect();
    assert_eq!(levels, ["cgroup", "cgroup"]);
    let path = cgroup.id().path;
    let set = |card: u32| format!("set {} {path} soft 0 hard {}", uuid(card), 1_u64 << 30);
    assert_eq!(calls(&node), [set(0), set(1)]);
    daemon.release(&grant.key);
    wait_for("both are cleared", || calls(&node).len() == 4);
}
