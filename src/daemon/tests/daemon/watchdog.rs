//! Containers that take more than their grant: processes in cgroups of their own, and a simulated
//! NVML that says what each of them uses.

use mpsgate_api::{Action, GrantStatus};
use mpsgate_config::Enforce;
use mpsgate_model::{Grant, Guarantee};
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
    granted_to(daemon, name, Container::new())
}

fn granted_to(daemon: &Running, name: &str, init: Container) -> Result<Granted, &'static str> {
    let cgroup = Cgroup::new(name)?;
    let grant = daemon.reserve(on_card(request(name, 1), 0)).unwrap();
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
    actions(daemon)
        .into_iter()
        .map(|action| (action.container_id, action.what.to_string()))
        .collect()
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

/// The kernel shows a first thread that has ended as a zombie, and under v1 in no cgroup.
#[test]
fn a_process_whose_first_thread_has_ended_counts_for_its_container() {
    count_for_their_containers(Container::leaderless);
}

/// A process chooses its name, and the kernel shows the bytes as they are.
#[test]
fn a_process_whose_name_is_no_text_counts_for_its_container() {
    count_for_their_containers(Container::renamed);
}

/// As init, and as a second process; within its container's grant it is left alone.
fn count_for_their_containers(made: fn() -> Container) {
    let node = Node::new(1);
    let daemon = node.start();
    let mut bad = need!(granted(&daemon, "bad"));
    let mut good = need!(granted(&daemon, "good"));
    let mut init = need!(granted_to(&daemon, "init", made()));
    let (mut second, mut within) = (made(), made());
    bad.cgroup.add(&second);
    good.cgroup.add(&within);
    let processes = [(&bad.init, 500), (&second, 1500), (&within, 1000), (&init.init, 2000)];
    uses(&node, &processes.map(|(process, used)| mps(process.pid(), used)));
    wait_for("both are ended", || !bad.init.lives() && !second.lives() && !init.init.lives());
    wait_for("their memory is free", || daemon.granted_mib() == 1024);
    let mut done = done(&daemon);
    done.sort();
    let killed = |name: &str| (Some(name.to_owned()), "killed".to_owned());
    assert_eq!(done, [killed("bad"), killed("init")]);
    assert!(good.init.lives() && within.lives());
    assert_eq!(grant(&daemon, "good").used_mib, Some(1000));
}

/// Drivers list the pid of a process that has ended while a child holds what it had opened.
#[test]
fn memory_of_a_process_that_has_ended_is_its_containers_and_never_who_has_its_pid() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut bad = need!(granted(&daemon, "bad"));
    let mut good = need!(granted(&daemon, "good"));
    // Another process may have a certain pid.
    let first = 20_000 + std::process::id() % 10_000;
    let made = |pid| Container::with_child(pid).map(|maker| (pid, maker));
    let (pid, maker) =
        need!((first..first + 100).map(made).find(Result::is_ok).unwrap_or_else(|| made(first)));
    bad.cgroup.add_pid(pid);
    uses(&node, &[mps(pid, 900)]);
    wait_for("it is seen", || grant(&daemon, "bad").used_mib == Some(900));
    // The child ends with its maker, and another has its pid by now.
    drop(maker);
    let gone = || !std::path::Path::new(&format!("/proc/{pid}")).exists();
    wait_for("it has ended", gone);
    uses(&node, &[mps(pid, 1000)]);
    wait_for("it counts all the same", || grant(&daemon, "bad").used_mib == Some(1000));
    let mut maker = None;
    wait_for("its pid is another's", || {
        maker = Container::with_child(pid).ok();
        maker.is_some()
    });
    good.cgroup.add_pid(pid);
    // Nor for an mpsgated that was away meanwhile.
    daemon.stop().unwrap();
    let daemon = node.start();
    wait_for("it is not its", || grant(&daemon, "bad").used_mib == Some(1000));
    assert_eq!(grant(&daemon, "good").used_mib, Some(0));
    // What is more is not of one that has ended, and who has its pid came to no door.
    uses(&node, &[mps(pid, 14_000)]);
    wait_for("what is more is nobody's", || !actions(&daemon).is_empty());
    assert_eq!(done(&daemon), [(None, "reported".to_owned())]);
    let why = actions(&daemon).remove(0).why;
    assert!(
        why.starts_with(&format!("13000 MiB of the card are listed under pid {pid}, ")),
        "{why}"
    );
    assert_eq!(grant(&daemon, "bad").used_mib, Some(1000));
    assert!(bad.init.lives() && good.init.lives() && !gone());
    // Not listed any more: the next one with that pid is a client like others.
    looks(&node, &daemon, "good", good.init.pid(), 1);
    uses(&node, &[mps(pid, 100)]);
    wait_for("it is its own", || grant(&daemon, "good").used_mib == Some(100));
}

#[test]
fn memory_under_a_pid_that_nobody_can_name_is_nobodys_and_said_once() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut good = need!(granted(&daemon, "good"));
    let mut ended = Container::new();
    ended.kill();
    node.nvml(|state| {
        let listed = [mps(good.init.pid(), 700), mps(ended.pid(), 9000)];
        state["cards"][0]["processes"] = listed.as_slice().into();
        state["cards"][0]["memory_used_mib"] = 9800.into();
    });
    wait_for("it is said", || !actions(&daemon).is_empty());
    wait_for("it is seen", || daemon.card(0).memory.is_some());
    let memory = daemon.card(0).memory.unwrap();
    let mib = [memory.used, memory.containers, memory.servers, memory.others, memory.nobody];
    assert_eq!(mib.map(|bytes| bytes >> 20), [9800, 700, 0, 0, 9100]);
    for used in [701, 702, 703] {
        uses(&node, &[mps(good.init.pid(), used), mps(ended.pid(), 9000)]);
        wait_for("a look", || grant(&daemon, "good").used_mib == Some(used));
    }
    assert_eq!(done(&daemon), [(None, "reported".to_owned())]);
    assert!(good.init.lives());
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
    assert_eq!(
        grant(&daemon, "bad").guarantee,
        Guarantee::Mps,
        "nothing holds the sum to the grant"
    );
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
    assert_eq!(grant(&daemon, "web").guarantee, Guarantee::MpsWatchdog);
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
