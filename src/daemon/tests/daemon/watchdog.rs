//! Containers that take more than their grant: processes in cgroups of their own, and a simulated
//! NVML that says what each of them uses.

use mpsgate_api::{Action, GrantStatus};
use mpsgate_config::Enforce;
use mpsgate_model::Grant;
use serde_json::{Value, json};

use crate::grants::Cgroup;
use crate::harness::{Container, Node, Running, need, on_card, request, servers, wait_for};
use crate::kill::{Client, terminations};

/// A container with a grant of 1 GiB on card 0.
struct Granted {
    init: Container,
    cgroup: Cgroup,
    grant: Grant,
}

fn granted(daemon: &Running, name: &str) -> Result<Granted, &'static str> {
    let cgroup = Cgroup::new(name)?;
    let grant = daemon.reserve(on_card(request(name, 1), 0)).unwrap();
    let init = Container::new();
    cgroup.add(&init);
    daemon.activate(&grant, &init, Some(cgroup.id())).unwrap();
    Ok(Granted { init, cgroup, grant })
}

pub(crate) fn mps(pid: u32, used_mib: u64) -> Value {
    json!({ "pid": pid, "used_mib": used_mib, "kind": "mps" })
}

/// What NVML says of card 0 from now on.
pub(crate) fn uses(node: &Node, processes: &[Value]) {
    node.nvml(|state| state["cards"][0]["processes"] = processes.into());
}

fn actions(daemon: &Running) -> Vec<Action> {
    daemon.status().actions
}

/// The actions as `(container, what)`.
fn done(daemon: &Running) -> Vec<(Option<String>, String)> {
    actions(daemon).into_iter().map(|action| (action.container_id, action.what)).collect()
}

fn grant(daemon: &Running, name: &str) -> GrantStatus {
    let mut grants = daemon.status().grants;
    grants.retain(|grant| grant.container_id == name);
    grants.pop().unwrap()
}

/// Until NVML has been looked at after this moment, `times` times: `used` changes with each.
fn looks(node: &Node, daemon: &Running, name: &str, pid: u32, times: u64) {
    for n in 1..=times {
        uses(node, &[mps(pid, 100 + n)]);
        wait_for("a look", || grant(daemon, name).used_mib == Some(100 + n));
    }
}

#[test]
fn two_processes_over_the_grant_in_sum_end_their_container_and_not_its_neighbour() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut bad = need!(granted(&daemon, "bad"));
    let mut good = need!(granted(&daemon, "good"));
    let mut second = Container::new();
    // A container may make cgroups of its own.
    bad.cgroup.add_below("deep", second.pid());
    // Each is within the limit that MPS gives it.
    uses(&node, &[mps(bad.init.pid(), 1000), mps(second.pid(), 1000), mps(good.init.pid(), 1024)]);
    wait_for("all of it is ended", || !bad.init.lives() && !second.lives());
    wait_for("its memory is free", || daemon.granted_mib() == 1024);
    assert_eq!(done(&daemon), [(Some("bad".to_owned()), "killed".to_owned())]);
    let why = &actions(&daemon)[0].why;
    let expected =
        "it used 2000 MiB of the card, 1024 MiB were granted and 512 MiB tolerated: pid ";
    assert!(why.starts_with(expected), "{why}");
    assert!(good.init.lives());
    let good = grant(&daemon, "good");
    assert_eq!((good.used_mib, good.guarantee.as_str()), (Some(1024), "mps+watchdog"));
}

#[test]
fn the_gpu_work_of_its_clients_is_ended_before_the_container_and_a_neighbours_is_not() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let bad = need!(granted(&daemon, "bad"));
    let good = need!(granted(&daemon, "good"));
    let mut client = Client::attach(&node, &bad.grant);
    let mut neighbour = Client::attach(&node, &good.grant);
    bad.cgroup.add_pid(client.pid());
    good.cgroup.add_pid(neighbour.pid());
    uses(&node, &[mps(client.pid(), 2000), mps(neighbour.pid(), 1024)]);
    // Its own end on being terminated, and not a signal.
    assert_eq!(client.ended(), Some(10));
    wait_for("it is noted", || !actions(&daemon).is_empty());
    let why = &actions(&daemon)[0].why;
    assert!(why.ends_with(&format!("1 CUDA clients terminated: pid {}", client.pid())), "{why}");
    assert!(neighbour.lives());
    assert_eq!((terminations(&node), daemon.status().kills_unprepared), (1, 0));
}

#[test]
fn a_process_below_many_cgroups_of_its_own_counts_for_its_container() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut bad = need!(granted(&daemon, "bad"));
    let mut deep = Container::new();
    bad.cgroup.add_below(&vec!["d"; 60].join("/"), deep.pid());
    uses(&node, &[mps(bad.init.pid(), 500), mps(deep.pid(), 1500)]);
    wait_for("all of it is ended", || !bad.init.lives() && !deep.lives());
    wait_for("its memory is free", || daemon.granted_mib() == 0);
    assert_eq!(done(&daemon), [(Some("bad".to_owned()), "killed".to_owned())]);
}

#[test]
fn a_process_whose_path_the_kernel_does_not_show_counts_for_its_container() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut bad = need!(granted(&daemon, "bad"));
    let mut good = need!(granted(&daemon, "good"));
    let mut deep = Container::new();
    // Longer than a page, which `/proc/PID/cgroup` refuses to show.
    let tree = bad.cgroup.add_beyond_paths(deep.pid());
    uses(&node, &[mps(bad.init.pid(), 500), mps(deep.pid(), 1500), mps(good.init.pid(), 900)]);
    wait_for("all of it is ended", || !bad.init.lives() && !deep.lives());
    assert_eq!(done(&daemon), [(Some("bad".to_owned()), "killed".to_owned())]);
    assert!(good.init.lives());
    drop(tree);
}

#[test]
fn what_no_process_of_the_card_uses_is_nobodys() {
    let node = Node::new(1);
    let daemon = node.start();
    let good = need!(granted(&daemon, "good"));
    node.nvml(|state| {
        state["cards"][0]["processes"] = [mps(good.init.pid(), 700)].as_slice().into();
        state["cards"][0]["memory_used_mib"] = 3000.into();
    });
    wait_for("it is seen", || daemon.card(0).memory.is_some_and(|memory| memory.nobody > 0));
    let memory = daemon.card(0).memory.unwrap();
    let mib = [memory.used, memory.containers, memory.servers, memory.others, memory.nobody];
    assert_eq!(mib.map(|bytes| bytes >> 20), [3000, 700, 0, 0, 2300]);
    uses(&node, &[json!({"pid": good.init.pid(), "used_mib": null, "kind": "mps"})]);
    wait_for("nothing is told any more", || daemon.card(0).memory.is_none());
}

#[test]
fn what_is_within_the_grant_and_its_tolerance_is_left_alone() {
    let mut node = Node::new(1);
    node.config.policy.tolerance_mib = mpsgate_config::Tolerance::Mib(100);
    let daemon = node.start();
    let mut web = need!(granted(&daemon, "web"));
    uses(&node, &[mps(web.init.pid(), 1124)]);
    wait_for("it is seen", || grant(&daemon, "web").used_mib == Some(1124));
    looks(&node, &daemon, "web", web.init.pid(), 3);
    assert_eq!(actions(&daemon), []);
    // One MiB more counts.
    uses(&node, &[mps(web.init.pid(), 1125)]);
    wait_for("it is ended", || !web.init.lives());
}

#[test]
fn in_report_mode_an_overrun_is_named_once_and_the_container_lives() {
    let mut node = Node::new(1);
    node.config.policy.enforce = Enforce::Report;
    let daemon = node.start();
    let mut bad = need!(granted(&daemon, "bad"));
    uses(&node, &[mps(bad.init.pid(), 2000)]);
    wait_for("it is reported", || !actions(&daemon).is_empty());
    // Still over, look after look.
    for used in [2001, 2002, 2003] {
        uses(&node, &[mps(bad.init.pid(), used)]);
        wait_for("a look", || grant(&daemon, "bad").used_mib == Some(used));
    }
    assert_eq!(done(&daemon), [(Some("bad".to_owned()), "reported".to_owned())]);
    assert!(bad.init.lives());
    assert_eq!(grant(&daemon, "bad").guarantee, "mps", "nothing holds the sum to the grant");
}

#[test]
fn processes_outside_every_grant_and_past_mps_are_reported_and_live() {
    let node = Node::new(2);
    let daemon = node.start();
    let mut web = need!(granted(&daemon, "web"));
    let mut nobodys = Container::new();
    let past = json!({ "pid": web.init.pid(), "used_mib": 5, "kind": "compute" });
    uses(&node, &[past, json!({ "pid": nobodys.pid(), "used_mib": 9000, "kind": "compute" })]);
    // The container's grant is for card 0.
    node.nvml(|state| state["cards"][1]["processes"] = json!([mps(web.init.pid(), 7)]));
    wait_for("all are reported", || actions(&daemon).len() == 3);
    let whys: Vec<String> = actions(&daemon).into_iter().map(|action| action.why).collect();
    let said = |part: &str| whys.iter().any(|why| why.contains(part));
    assert!(said("uses 9000 MiB of the card and is in no container with a grant"), "{whys:?}");
    assert!(said("uses the card past MPS, whose limit does not hold it"), "{whys:?}");
    assert!(said("uses 7 MiB of the card and has its grant on another card"), "{whys:?}");
    assert!(nobodys.lives() && web.init.lives());
    uses(&node, &[]);
    looks(&node, &daemon, "web", web.init.pid(), 2);
    assert_eq!(actions(&daemon).len(), 3, "once each");
}

#[test]
fn the_servers_own_memory_is_nobodys() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let web = need!(granted(&daemon, "web"));
    let server = u32::try_from(node.mps(0).servers().unwrap()[0].pid).unwrap();
    let listed = json!({ "pid": server, "used_mib": 418, "kind": "compute" });
    for used in [101, 102, 103] {
        uses(&node, &[listed.clone(), mps(web.init.pid(), used)]);
        wait_for("a look", || grant(&daemon, "web").used_mib == Some(used));
    }
    assert_eq!(actions(&daemon), []);
}

#[test]
fn where_memory_is_not_told_the_guarantee_is_mps_and_status_says_why() {
    let node = Node::new(1);
    let daemon = node.start();
    let web = need!(granted(&daemon, "web"));
    looks(&node, &daemon, "web", web.init.pid(), 1);
    assert_eq!(grant(&daemon, "web").guarantee, "mps+watchdog");
    uses(&node, &[json!({ "pid": web.init.pid(), "used_mib": null, "kind": "mps" })]);
    wait_for("it is told", || daemon.card(0).unwatched.is_some());
    let why = daemon.card(0).unwatched.unwrap();
    assert!(why.contains("does not tell how much memory pid"), "{why}");
    let seen = grant(&daemon, "web");
    assert_eq!((seen.guarantee.as_str(), seen.used_mib), ("mps", None));
    node.nvml(|state| {
        state["cards"][0]["error"] = "UNKNOWN".into();
        state["cards"][0]["error_in"] = json!(["nvmlDeviceGetComputeRunningProcesses_v3"]);
    });
    wait_for("the list is missed", || {
        daemon
            .card(0)
            .unwatched
            .is_some_and(|why| why.contains("cannot read the compute processes"))
    });
}
