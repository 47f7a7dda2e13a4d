//! A channel that somebody holds, and clients that make others wait: found, named, and acted upon
//! as `policy.enforce` says.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use mpsgate_api::Action;
use mpsgate_config::Enforce;
use mpsgate_testing::Spawned;

use crate::grants::Cgroup;
use crate::harness::{Container, Node, Running, need, request, root, servers, wait_for};

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
    cgroup: Cgroup,
}

fn granted(daemon: &Running, name: &str, uid: Option<u32>) -> Result<Granted, &'static str> {
    let cgroup = Cgroup::new(name)?;
    let mut call = request(name, 1);
    call.uid = uid.unwrap_or(call.uid);
    let grant = daemon.reserve(call).unwrap();
    let init = Container::new();
    cgroup.add(&init);
    daemon.activate(&grant, &init, Some(cgroup.id())).unwrap();
    Ok(Granted { init, cgroup })
}

fn actions(daemon: &Running) -> Vec<Action> {
    daemon.status().actions
}

fn control(node: &Node) -> std::path::PathBuf {
    node.mps(0).dirs().client_dir().join("control")
}

#[test]
fn a_container_that_holds_the_channel_is_killed_and_its_neighbour_lives() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut bad = need!(granted(&daemon, "bad", None));
    let mut good = need!(granted(&daemon, "good", None));
    let mut silent = holding(&control(&node), 1);
    bad.cgroup.add_below("deep", silent.pid());
    let expected = format!("its channel is held by container bad, pid {}", silent.pid());
    wait_for("it is named", || daemon.card(0).state.contains(&expected));
    let card = daemon.card(0);
    assert_eq!(card.mps.unwrap().state, "wedged");
    assert!(card.hint.unwrap().contains("is killed after 5 s"));
    let refusal = daemon.reserve(request("new", 1)).unwrap_err();
    assert!(refusal.sentence.contains(&expected), "{refusal:?}");
    wait_for("all of it is killed", || !silent.lives() && !bad.init.lives());
    wait_for("the card is ready again", || daemon.card(0).state == "ready");
    assert!(good.init.lives());
    let actions = actions(&daemon);
    assert_eq!(actions.len(), 1, "{actions:?}");
    let Action { container_id, what, why, card_index, .. } = &actions[0];
    assert_eq!((container_id.as_deref(), what.as_str(), *card_index), (Some("bad"), "killed", 0));
    assert!(why.contains("held the MPS channel of the card for 5 s"), "{why}");
    wait_for("its memory is free", || daemon.granted_mib() == 1024);
    daemon.reserve(request("new", 1)).unwrap();
}

#[test]
fn in_report_mode_it_is_named_once_and_lives() {
    let mut node = Node::new(1);
    node.config.policy.enforce = Enforce::Report;
    let daemon = node.start();
    let mut bad = need!(granted(&daemon, "bad", None));
    let mut silent = holding(&control(&node), 1);
    bad.cgroup.add_pid(silent.pid());
    wait_for("it is named", || {
        daemon.card(0).hint.is_some_and(|hint| hint.contains("end container bad"))
    });
    wait_for("it is reported", || !actions(&daemon).is_empty());
    // The container goes on, and the card without its connection.
    wait_for("the card is ready again", || daemon.card(0).state == "ready");
    // As long as it takes to be killed where the settings say so.
    std::thread::sleep(Duration::from_secs(7));
    let actions = actions(&daemon);
    assert_eq!(actions.len(), 1, "{actions:?}");
    assert_eq!(
        (actions[0].container_id.as_deref(), actions[0].what.as_str()),
        (Some("bad"), "reported")
    );
    assert!(silent.lives() && bad.init.lives());
    assert_eq!(daemon.card(0).state, "ready");
}

#[test]
fn a_holder_without_a_grant_is_reported_and_never_killed() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut good = need!(granted(&daemon, "good", None));
    let mut silent = holding(&control(&node), 1);
    wait_for("it is reported", || !actions(&daemon).is_empty());
    let card = daemon.card(0);
    assert!(
        card.state.contains(&format!("its channel is held by pid {} (perl", silent.pid())),
        "{card:?}"
    );
    assert_eq!(card.hint.unwrap(), format!("end it: kill {}", silent.pid()));
    // As long as it takes a container to be killed.
    std::thread::sleep(Duration::from_secs(7));
    let actions = actions(&daemon);
    assert_eq!(actions.len(), 1, "{actions:?}");
    assert_eq!((actions[0].container_id.as_deref(), actions[0].what.as_str()), (None, "reported"));
    assert!(silent.lives() && good.init.lives());
}

#[test]
fn a_wedge_from_before_a_restart_is_ended_too() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut bad = need!(granted(&daemon, "bad", None));
    daemon.stop().unwrap();
    let pid = node.control_pid(0);
    let mut silent = holding(&control(&node), 1);
    bad.cgroup.add_pid(silent.pid());
    let daemon = node.start();
    wait_for("all of it is killed", || !silent.lives() && !bad.init.lives());
    wait_for("the card is ready", || daemon.card(0).state == "ready");
    assert_eq!(node.control_pid(0), pid, "the control daemon is the same");
    assert_eq!(actions(&daemon)[0].what, "killed");
}

#[test]
fn a_flood_of_connections_costs_each_of_its_containers_its_life() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut one = need!(granted(&daemon, "one", None));
    let mut two = need!(granted(&daemon, "two", None));
    let mut good = need!(granted(&daemon, "good", None));
    let mut floods = [holding(&control(&node), 65), holding(&control(&node), 64)];
    one.cgroup.add_pid(floods[0].pid());
    two.cgroup.add_pid(floods[1].pid());
    wait_for("both are killed", || {
        floods.iter_mut().all(|flood| !flood.lives()) && !one.init.lives() && !two.init.lives()
    });
    wait_for("the card is ready", || daemon.card(0).state == "ready");
    assert!(good.init.lives());
    let killed: Vec<_> = actions(&daemon)
        .into_iter()
        .map(|action| (action.container_id.unwrap_or_default(), action.what))
        .collect();
    assert_eq!(killed, [("one".into(), "killed".into()), ("two".into(), "killed".into())]);
}

/// Its init is the one process that is known of a container without a cgroup on record.
#[test]
fn without_a_cgroup_on_record_the_init_is_what_is_known() {
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("bad", 1)).unwrap();
    let mut silent = holding(&control(&node), 1);
    let call = mpsgate_api::Activate {
        key: grant.key.clone(),
        pid: silent.pid(),
        cgroup: None,
        grant: None,
    };
    // The channel is held already: nobody is let in until that is over.
    wait_for("it is seen", || daemon.card(0).state.contains("does not answer"));
    assert_eq!(daemon.activate_with(call, silent.pid()).unwrap_err().code, "E_GPU_UNHEALTHY");
    wait_for("it is killed", || !silent.lives());
}

#[test]
fn a_stopped_control_daemon_is_told_from_a_wedge_and_nobody_is_blamed() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut good = need!(granted(&daemon, "good", None));
    let pid = node.control_pid(0).unwrap();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
    };
    signal("-STOP");
    let expected = format!("does not answer: somebody stopped it, pid {pid}");
    wait_for("it is told", || daemon.card(0).state.contains(&expected));
    assert_eq!(daemon.card(0).hint.unwrap(), format!("let it go on: kill -CONT {pid}"));
    signal("-CONT");
    wait_for("the card is ready again", || daemon.card(0).state == "ready");
    assert_eq!(node.control_pid(0), Some(pid));
    assert!(good.init.lives());
    assert_eq!(actions(&daemon), []);
}

/// A CUDA process of the fake's, as `uid`.
fn client(node: &Node, uid: u32) -> Spawned {
    use std::os::unix::process::CommandExt;
    let child = Command::new(&node.config.mps.control)
        .arg("client")
        .env("CUDA_MPS_PIPE_DIRECTORY", node.mps(0).dirs().client_dir())
        .uid(uid)
        .gid(uid)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Spawned(child)
}

#[test]
fn a_process_that_waits_as_another_uid_than_its_grants_is_ended_and_its_container_lives() {
    need!(servers());
    need!(root());
    let node = Node::new(1);
    open_to_all(&node);
    let daemon = node.start();
    let mut bad = need!(granted(&daemon, "bad", Some(0)));
    let mut served = client(&node, 0);
    wait_for("the first one is served", || !node.mps(0).clients().unwrap()[0].1.is_empty());
    let mut wrong = client(&node, 65_534);
    bad.cgroup.add_pid(wrong.pid());
    let expected = format!("is blocked: pid {}", wrong.pid());
    wait_for("the block is named", || daemon.card(0).state.contains(&expected));
    let card = daemon.card(0);
    assert!(
        card.state.contains("waits for an MPS server of uid 65534, and its server serves uid 0")
    );
    assert!(card.hint.unwrap().contains("container bad"));
    assert_eq!(daemon.reserve(request("new", 1)).unwrap_err().code, "E_GPU_UNHEALTHY");
    wait_for("the process is ended", || !wrong.lives());
    wait_for("the card is ready again", || daemon.card(0).state == "ready");
    assert!(bad.init.lives() && served.lives());
    let actions = actions(&daemon);
    assert_eq!(actions.len(), 1, "{actions:?}");
    assert_eq!(
        (actions[0].container_id.as_deref(), actions[0].what.as_str()),
        (Some("bad"), "killed a process")
    );
    assert!(actions[0].why.contains("its grant is for uid 0"), "{actions:?}");
}

/// The one that came first holds the server; the one that waits has every right to it.
#[test]
fn whoever_is_served_as_a_wrong_uid_is_ended_and_not_the_rightful_one_that_waits() {
    need!(servers());
    need!(root());
    let node = Node::new(1);
    open_to_all(&node);
    let daemon = node.start();
    let bad = need!(granted(&daemon, "bad", Some(0)));
    let mut good = need!(granted(&daemon, "good", Some(0)));
    // Without clients its server makes room for the wrong one.
    let mut wrong = client(&node, 65_534);
    bad.cgroup.add_pid(wrong.pid());
    wait_for("the wrong one is served", || {
        node.mps(0).clients().is_ok_and(|clients| {
            clients.iter().any(|(server, pids)| server.uid == Some(65_534) && !pids.is_empty())
        })
    });
    let mut rightful = client(&node, 0);
    good.cgroup.add_pid(rightful.pid());
    wait_for("the wrong one is ended", || !wrong.lives());
    wait_for("the rightful one is served", || {
        node.mps(0).clients().is_ok_and(|clients| {
            clients.iter().any(|(server, pids)| server.uid == Some(0) && !pids.is_empty())
        })
    });
    wait_for("the card is ready again", || daemon.card(0).state == "ready");
    assert!(rightful.lives() && good.init.lives());
    let actions = actions(&daemon);
    assert_eq!(actions[0].container_id.as_deref(), Some("bad"), "{actions:?}");
}

/// Another uid must get through to the client directory.
fn open_to_all(node: &Node) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(node.dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
}

/// A connection that was handed to another container's process blames whoever holds it.
#[test]
fn a_connection_that_its_maker_gave_away_blames_who_holds_it() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut bad = need!(granted(&daemon, "bad", None));
    let fd = connect(&control(&node));
    let child = Command::new("sleep").arg("1000").stdin(Stdio::from(fd)).spawn().unwrap();
    let mut held = Spawned(child);
    bad.cgroup.add_pid(held.pid());
    wait_for("who holds it is killed", || !held.lives() && !bad.init.lives());
    assert_eq!(actions(&daemon)[0].container_id.as_deref(), Some("bad"));
}

fn connect(control: &Path) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
    let fd = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&fd, &SocketAddrUnix::new(control).unwrap()).unwrap();
    fd
}
