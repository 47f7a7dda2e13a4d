//! What the daemon does before a container with a grant is killed.

use std::fs;
use std::process::{Command, Stdio};

use mpsgate_api::{Activate, Call, Removal, Terminate, WireRefusal};
use mpsgate_model::{Grant, GrantKey};
use mpsgate_testing::Spawned;

use crate::grants::Cgroup;
use crate::harness::{Container, Node, Running, key, need, request, servers, wait_for};

/// A CUDA process: the fake's own, attached past the gate, which root alone can. Doors are the
/// tests' of gate.rs.
pub(crate) struct Client(Spawned);

impl Client {
    pub(crate) fn attach(node: &Node, grant: &Grant) -> Self {
        let child = Command::new(&node.config.mps.control)
            .arg("client")
            .env("CUDA_MPS_PIPE_DIRECTORY", node.pipe(grant.cards[0].minor))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let client = Self(Spawned(child));
        let pid = client.pid().cast_signed();
        let mps = node.mps(grant.cards[0].minor);
        wait_for("the client attaches", || {
            mps.clients().unwrap().iter().any(|(_, clients)| clients.contains(&pid))
        });
        client
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Its exit status; the fake's client ends with 10 where it is terminated.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.0.0.wait().unwrap().code()
    }

    pub(crate) fn lives(&mut self) -> bool {
        self.0.lives()
    }
}

/// Makes `pid` the container's init.
pub(crate) fn activate(daemon: &Running, grant: &Grant, pid: u32) {
    let cgroup = Some(daemon.own_cgroup(pid));
    let call = Activate { key: grant.key.clone(), pid, cgroup, grant: None };
    daemon.activate_with(call, pid).unwrap();
}

fn terminate(daemon: &Running, key: &GrantKey) -> Result<String, WireRefusal> {
    daemon.done(Call::Terminate(Terminate { key: key.clone(), removal: Removal::No }))
}

/// Commands that the fake was sent, oldest first.
fn commands(node: &Node, card: u32) -> Vec<String> {
    let log = fs::read_to_string(node.paths.mps().join(format!("{card}/log/control.log"))).unwrap();
    let lines = log.lines().filter_map(|line| line.split_once("Cmd:"));
    lines.map(|(_, command)| command.to_owned()).collect()
}

pub(crate) fn terminations(node: &Node) -> usize {
    commands(node, 0).iter().filter(|command| command.starts_with("terminate_client")).count()
}

#[test]
fn the_clients_of_the_container_are_terminated_and_those_of_its_neighbours_live() {
    need!(servers());
    let cgroup = need!(Cgroup::new("kill"));
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let init = Container::new();
    cgroup.add(&init);
    daemon.activate(&grant, &init, Some(cgroup.id())).unwrap();
    let (mut first, mut second) = (Client::attach(&node, &grant), Client::attach(&node, &grant));
    let mut neighbour = Client::attach(&node, &grant);
    cgroup.add_pid(first.pid());
    // A container may make cgroups of its own.
    cgroup.add_below("deep", second.pid());

    let text = terminate(&daemon, &grant.key).unwrap();
    let mut pids = [first.pid(), second.pid()];
    assert!(pids.iter().all(|pid| text.contains(&pid.to_string())), "{text}");
    assert!(text.starts_with("2 CUDA clients terminated"), "{text}");
    assert_eq!((first.ended(), second.ended()), (Some(10), Some(10)));
    assert!(neighbour.lives());
    let status = daemon.status();
    assert_eq!((status.clients_terminated, status.kills_unprepared), (2, 0));
    let server = node.mps(0).servers().unwrap()[0].pid;
    let mut asked: Vec<String> = commands(&node, 0);
    asked.retain(|command| command.starts_with("terminate_client"));
    asked.sort();
    pids.sort_by_key(u32::to_string);
    assert_eq!(asked, pids.map(|pid| format!("terminate_client {server} {pid}")));
}

#[test]
fn the_init_itself_is_terminated_where_it_is_the_client() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let mut init = Client::attach(&node, &grant);
    activate(&daemon, &grant, init.pid());
    assert!(terminate(&daemon, &grant.key).unwrap().starts_with("1 CUDA clients terminated"));
    assert_eq!(init.ended(), Some(10));
}

#[test]
fn what_has_no_client_is_answered_without_asking_the_control_daemon_to_end_any() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    assert_eq!(terminate(&daemon, &key("nobody", 1)).unwrap(), "");
    let grant = daemon.reserve(request("web", 7)).unwrap();
    assert_eq!(terminate(&daemon, &grant.key).unwrap(), "", "a reservation has no process yet");
    let mut other_instance = grant.key.clone();
    other_instance.instance = key("web", 2).instance;
    let init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    assert_eq!(terminate(&daemon, &other_instance).unwrap(), "");
    assert_eq!(terminate(&daemon, &grant.key).unwrap(), "", "its init is no CUDA process");
    assert_eq!(terminations(&node), 0);
    assert_eq!(daemon.status().kills_unprepared, 0);
}

#[test]
fn a_channel_that_hangs_is_given_up_and_counted() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let mut init = Client::attach(&node, &grant);
    activate(&daemon, &grant, init.pid());
    let control = node.control_pid(0).unwrap();
    signal("-STOP", control);
    // Its process has not ended, so it is not known yet that it hangs.
    let refusal = terminate(&daemon, &grant.key).unwrap_err();
    signal("-CONT", control);
    assert_eq!(refusal.code, "E_GPU_UNHEALTHY");
    assert!(refusal.sentence.contains("did not answer"), "{refusal:?}");
    assert_eq!(daemon.status().kills_unprepared, 1);
    assert!(init.lives());
    assert_eq!(terminations(&node), 0, "nobody is terminated late");
}

#[test]
fn a_card_task_that_is_busy_with_a_server_is_not_waited_for() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 1)).unwrap();
    let init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    // The next reservation finds no server, and the one that is started does not get ready.
    let slow = node.paths.mps().join("0/log/fake-server-slow");
    fs::write(&slow, "").unwrap();
    signal("-KILL", node.mps(0).servers().unwrap()[0].pid);
    wait_for("the server's end is seen", || {
        daemon.card(0).mps.is_some_and(|m| m.servers.is_empty())
    });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| daemon.reserve(request("slow", 1)));
        let is_starting = || node.mps(0).servers().is_ok_and(|servers| !servers.is_empty());
        wait_for("the card task waits for another", is_starting);
        let refusal = terminate(&daemon, &grant.key).unwrap_err();
        assert!(refusal.sentence.contains("busy with something else"), "{refusal:?}");
        assert!(!waiting.is_finished(), "the answer came first");
        fs::remove_file(&slow).unwrap();
        waiting.join().unwrap().unwrap();
    });
    // Taken when nobody wanted it any more.
    daemon.status();
    assert_eq!(terminations(&node), 0);
}

fn signal(name: &str, pid: i32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}
