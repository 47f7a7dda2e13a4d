//! A control daemon that does not answer: told of, and never ended unasked.

use std::path::Path;
use std::process::{Command, Stdio};

use mpsgate_api::{Action, CardState, ControlState};
use mpsgate_testing::Spawned;

use crate::grants::Cgroup;
use crate::harness::{Container, Node, Running, need, request, wait_for};

/// A process that holds connections to `control` and says nothing.
fn holding(control: &Path, count: usize) -> Spawned {
    // As a script of a container's would: the connections are its own and nobody else's.
    let script = "use Socket; my @c; for (1 .. $ARGV[1]) { socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0) or die; \
         connect($s, pack_sockaddr_un($ARGV[0])) or die; push @c, $s; } print \"held\\n\"; close STDOUT; \
         sleep 1000;";
    let mut child = Command::new("perl")
        .args(["-e", script])
        .arg(control)
        .arg(count.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    assert_eq!(said, "held\n");
    Spawned(child)
}

/// A container with a grant and a cgroup.
struct Granted {
    init: Container,
    _cgroup: Cgroup,
}

fn granted(daemon: &Running, name: &str) -> Result<Granted, &'static str> {
    let cgroup = Cgroup::new(name)?;
    let grant = daemon.reserve(request(name, 1)).unwrap();
    let init = Container::new();
    cgroup.add(&init);
    daemon.activate(&grant, &init, Some(cgroup.id())).unwrap();
    Ok(Granted { init, _cgroup: cgroup })
}

fn actions(daemon: &Running) -> Vec<Action> {
    daemon.status().actions
}

/// Only root reaches the control daemon past the gate.
#[test]
fn a_connection_that_stays_is_told_of_and_nobody_is_ended_for_it() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut good = need!(granted(&daemon, "good"));
    let mut silent = holding(&node.pipe(0).join("control"), 1);
    wait_for("it is told", || daemon.state(0).contains("does not answer"));
    let card = daemon.card(0);
    assert_eq!(card.mps.unwrap().state, ControlState::Wedged);
    assert!(card.hint.unwrap().contains("end what else on this node speaks with it"));
    assert_eq!(daemon.reserve(request("new", 1)).unwrap_err().code, "E_GPU_UNHEALTHY");
    assert!(silent.lives() && good.init.lives());
    silent.kill();
    wait_for("the card is ready again", || daemon.card(0).state == CardState::Ready);
    assert!(good.init.lives());
    assert_eq!(actions(&daemon), []);
}

#[test]
fn a_stopped_control_daemon_is_told_from_a_wedge_and_nobody_is_blamed() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut good = need!(granted(&daemon, "good"));
    let pid = node.control_pid(0).unwrap();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
    };
    signal("-STOP");
    let expected = format!("does not answer: somebody stopped it, pid {pid}");
    wait_for("it is told", || daemon.state(0).contains(&expected));
    assert_eq!(daemon.card(0).hint.unwrap(), format!("let it go on: kill -CONT {pid}"));
    signal("-CONT");
    wait_for("the card is ready again", || daemon.card(0).state == CardState::Ready);
    assert_eq!(node.control_pid(0), Some(pid));
    assert!(good.init.lives());
    assert_eq!(actions(&daemon), []);
}
