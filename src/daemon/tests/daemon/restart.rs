//! What survives a restart, and what keeps the daemon from starting.

use std::fs;
use std::os::unix::fs::MetadataExt;

use mpsgate_api::NodeSnapshot;
use mpsgate_daemon::DaemonError;
use mpsgate_edge::Remedy as _;

use crate::harness::{Container, Node, Running, files, request, uuid, wait_for};

#[test]
fn a_restart_keeps_grants_and_control_daemons() {
    let node = Node::new(2);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let mut init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    let pids = [node.control_pid(0).unwrap(), node.control_pid(1).unwrap()];
    daemon.stop().unwrap();
    assert_eq!([node.control_pid(0).unwrap(), node.control_pid(1).unwrap()], pids, "left running");

    let daemon = node.start();
    assert_eq!([node.control_pid(0).unwrap(), node.control_pid(1).unwrap()], pids, "adopted");
    let status = daemon.status();
    assert_eq!((status.grants[0].state.as_str(), status.grants[0].pid), ("active", init.pid()));
    assert_eq!(status.cards[0].mps.as_ref().unwrap().default_limit_mib, Some(7168));
    init.kill();
    wait_for("the grant ends under the new daemon", || daemon.granted_mib() == 0);
}

#[test]
fn a_grant_whose_container_ended_meanwhile_is_released_and_its_record_removed() {
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let mut init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    daemon.stop().unwrap();
    init.kill();
    fs::write(node.paths.grants().join("stray@x"), "{}").unwrap();
    let daemon = node.start();
    assert_eq!(daemon.granted_mib(), 0);
    assert_eq!(files(&node.paths.grants()), [] as [std::path::PathBuf; 0]);
}

#[test]
fn a_process_that_asks_again_after_a_restart_has_the_reservation_that_it_had() {
    let node = Node::new(2);
    let daemon = node.start();
    let first = daemon.reserve(request("web", 7)).unwrap();
    daemon.stop().unwrap();
    // Not waiting for the cards: the daemon does.
    let daemon = node.start_unready();
    assert_eq!(daemon.reserve(request("web", 7)).unwrap(), first);
    assert_eq!(daemon.reserve(request("other", 7)).unwrap().memory, first.memory);
    assert_eq!((daemon.granted_mib(), daemon.status().grants.len()), (2 * 7168, 2));
}

#[test]
fn a_ledger_that_is_cut_off_or_of_another_format_keeps_the_daemon_from_starting_and_stays() {
    let node = Node::new(1);
    drop(node.start());
    let path = node.paths.ledger().join("ledger.json");
    for text in ["{\"format\":1,\"gener", "{\"format\":2}", "{\"format\":0}"] {
        fs::write(&path, text).unwrap();
        let error = node.try_start().ended().unwrap_err();
        assert!(matches!(error, DaemonError::Ledger(_)), "{error}");
        let hint = error.hint().unwrap();
        assert!(hint.contains("stop every container"), "{hint}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn a_second_daemon_is_kept_out() {
    let node = Node::new(1);
    let daemon = node.start();
    let error = node.try_start().ended().unwrap_err();
    assert!(matches!(error, DaemonError::Ledger(_)), "{error}");
    assert_eq!(daemon.status().cards.len(), 1, "the first goes on");
}

#[test]
fn a_file_or_a_dead_socket_in_the_sockets_place_is_replaced_and_a_directory_is_not() {
    let node = Node::unmanaged(1);
    drop(node.start());
    let socket = node.paths.socket();
    assert!(!socket.exists(), "removed at the end");
    fs::write(&socket, "not a socket").unwrap();
    let answers = |daemon: &Running| {
        wait_for("it answers", || daemon.try_call(mpsgate_api::Call::Status).is_ok());
        assert_eq!(socket.metadata().unwrap().mode() & 0o777, 0o600);
    };
    let daemon = node.try_start();
    answers(&daemon);
    daemon.stop().unwrap();
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let daemon = node.try_start();
    answers(&daemon);
    daemon.stop().unwrap();
    fs::create_dir(&socket).unwrap();
    let error = node.try_start().ended().unwrap_err();
    assert!(matches!(error, DaemonError::Socket { .. }), "{error}");
}

#[test]
fn a_list_of_cards_that_cannot_be_read_keeps_the_daemon_from_starting_and_stays() {
    let node = Node::new(1);
    drop(node.start());
    fs::write(node.paths.managed(), "{").unwrap();
    let error = node.try_start().ended().unwrap_err();
    assert!(matches!(error, DaemonError::Managed { .. }), "{error}");
    assert_eq!(fs::read_to_string(node.paths.managed()).unwrap(), "{");
}

#[test]
fn the_snapshot_tells_the_shim_cards_and_namespace() {
    let node = Node::new(2);
    let _daemon = node.start();
    let read = || NodeSnapshot::parse(&fs::read(node.paths.snapshot()).ok()?).ok();
    wait_for("the node is told", || read().is_some());
    let snapshot = read().unwrap();
    assert_eq!(snapshot.ipc_inode, fs::metadata("/proc/self/ns/ipc").unwrap().ino());
    let cards: Vec<_> =
        snapshot.cards.iter().map(|c| (c.uuid.as_str(), c.index, c.managed)).collect();
    assert_eq!(cards, [(uuid(0).as_str(), 0, true), (uuid(1).as_str(), 1, true)]);
    assert_eq!(snapshot.majors.get("nvidia"), Some(&195));
    assert_eq!(node.paths.snapshot().metadata().unwrap().mode() & 0o777, 0o644);
}
