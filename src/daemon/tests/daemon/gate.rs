//! Grants whose containers have a door of their own (`mps.channel = "gate"`).

use std::fs;
use std::path::Path;

use mpsgate_api::{Activate, Call, Mps, MpsAction};
use mpsgate_config::Channel;
use mpsgate_model::door::{self, Container as Told};
use mpsgate_model::{Code, Grant, Mib};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with,
};

use crate::grants::Cgroup;
use crate::harness::{Container, Node, files, key, need, request, root, wait_for};

fn gated() -> Node {
    let mut node = Node::new(1);
    node.config.mps.channel = Channel::Gate;
    node
}

/// Bytes of the hello at a grant's door.
fn hello(grant: &Grant) -> usize {
    try_hello(grant).unwrap()
}

fn try_hello(grant: &Grant) -> rustix::io::Result<usize> {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let door = Path::new(&grant.client_dir).join(door::SOCKET);
    connect(&socket, &SocketAddrUnix::new(door)?)?;
    Ok(recv(&socket, &mut [0_u8; 64], RecvFlags::empty())?.1)
}

/// What the gate is told.
fn told(node: &Node, grant: &Grant) -> Told {
    let file = node.mps(0).dirs().clients_dir().join(door::file_name(&grant.key.instance));
    Told::read(&fs::read(file).unwrap()).unwrap()
}

fn doors(node: &Node) -> Vec<std::path::PathBuf> {
    files(&node.mps(0).dirs().clients_dir())
}

#[test]
fn a_grant_has_a_door_from_its_reservation_to_its_end() {
    need!(root());
    let node = gated();
    let daemon = node.start();
    let one = daemon.reserve(request("one", 2)).unwrap();
    let mut call = request("other", 3);
    call.key = key("other", 2);
    let other = daemon.reserve(call).unwrap();
    assert_ne!(one.client_dir, other.client_dir);
    for grant in [&one, &other] {
        let entries = files(Path::new(&grant.client_dir));
        assert_eq!(entries, [Path::new(&grant.client_dir).join(door::SOCKET)]);
        assert_eq!(hello(grant), 9);
        assert_eq!(told(&node, grant).cgroup, None, "nobody is served yet");
    }
    assert!(!told(&node, &one).debug);
    let init = Container::new();
    let cgroup = need!(Cgroup::new("gate"));
    cgroup.add(&init);
    daemon.activate(&one, &init, Some(cgroup.id())).unwrap();
    let is = told(&node, &one);
    assert_eq!((is.id.as_str(), is.uid, is.cgroup), ("one", one.uid, Some(cgroup.id())));
    drop(init);
    drop(cgroup);
    wait_for("the first door is closed", || doors(&node).len() == 2);
    daemon.release(&other.key);
    wait_for("the other one is closed", || doors(&node).is_empty());
}

#[test]
fn a_container_without_a_cgroup_is_not_admitted() {
    need!(root());
    let node = gated();
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 2)).unwrap();
    let init = Container::new();
    let refusal = daemon.activate(&grant, &init, None).unwrap_err();
    assert_eq!(refusal.code, Code::Cgroup.as_str());
    assert!(refusal.sentence.contains("no cgroup of its own"), "{refusal:?}");
}

#[test]
fn a_restart_of_either_closes_no_door_and_what_ended_meanwhile_has_none() {
    need!(root());
    let node = gated();
    let daemon = node.start();
    let stays = daemon.reserve(request("stays", 2)).unwrap();
    let mut call = request("ends", 2);
    call.key = key("ends", 2);
    let ends = daemon.reserve(call).unwrap();
    let (stays_init, ends_init) = (Container::new(), Container::new());
    let (stays_in, ends_in) = (need!(Cgroup::new("gate-stays")), need!(Cgroup::new("gate-ends")));
    stays_in.add(&stays_init);
    ends_in.add(&ends_init);
    daemon.activate(&stays, &stays_init, Some(stays_in.id())).unwrap();
    daemon.activate(&ends, &ends_init, Some(ends_in.id())).unwrap();
    daemon.stop().unwrap();
    let gate = node.mps(0).gate().unwrap().expect("the gate goes on");
    assert_eq!(hello(&stays), 9);
    drop(ends_init);
    drop(ends_in);
    let daemon = node.start();
    assert_eq!(node.mps(0).gate().unwrap().unwrap().pid(), gate.pid(), "the same gate");
    assert_eq!(doors(&node).len(), 2);
    assert_eq!(hello(&stays), 9);
    gate.signal(mpsgate_mps::Signal::KILL).unwrap();
    wait_for(
        "mpsgated starts another one",
        || matches!(node.mps(0).gate(), Ok(Some(now)) if now.pid() != gate.pid()),
    );
    wait_for("it serves the same containers", || try_hello(&stays) == Ok(9));
    assert_eq!(daemon.granted_mib(), 2048);
}

#[test]
fn without_a_gate_nothing_is_granted_and_the_refusal_says_where_to_look() {
    need!(root());
    let mut node = gated();
    node.paths.gate = "/usr/bin/true".into();
    let daemon = node.start();
    let refusal = daemon.reserve(request("web", 2)).unwrap_err();
    assert_eq!(refusal.code, Code::GpuUnhealthy.as_str());
    assert!(refusal.sentence.contains("has not opened the container's door"), "{refusal:?}");
    assert!(refusal.hint.contains("mpsgate-gate@0"));
    assert_eq!(daemon.granted_mib(), 0);
    assert!(doors(&node).is_empty());
    wait_for("the card says it", || {
        daemon.card(0).state.contains("has a gate that ends again and again")
    });
    let refusal = daemon.reserve(request("web", 2)).unwrap_err();
    assert!(refusal.sentence.contains("has a gate that ends again and again"), "{refusal:?}");
}

#[test]
fn an_expired_reservation_is_not_taken_again_because_its_door_is_gone() {
    need!(root());
    let node = gated();
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 2)).unwrap();
    daemon.release(&grant.key);
    let init = Container::new();
    let call = Activate {
        key: grant.key.clone(),
        pid: init.pid(),
        cgroup: None,
        grant: Some(Box::new(grant.clone())),
    };
    let refusal = daemon.activate_with(call, init.pid()).unwrap_err();
    assert_eq!(refusal.code, Code::NoReservation.as_str());
    assert!(refusal.sentence.contains("its door to MPS was closed"), "{refusal:?}");
    assert_eq!(grant.memory, Mib(2048));
}

#[test]
fn taking_the_card_back_ends_its_gate_and_leaves_nothing() {
    need!(root());
    let node = gated();
    let daemon = node.start();
    let gate = node.mps(0).gate().unwrap().unwrap();
    let stop = Mps { gpu: "0".to_owned(), action: MpsAction::Stop, confirmed: true };
    daemon.done(Call::Mps(stop)).unwrap();
    assert!(!gate.is_alive());
    assert!(!node.mps(0).dirs().clients_dir().exists());
}

#[test]
fn another_channel_concerns_new_grants_alone_and_the_gate_goes_with_the_last_door() {
    need!(root());
    let mut node = gated();
    let daemon = node.start();
    let old = daemon.reserve(request("old", 2)).unwrap();
    daemon.stop().unwrap();
    node.mps(0).gate().unwrap().unwrap().signal(mpsgate_mps::Signal::KILL).unwrap();
    node.config.mps.channel = Channel::Control;
    let daemon = node.start();
    wait_for("the gate is started again for it", || matches!(node.mps(0).gate(), Ok(Some(_))));
    let mut call = request("new", 2);
    call.key = key("new", 2);
    let new = daemon.reserve(call).unwrap();
    assert!(old.has_door() && !new.has_door());
    assert_eq!(hello(&old), 9);
    daemon.release(&old.key);
    wait_for("the gate ends", || matches!(node.mps(0).gate(), Ok(None)));
    assert!(doors(&node).is_empty());
}

#[test]
fn debuggers_are_let_through_where_the_settings_say_so() {
    need!(root());
    let mut node = gated();
    node.config.mps.debug = true;
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 2)).unwrap();
    assert!(told(&node, &grant).debug);
}
