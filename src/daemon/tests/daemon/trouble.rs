//! Control daemons and servers that die, and files that somebody takes away: what is broken is
//! said, what can be repaired is, and nobody is killed for it unasked.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::Duration;

use mpsgate_api::CardState;
use mpsgate_config::Orphan;

use crate::cards::kill;
use crate::harness::{Container, Node, Running, need, request, root, servers, wait_for};
use crate::kill::{Client, activate};

fn activated(daemon: &Running, name: &str, gib: u64) -> (mpsgate_model::Grant, Container) {
    let grant = daemon.reserve(request(name, gib)).unwrap();
    let init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    (grant, init)
}

fn state_of(daemon: &Running, container: &str) -> String {
    let mut grants = daemon.status().grants;
    grants.retain(|grant| grant.container_id == container);
    grants.pop().map(|grant| grant.state.to_string()).unwrap_or_default()
}

/// Another control daemon than `old` runs, and the card takes grants.
fn recovered(node: &Node, daemon: &Running, old: i32) {
    wait_for("another control daemon is ready", || {
        node.control_pid(0).is_some_and(|pid| pid != old)
            && daemon.card(0).state == CardState::Ready
    });
}

#[test]
fn grants_on_a_dead_control_daemon_are_broken_and_the_card_serves_new_ones() {
    let mut node = Node::new(1);
    // Where a server outlives its control daemon, nothing is to wait for it here.
    node.config.mps.orphan = Orphan::Kill;
    let daemon = node.start();
    let (_web, init) = activated(&daemon, "web", 7);
    let old = node.control_pid(0).unwrap();
    kill(old);
    wait_for("the grant is broken", || state_of(&daemon, "web") == "broken");
    recovered(&node, &daemon, old);
    let grant = &daemon.status().grants[0];
    assert!(grant.broken_ms.is_some_and(|at| at >= grant.since_ms));
    assert!(grant.hint.as_deref().is_some_and(|hint| hint.contains("restart the container")));
    // The limits of what still counts.
    assert_eq!(daemon.card(0).mps.unwrap().default_limit_mib, Some(7168));
    assert_eq!(node.mps(0).channel().default_limit().unwrap().as_deref(), Some("7G"));
    assert_eq!(daemon.granted_mib(), 7168, "it counts until its container ends");
    assert_eq!(daemon.reserve(request("big", 9)).unwrap_err().code, "E_NO_CAPACITY");
    let (_db, _other) = activated(&daemon, "db", 8);
    assert_eq!(state_of(&daemon, "db"), "active", "it has the new one");
    drop(init);
    wait_for("the broken grant ends with its container", || daemon.granted_mib() == 8192);
}

#[test]
fn what_is_broken_stays_so_over_a_restart_and_what_broke_meanwhile_is_found() {
    let mut node = Node::new(1);
    node.config.mps.orphan = Orphan::Kill;
    let daemon = node.start();
    let (_web, _init) = activated(&daemon, "web", 1);
    daemon.stop().unwrap();
    let old = node.control_pid(0).unwrap();
    kill(old);
    wait_for("it is gone", || node.control_pid(0).is_none());
    let daemon = node.start();
    recovered(&node, &daemon, old);
    assert_eq!(state_of(&daemon, "web"), "broken", "it died while mpsgated was away");
    let at = daemon.status().grants[0].broken_ms;
    daemon.stop().unwrap();
    let daemon = node.start();
    assert_eq!(daemon.status().grants[0].broken_ms, at, "adopted: nothing new broke");
    assert_eq!(state_of(&daemon, "web"), "broken");
}

#[test]
fn a_reservation_outlives_the_control_daemon_and_its_container_is_refused_until_there_is_one() {
    let mut node = Node::new(1);
    node.config.mps.orphan = Orphan::Kill;
    let daemon = node.start();
    let (early, late) =
        (daemon.reserve(request("early", 1)).unwrap(), daemon.reserve(request("late", 1)).unwrap());
    let init = Container::new();
    let old = node.control_pid(0).unwrap();
    kill(old);
    wait_for("the card is fenced", || daemon.state(0).contains("lost its MPS control daemon"));
    let refusal = daemon.activate(&early, &init, None).unwrap_err();
    assert_eq!(refusal.code, "E_GPU_UNHEALTHY");
    assert!(refusal.sentence.contains("is started again in 1 s"), "{refusal:?}");
    assert_eq!(daemon.reserve(request("new", 1)).unwrap_err().code, "E_GPU_UNHEALTHY");
    recovered(&node, &daemon, old);
    daemon.activate(&late, &init, None).unwrap();
    assert_eq!(state_of(&daemon, "late"), "active");
    if servers().is_ok() {
        let servers = daemon.card(0).mps.unwrap().servers;
        assert_eq!(servers.len(), 1, "started before the container's program");
    }
}

#[test]
fn a_control_daemon_that_dies_again_and_again_is_started_less_and_less_soon() {
    let node = Node::new(1);
    let daemon = node.start();
    for seconds in [1, 2] {
        let old = node.control_pid(0).unwrap();
        kill(old);
        let expected = format!("which is started again in {seconds} s");
        wait_for("the wait is told", || daemon.state(0).contains(&expected));
        recovered(&node, &daemon, old);
    }
}

#[test]
fn a_control_program_that_ends_at_once_with_0_is_no_start() {
    let mut node = Node::new(1);
    let program = node.dir.path().join("control");
    fs::write(&program, "#!/bin/sh\necho bye\nexit 0\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    node.config.mps.control = program;
    let daemon = node.start();
    let card = daemon.card(0);
    assert!(card.state.as_str().contains("ended at once"), "{card:?}");
    assert_eq!(daemon.reserve(request("web", 1)).unwrap_err().code, "E_GPU_UNHEALTHY");
}

#[test]
fn an_orphan_server_keeps_its_card_closed_and_is_not_touched() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let (_web, _init) = activated(&daemon, "web", 1);
    let server = node.mps(0).servers().unwrap()[0].pid;
    let old = node.control_pid(0).unwrap();
    kill(old);
    let expected = format!("whose server still holds the card for web: pid {server}");
    wait_for("the orphan is named", || daemon.state(0).contains(&expected));
    let refusal = daemon.reserve(request("db", 1)).unwrap_err();
    assert_eq!(refusal.code, "E_GPU_UNHEALTHY");
    assert!(refusal.hint.contains(&format!("kill {server};")), "{refusal:?}");
    assert!(refusal.hint.contains("mps.orphan = \"kill\""), "{refusal:?}");
    assert_eq!(state_of(&daemon, "web"), "broken");
    assert_eq!(node.control_pid(0), None, "none beside it");
    // Over a restart, too: nothing is ended unasked.
    daemon.stop().unwrap();
    let daemon = node.start();
    assert!(daemon.state(0).contains(&expected), "{:?}", daemon.card(0));
    assert_eq!(node.mps(0).servers_alive().len(), 1);
    kill(server);
    recovered(&node, &daemon, old);
    daemon.reserve(request("db", 1)).unwrap();
}

#[test]
fn an_orphan_server_is_ended_where_the_settings_say_so() {
    need!(servers());
    let mut node = Node::new(1);
    node.config.mps.orphan = Orphan::Kill;
    let daemon = node.start();
    let (_web, mut init) = activated(&daemon, "web", 1);
    let server = node.mps(0).servers().unwrap()[0].pid;
    let old = node.control_pid(0).unwrap();
    kill(old);
    recovered(&node, &daemon, old);
    assert!(node.mps(0).servers_alive().iter().all(|alive| alive.pid() != server));
    assert!(init.lives(), "the container itself is left alone");
    assert_eq!(state_of(&daemon, "web"), "broken");
}

#[test]
fn a_server_that_crashes_breaks_the_grants_that_it_served() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let (_web, _init) = activated(&daemon, "web", 1);
    let server = node.mps(0).servers().unwrap()[0].pid;
    let old = node.control_pid(0);
    kill(server);
    wait_for("the grant is broken", || state_of(&daemon, "web") == "broken");
    assert_eq!(node.control_pid(0), old, "the control daemon goes on");
    wait_for("the card takes grants", || daemon.card(0).state == CardState::Ready);
    daemon.reserve(request("db", 1)).unwrap();
}

#[test]
fn a_lost_file_of_the_control_daemons_closes_the_card() {
    let node = Node::new(1);
    let daemon = node.start();
    let (_web, _init) = activated(&daemon, "web", 1);
    let (pipe, named) = (node.pipe(0), node.mps(0).dirs().pipe_dir());
    let (socket, away) = (pipe.join("control_privileged"), pipe.join("away"));
    fs::rename(&socket, &away).unwrap();
    let expected = format!("{} is missing", named.join("control_privileged").display());
    wait_for("the card is fenced by name", || daemon.state(0).contains(&expected));
    assert_eq!(daemon.reserve(request("db", 1)).unwrap_err().code, "E_GPU_UNHEALTHY");
    fs::rename(&away, &socket).unwrap();
    wait_for("the card is ready again", || daemon.card(0).state == CardState::Ready);

    let base = named.parent().unwrap().to_path_buf();
    let moved = node.dir.path().join("moved");
    fs::rename(&base, &moved).unwrap();
    symlink(&moved, &base).unwrap();
    let expected = format!("{} is not a directory but a symbolic link", base.display());
    wait_for("the planted link is named", || daemon.state(0).contains(&expected));
    fs::remove_file(&base).unwrap();
    fs::rename(&moved, &base).unwrap();
    wait_for("the card is ready again", || daemon.card(0).state == CardState::Ready);
}

#[test]
fn a_link_in_the_place_of_any_directory_of_ours_keeps_the_daemon_from_starting() {
    let node = Node::unmanaged(1);
    drop(node.start());
    for place in [
        node.paths.run.clone(),
        node.paths.mps(),
        node.paths.grants(),
        node.paths.ledger(),
        node.paths.state.clone(),
    ] {
        let away = node.dir.path().join("away");
        fs::rename(&place, &away).unwrap();
        symlink(&away, &place).unwrap();
        let error = node.try_start().ended().unwrap_err();
        let named =
            matches!(&error, mpsgate_daemon::DaemonError::Planted { path, .. } if *path == place);
        assert!(named, "{}: {error}", place.display());
        fs::remove_file(&place).unwrap();
        fs::rename(&away, &place).unwrap();
    }
    drop(node.start());
}

#[test]
fn a_link_in_the_ledgers_place_is_not_written_through_and_refuses_grants() {
    let node = Node::new(1);
    let daemon = node.start();
    daemon.reserve(request("web", 1)).unwrap();
    let (place, away) = (node.paths.ledger(), node.dir.path().join("away"));
    fs::rename(&place, &away).unwrap();
    let before = away.join("ledger.json").metadata().unwrap().ino();
    symlink(&away, &place).unwrap();
    let refusal = daemon.reserve(request("db", 1)).unwrap_err();
    assert_eq!(refusal.code, "E_LEDGER");
    assert!(refusal.sentence.contains("was replaced while mpsgated ran"), "{refusal:?}");
    assert_eq!(away.join("ledger.json").metadata().unwrap().ino(), before);
    assert_eq!(daemon.granted_mib(), 1024, "it was taken back");
    fs::remove_file(&place).unwrap();
    fs::rename(&away, &place).unwrap();
    daemon.reserve(request("db", 1)).unwrap();
}

#[test]
fn the_client_that_a_faulted_servers_log_blames_is_named_as_the_logs_word_and_nothing_is_done_to_it()
 {
    need!(servers());
    need!(root());
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 1)).unwrap();
    let mut client = Client::attach(&node, &grant);
    let pid = client.pid();
    activate(&daemon, &grant, pid);
    let other = daemon.reserve(request("db", 1)).unwrap();
    let mut init = Container::new();
    daemon.activate(&other, &init, None).unwrap();
    let fault = node.paths.mps().join("0/log/fake-fault");
    // Renamed into place: the fake must not see the file before it says whom to blame.
    let blame = |pid: u32| {
        let written = node.dir.path().join("fault");
        fs::write(&written, pid.to_string()).unwrap();
        fs::rename(written, &fault).unwrap();
    };
    blame(pid);
    wait_for("the log's word is repeated", || {
        daemon.state(0).contains(&format!(
            "in FAULT after a fatal GPU error, for which its log, which proves nothing, names \
             container web, pid {pid}"
        ))
    });
    assert!(daemon.status().actions.is_empty(), "{:?}", daemon.status().actions);
    assert!(client.lives() && daemon.status().notes.is_empty());
    fs::remove_file(&fault).unwrap();
    drop(client);
    wait_for("the card is ready again", || daemon.card(0).state == CardState::Ready);

    // Whom the control daemon does not serve, the log does not name.
    let grant = daemon.reserve(request("web2", 1)).unwrap();
    let _client = Client::attach(&node, &grant);
    blame(init.pid());
    wait_for("it is in fault", || daemon.state(0).contains("in FAULT"));
    // The look that saw the fault has read that line, too; one more.
    std::thread::sleep(Duration::from_secs(2));
    assert!(!daemon.state(0).contains("container db"), "{:?}", daemon.card(0));
    assert!(init.lives() && daemon.status().actions.is_empty());
}
