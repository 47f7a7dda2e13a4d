//! A channel that somebody holds: found, named, and acted upon as `policy.enforce` says.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use mpsgate_api::Action;
use mpsgate_config::Enforce;
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
    cgroup: Cgroup,
}

fn granted(daemon: &Running, name: &str) -> Result<Granted, &'static str> {
    let cgroup = Cgroup::new(name)?;
    let grant = daemon.reserve(request(name, 1)).unwrap();
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
    let mut bad = need!(granted(&daemon, "bad"));
    let mut good = need!(granted(&daemon, "good"));
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
    let mut bad = need!(granted(&daemon, "bad"));
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
    let mut good = need!(granted(&daemon, "good"));
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
    let mut bad = need!(granted(&daemon, "bad"));
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
    let mut one = need!(granted(&daemon, "one"));
    let mut two = need!(granted(&daemon, "two"));
    let mut good = need!(granted(&daemon, "good"));
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
    let mut good = need!(granted(&daemon, "good"));
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
