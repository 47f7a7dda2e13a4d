//! Callers that end: each is a process of its own, because the daemon knows its callers by pid.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use mpsgate_api::{Call, Client, Reply, Reserve};
use mpsgate_model::Grant;

use crate::harness::{Container, LIMIT, Node, Running, request, wait_for};

/// A process that reserves, prints the reply, and lives until its input ends.
struct Shim {
    child: Child,
    _stdin: ChildStdin,
    grant: Grant,
}

impl Shim {
    fn reserve(daemon: &Running, call: &Reserve) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shim::acts_as_shim", "--ignored", "--nocapture", "--quiet"])
            .env("MPSGATE_TEST_SHIM", &daemon.socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin, "{}", serde_json::to_string(call).unwrap()).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let reply: Option<Reply> = lines.find_map(|line| serde_json::from_str(&line.unwrap()).ok());
        let Some(Reply::Reserved { grant, .. }) = reply else { panic!("{reply:?}") };
        Self { child, _stdin: stdin, grant: *grant }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "not a test: the program of `Shim`"]
fn acts_as_shim() {
    let Some(socket) = std::env::var_os("MPSGATE_TEST_SHIM") else { return };
    let mut input = std::io::stdin().lines();
    let call: Reserve = serde_json::from_str(&input.next().unwrap().unwrap()).unwrap();
    let client = Client::connect(socket.as_ref()).unwrap();
    let reply: Reply = client.call(Call::Reserve(call), None, LIMIT).unwrap();
    println!("\n{}", serde_json::to_string(&reply).unwrap());
    assert!(input.next().is_none());
}

#[test]
fn a_reservation_expires_with_the_process_that_made_it() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut shim = Shim::reserve(&daemon, &request("web", 7));
    assert_eq!(daemon.status().grants[0].pid, shim.child.id());
    shim.kill();
    wait_for("the reservation has expired", || daemon.granted_mib() == 0);
}

#[test]
fn a_grant_outlives_the_process_that_reserved_it() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut shim = Shim::reserve(&daemon, &request("web", 7));
    let init = Container::new();
    daemon.activate(&shim.grant, &init, None).unwrap();
    shim.kill();
    shim.child.wait().unwrap();
    // A second reservation that does expire shows that the daemon has looked.
    let mut other = Shim::reserve(&daemon, &request("other", 1));
    other.kill();
    wait_for("the other has expired", || daemon.granted_mib() == 7168);
    assert_eq!(daemon.status().grants[0].container_id, "web");
}

#[test]
fn a_reservation_whose_creator_died_while_the_daemon_was_away_is_not_there_after_it() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut dead = Shim::reserve(&daemon, &request("dead", 7));
    let alive = Shim::reserve(&daemon, &request("alive", 5));
    daemon.stop().unwrap();
    dead.kill();
    let daemon = node.start();
    let grants = daemon.status().grants;
    assert_eq!(grants.iter().map(|g| g.container_id.as_str()).collect::<Vec<_>>(), ["alive"]);
    drop(alive);
    wait_for("it expires under the new daemon too", || daemon.granted_mib() == 0);
}
