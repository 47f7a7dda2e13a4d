//! The doors of containers with a grant, and what the gate asks.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use mpsgate_api::{
    Activate, Call, Envelope, Mps, MpsAction, Reserve, VERSION, WireRefusal, encode,
};
use mpsgate_config::Processes;
use mpsgate_host::door_place::Kind;
use mpsgate_host::process::{ProcessId, identify};
use mpsgate_model::door_file::{self, Container as Told, Counts, Prepared, Question, Reason};
use mpsgate_model::{Code, Grant, Mib};
use mpsgate_mps::protocol::{Answer, Command};
use nix::sys::signal::{Signal, kill};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with,
};

use crate::grants::Cgroup;
use crate::harness::{
    Container, Node, Running, files, key, need, request, root, server_uid, servers, wait_for,
};
use crate::metrics::{OF_A_GATE, scrape, serving};
use crate::watchdog::{mps, uses};

/// Bytes of the hello at a grant's door.
fn hello(grant: &Grant) -> usize {
    try_hello(grant).unwrap()
}

fn try_hello(grant: &Grant) -> rustix::io::Result<usize> {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let door = Path::new(&grant.client_dir).join(door_file::SOCKET);
    connect(&socket, &SocketAddrUnix::new(door)?)?;
    Ok(recv(&socket, &mut [0_u8; 64], RecvFlags::empty())?.1)
}

/// What the gate is told.
fn told(node: &Node, grant: &Grant) -> Told {
    let file = node.mps(0).dirs().door_file(grant.key.instance.as_str());
    Told::read(&fs::read(file).unwrap()).unwrap()
}

/// Directories and files.
fn doors(node: &Node) -> Vec<std::path::PathBuf> {
    Kind::ALL.iter().flat_map(|kind| files(&node.mps(0).dirs().doors_dir(*kind))).collect()
}

#[test]
fn a_grant_has_a_door_from_its_reservation_to_its_end() {
    need!(root());
    let node = Node::new(1);
    let daemon = node.start();
    let one = daemon.reserve(request("one", 2)).unwrap();
    let mut call = request("other", 3);
    call.key = key("other", 2);
    let other = daemon.reserve(call).unwrap();
    assert_ne!(one.client_dir, other.client_dir);
    for grant in [&one, &other] {
        let entries = files(Path::new(&grant.client_dir));
        assert_eq!(entries, [Path::new(&grant.client_dir).join(door_file::SOCKET)]);
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

/// Why not.
fn activated_without_cgroup(daemon: &Running, grant: &Grant, init: &Container) -> WireRefusal {
    let (key, pid) = (grant.key.clone(), init.pid());
    let call = Activate { key, pid, cgroup: None, grant: Some(Box::new(grant.clone())) };
    daemon.activate_with(call, pid).unwrap_err()
}

#[test]
fn a_container_without_a_cgroup_is_not_admitted() {
    need!(root());
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 2)).unwrap();
    let init = Container::new();
    let refusal = activated_without_cgroup(&daemon, &grant, &init);
    assert_eq!(refusal.code, Code::Cgroup.as_str());
    assert!(refusal.sentence.contains("no cgroup of its own"), "{refusal:?}");
}

#[test]
fn a_restart_of_either_closes_no_door_and_what_ended_meanwhile_has_none() {
    need!(root());
    let node = Node::new(1);
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
    let mut node = Node::new(1);
    node.paths.gate = "/usr/bin/true".into();
    let daemon = node.start();
    let refusal = daemon.reserve(request("web", 2)).unwrap_err();
    assert_eq!(refusal.code, Code::GpuUnhealthy.as_str());
    assert!(refusal.sentence.contains("has not opened the container's door"), "{refusal:?}");
    assert!(refusal.hint.contains("mpsgate-gate@0"));
    assert_eq!(daemon.granted_mib(), 0);
    assert!(doors(&node).is_empty());
    wait_for("the card says it", || {
        daemon.state(0).contains("has a gate that ends again and again")
    });
    let refusal = daemon.reserve(request("web", 2)).unwrap_err();
    assert!(refusal.sentence.contains("has a gate that ends again and again"), "{refusal:?}");
}

/// A shim whose call is not answered within 2 s hangs up and asks once more.
#[test]
fn who_asks_again_keeps_the_reservation_although_the_first_call_comes_to_nothing() {
    need!(root());
    let node = Node::new(1);
    let daemon = node.start();
    let gate = node.mps(0).gate().unwrap().expect("the gate runs");
    let gate = nix::unistd::Pid::from_raw(gate.pid());
    kill(gate, Signal::SIGSTOP).unwrap();
    let call = request("web", 2);
    let mut first = UnixStream::connect(&daemon.socket).unwrap();
    let envelope = Envelope { version: VERSION, call: Call::Reserve(call.clone()) };
    first.write_all(&encode(&envelope).unwrap()).unwrap();
    wait_for("it is reserved", || daemon.granted_mib() == 2048);
    std::thread::sleep(Duration::from_secs(3));
    drop(first);
    let grant = std::thread::scope(|scope| {
        let again = scope.spawn(|| daemon.reserve(call));
        // The first call has waited for its door long enough by then, the second one has not.
        std::thread::sleep(Duration::from_secs(3));
        kill(gate, Signal::SIGCONT).unwrap();
        again.join().unwrap().unwrap()
    });
    assert_eq!((daemon.granted_mib(), doors(&node).len()), (2048, 2));
    assert_eq!(hello(&grant), 9);
    daemon.release(&grant.key);
    assert_eq!((daemon.granted_mib(), doors(&node)), (0, Vec::new()));
}

#[test]
fn an_expired_reservation_is_not_taken_again_because_its_door_is_gone() {
    need!(root());
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 2)).unwrap();
    daemon.release(&grant.key);
    let init = Container::new();
    let refusal = activated_without_cgroup(&daemon, &grant, &init);
    assert_eq!(refusal.code, Code::NoReservation.as_str());
    assert!(refusal.sentence.contains("its door to MPS was closed"), "{refusal:?}");
    assert_eq!(grant.memory, Mib(2048));
}

#[test]
fn taking_the_card_back_ends_its_gate_and_leaves_nothing() {
    need!(root());
    let node = Node::new(1);
    let daemon = node.start();
    let gate = node.mps(0).gate().unwrap().unwrap();
    let stop = Mps { gpu: "0".to_owned(), action: MpsAction::Stop, confirmed: true };
    daemon.done(Call::Mps(stop)).unwrap();
    assert!(!gate.is_alive());
    assert!(Kind::ALL.iter().all(|kind| !node.mps(0).dirs().doors_dir(*kind).exists()));
}

#[test]
fn debuggers_are_let_through_where_the_settings_say_so() {
    need!(root());
    let mut node = Node::new(1);
    node.config.mps.debug = true;
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 2)).unwrap();
    assert!(told(&node, &grant).debug);
}

/// What mpsgated answers to the gate's question about a grant's next client.
fn prepare(node: &Node, grant: &Grant) -> Prepared {
    prepare_for(node, grant, None)
}

fn prepare_for(node: &Node, grant: &Grant, client: Option<ProcessId>) -> Prepared {
    let question = Question::Prepare { instance: grant.key.instance.clone(), client };
    let mut stream = say(node, &question.line()).unwrap();
    let mut line = Vec::new();
    stream.read_to_end(&mut line).unwrap();
    Prepared::read(&line).unwrap()
}

fn say(node: &Node, line: &[u8]) -> std::io::Result<UnixStream> {
    let mut stream = UnixStream::connect(node.mps(0).dirs().gate_socket())?;
    stream.write_all(line)?;
    Ok(stream)
}

/// The limits of the card's servers, as they say.
fn server_limits(node: &Node) -> Vec<String> {
    let channel = node.mps(0);
    let channel = channel.channel();
    let of = |server| match channel.ask(&Command::GetPinnedMemLimit { server, device: 0 }).unwrap()
    {
        Answer::Limit(limit) => limit.unwrap_or_default(),
        other => panic!("{other:?}"),
    };
    channel.server_list().unwrap().into_iter().map(of).collect()
}

fn default_limit(node: &Node) -> String {
    node.mps(0).channel().default_limit().unwrap().unwrap_or_default()
}

fn of_servers_uid(name: &str, gib: u64) -> Reserve {
    let mut call = request(name, gib);
    call.key = key(name, u8::try_from(gib).unwrap());
    call.uid = server_uid();
    call
}

#[test]
fn at_each_hand_over_the_server_has_the_limit_of_that_container() {
    need!(root());
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let small = &daemon.reserve(of_servers_uid("small", 1)).unwrap();
    let large = &daemon.reserve(of_servers_uid("large", 4)).unwrap();
    wait_for("the default is the smallest grant", || default_limit(&node) == "1G");
    for (grant, limit) in [(small, "1G"), (large, "4G"), (large, "4G"), (small, "1G")] {
        assert_eq!(prepare(&node, grant), Prepared::Ready);
        assert_eq!(server_limits(&node), [limit]);
        assert_eq!(default_limit(&node), "1G");
    }
    let caps: Vec<_> = daemon.status().grants.iter().map(|grant| grant.cap_mib).collect();
    assert_eq!(caps, [Some(4096); 2], "the worst case, until a GPU has shown a better one");
    // Whoever waits is prepared although the server has ended meanwhile, and for no less.
    let server = node.mps(0).servers_alive().pop().unwrap();
    server.signal(mpsgate_mps::Signal::KILL).unwrap();
    wait_for("another server has its limit", || prepare(&node, large) == Prepared::Ready);
    assert_eq!(server_limits(&node), ["4G"]);
    // An mpsgated that was restarted knows of no limit that is in force, and sets it.
    daemon.stop().unwrap();
    say(&node, b"").unwrap_err();
    let daemon = node.start();
    assert_eq!(server_limits(&node), ["4G"], "it disturbs no hand-over");
    assert_eq!(prepare(&node, small), Prepared::Ready);
    assert_eq!(server_limits(&node), ["1G"]);
    daemon.release(&large.key);
    assert_eq!(prepare(&node, large), Prepared::Later, "its grant has ended");
    assert_eq!(server_limits(&node), ["1G"]);
}

#[test]
fn a_later_process_gets_what_the_others_leave_where_it_is_split() {
    need!(root());
    need!(servers());
    let mut node = Node::new(1);
    node.config.mps.processes = Processes::Split;
    let daemon = node.start();
    let grant = daemon.reserve(of_servers_uid("c", 4)).unwrap();
    let init = Container::new();
    let cgroup = need!(Cgroup::new("gate-split"));
    cgroup.add(&init);
    daemon.activate(&grant, &init, Some(cgroup.id())).unwrap();
    wait_for("the first one has it all", || prepare(&node, &grant) == Prepared::Ready);
    assert_eq!(server_limits(&node), ["4G"]);
    uses(&node, &[mps(init.pid(), 3072)]);
    assert_eq!(prepare(&node, &grant), Prepared::Later, "what is left is not known yet");
    wait_for("the second one has the rest", || prepare(&node, &grant) == Prepared::Ready);
    assert_eq!(server_limits(&node), ["1G"]);
    uses(&node, &[mps(init.pid(), 4096)]);
    wait_for("nothing is left", || prepare(&node, &grant) == Prepared::Full);
    assert_eq!(daemon.status().grants[0].cap_mib, Some(4096));
}

/// NVML may list its pid when it has ended. The gate reads what containers send, so the kernel is
/// asked whose the client is.
#[test]
fn a_client_that_came_to_a_door_and_ended_is_its_containers() {
    need!(root());
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let mut containers = Vec::new();
    for name in ["bad", "good"] {
        let cgroup = need!(Cgroup::new(&format!("at-door-{name}")));
        let grant = daemon.reserve(of_servers_uid(name, 1)).unwrap();
        let (init, client) = (Container::new(), Container::new());
        cgroup.add(&init);
        cgroup.add(&client);
        daemon.activate(&grant, &init, Some(cgroup.id())).unwrap();
        containers.push((grant, init, client, cgroup));
    }
    let [(bad, bads, first, _kept), (_, goods, second, _other)] = &mut containers[..] else {
        panic!("two");
    };
    for client in [&*first, &*second] {
        let client = identify(client.pid());
        assert!(client.is_some());
        assert_eq!(prepare_for(&node, bad, client), Prepared::Ready);
    }
    for client in [&mut *first, &mut *second] {
        client.kill();
    }
    uses(&node, &[mps(first.pid(), 2000), mps(second.pid(), 3000)]);
    wait_for("it is ended", || !bads.lives());
    wait_for("the rest is said", || daemon.status().actions.len() > 1);
    let said: Vec<_> =
        daemon.status().actions.into_iter().map(|a| (a.what.to_string(), a.why)).collect();
    let has =
        |what: &str, part: String| said.iter().any(|(w, why)| w == what && why.contains(&part));
    assert!(has("killed", "it used 2000 MiB".to_owned()), "{said:?}");
    assert!(has("reported", format!("listed under pid {}", second.pid())), "{said:?}");
    assert!(goods.lives());
}

#[test]
fn where_the_gate_cannot_serve_new_grants_are_refused_with_the_reason() {
    need!(root());
    let node = Node::new(1);
    let daemon = node.start();
    let old = daemon.reserve(request("old", 2)).unwrap();
    let why = "its hello has 12 bytes, and 9 are known".to_owned();
    say(&node, &Question::Unserved { why: why.clone() }.line()).unwrap();
    wait_for("the card says it", || daemon.state(0).contains(&why));
    let mut call = request("new", 2);
    call.key = key("new", 2);
    let refusal = daemon.reserve(call.clone()).unwrap_err();
    assert_eq!(refusal.code, Code::GpuUnhealthy.as_str());
    assert!(refusal.sentence.contains(&why), "{refusal:?}");
    assert!(refusal.hint.contains("docs/gate.md"), "{refusal:?}");
    assert_eq!(hello(&old), 9);
    // It is a while since the gate said so.
    wait_for("the card is ready again", || daemon.reserve(call.clone()).is_ok());
}

#[test]
fn status_and_metrics_have_what_the_gate_counts() {
    need!(root());
    let node = serving(1);
    let daemon = node.start();
    let ended = [(Reason::Uid, 2), (Reason::Waited, 1)].into();
    let counts = Question::Counts(Counts { handed_over: 12, waiting: 3, ended });
    let card = format!("gpu=\"0\",uuid=\"{}\"", crate::harness::uuid(0));
    let [clients, waiting] = OF_A_GATE;
    let lines = [
        format!("{clients}{{{card},outcome=\"handed_over\"}} 12"),
        format!("{clients}{{{card},outcome=\"uid\"}} 2"),
        format!("{clients}{{{card},outcome=\"waited\"}} 1"),
        format!("{waiting}{{{card}}} 3"),
    ];
    // The gate itself says now and then that it has counted nothing.
    wait_for("all is shown", || {
        say(&node, &counts.line()).unwrap();
        let text = scrape(&daemon);
        lines.iter().all(|line| text.contains(&format!("\n{line}\n")))
    });
    let shown = || daemon.card(0).gate;
    wait_for("status shows the gate's own", || {
        shown().is_some_and(|gate| gate.handed_over == 0 && gate.ended.is_empty())
    });
}

#[test]
fn what_is_no_question_is_not_answered_and_holds_nobody_up() {
    need!(root());
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 2)).unwrap();
    let _silent = say(&node, b"{").unwrap();
    for line in [&[b'x'; 5000][..], b"\n", b"\"quit\"\n", b"{\"prepare\":{\"instance\":\"/\"}}\n"] {
        // It may have been closed while the line was being said.
        let Ok(mut stream) = say(&node, line) else { continue };
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"", "{}", String::from_utf8_lossy(line));
    }
    // It asked, and does not wait.
    let question = Question::Prepare { instance: grant.key.instance.clone(), client: None };
    drop(say(&node, &question.line()).unwrap());
    wait_for("the next one is prepared", || prepare(&node, &grant) == Prepared::Ready);
}
