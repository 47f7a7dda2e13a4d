//! Servers and clients: the fake only, because they need a GPU. What is asserted here is what
//! `tests/gpu` must confirm on a real card.

use std::fs;
use std::num::NonZeroU32;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use mpsgate_mps::protocol::{Command, Event, ServerStatus, parse_log};
use mpsgate_mps::{CardMps, ForkSpawner, MpsError, MpsState, StoppedBy};
use nix::sys::signal::Signal;

use crate::harness::{Bench, Kind, LIMIT, NOBODY, bench, feed, is_root, listing, wait_for};

fn fake(version: u32) -> Bench {
    bench(Kind::Fake, version).expect("the fake is always there")
}

fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// A card with 7 GiB, a server for us and links for its clients.
fn serving(bench: &Bench) -> (CardMps, i32) {
    let (card, _) = bench.started();
    card.channel().set_default_limit(NonZeroU32::new(7168).unwrap()).unwrap();
    let server = card.ensure_server(own_uid(), LIMIT).unwrap();
    card.dirs().renew_links().unwrap();
    (card, server.pid)
}

/// A client in the background, attached through the containers' directory.
fn client(bench: &Bench, card: &CardMps) -> u32 {
    let mut command = bench.command(&card.dirs().client_dir());
    command.arg("client").stdin(Stdio::null()).stdout(Stdio::null());
    bench.keep(command)
}

fn attached(card: &CardMps, server: i32, client: u32) {
    wait_for("the client attaches", || {
        card.channel().client_list(server).unwrap() == [client.cast_signed()]
    });
}

#[test]
fn a_server_starts_with_the_limit_that_its_log_proves() {
    for version in [535, 550] {
        let bench = fake(version);
        let (card, _) = bench.started();
        card.channel().set_default_limit(NonZeroU32::new(7000).unwrap()).unwrap();
        let server = card.ensure_server(own_uid(), LIMIT).unwrap();
        assert_eq!((server.was_running, server.limit_bytes), (false, Some(7000 << 20)));
        let again = card.ensure_server(own_uid(), LIMIT).unwrap();
        assert_eq!((again.pid, again.was_running), (server.pid, true));
        let MpsState::Running { servers, .. } = card.state().unwrap() else {
            panic!("{:?}", card.state())
        };
        let status = if version > 535 { ServerStatus::Active } else { ServerStatus::Unreported };
        assert_eq!(
            (servers.len(), servers[0].uid, &servers[0].status),
            (1, Some(own_uid()), &status)
        );
        card.channel().set_server_limit(server.pid, NonZeroU32::new(512).unwrap()).unwrap();
        assert_eq!(card.stop(&ForkSpawner, Duration::ZERO).unwrap().daemon, StoppedBy::Quit);
        assert!(card.servers_alive().is_empty());
        assert!(listing(&bench.dir.path().join("mps")).is_empty());
    }
}

#[test]
fn a_server_that_stays_initializing_is_not_ready() {
    let bench = fake(550);
    let (card, _) = bench.started();
    fs::write(card.dirs().log_dir().join("fake-server-slow"), "").unwrap();
    let error = card.ensure_server(own_uid(), Duration::from_millis(100)).unwrap_err();
    assert!(
        matches!(&error, MpsError::ServerNotReady { status, .. } if status.contains("Initializing")),
        "{error}"
    );
    fs::remove_file(card.dirs().log_dir().join("fake-server-slow")).unwrap();
    assert!(card.ensure_server(own_uid(), LIMIT).unwrap().was_running);
}

#[test]
fn a_server_of_another_uid_is_named() {
    if !is_root("a_server_of_another_uid_is_named") {
        return;
    }
    let bench = fake(550);
    let (card, _) = bench.started();
    let server = card.ensure_server(NOBODY, LIMIT).unwrap();
    let error = card.ensure_server(0, LIMIT).unwrap_err();
    let named = matches!(error, MpsError::ServerOfOtherUid { server: pid, serves: NOBODY, wanted: 0, .. }
        if pid == server.pid);
    assert!(named, "{error}");
}

#[test]
fn one_server_serves_all_uids_in_multiuser_mode() {
    if !is_root("one_server_serves_all_uids_in_multiuser_mode") {
        return;
    }
    let bench = fake(580);
    let card = bench.card().with_multiuser(true);
    card.ensure_running(&ForkSpawner, LIMIT).unwrap();
    let server = card.ensure_server(NOBODY, LIMIT).unwrap();
    assert_eq!(card.ensure_server(1000, LIMIT).unwrap().pid, server.pid);
    card.dirs().renew_links().unwrap();
    let mut command = bench.command(&card.dirs().client_dir());
    command.arg("client").uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).stdout(Stdio::null());
    let client = bench.keep(command);
    attached(&card, server.pid, client);
}

#[test]
fn a_client_attaches_through_control_alone_and_gets_the_lower_limit() {
    let bench = fake(550);
    let (card, server) = serving(&bench);
    for (own, alloc, expected) in [
        (None, "7169", "limit_mib=7168\nCUDA_ERROR_OUT_OF_MEMORY\n"),
        (Some("0=1000M"), "1001", "limit_mib=1000\nCUDA_ERROR_OUT_OF_MEMORY\n"),
        (Some("0=9000M"), "7169", "limit_mib=7168\nCUDA_ERROR_OUT_OF_MEMORY\n"),
    ] {
        let mut command = bench.command(&card.dirs().client_dir());
        command.args(["client", "--alloc", alloc]);
        command.envs(own.map(|own| ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", own)));
        let output = feed(command, "");
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!("attached server={server} {expected}")
        );
    }
}

#[test]
fn terminate_client_ends_exactly_that_client() {
    let bench = fake(550);
    let (card, server) = serving(&bench);
    let first = client(&bench, &card);
    attached(&card, server, first);
    let second = client(&bench, &card);
    wait_for("both attach", || card.channel().client_list(server).unwrap().len() == 2);
    card.channel().ask(&Command::TerminateClient { server, client: first.cast_signed() }).unwrap();
    assert_eq!(bench.status_of(first), Some(10));
    attached(&card, server, second);
    let missing = card.channel().ask(&Command::TerminateClient { server: 1, client: 1 });
    assert!(matches!(missing, Err(MpsError::ServerNotFound { server: 1 })), "{missing:?}");
}

#[test]
fn a_faulted_server_is_reported_until_its_contexts_are_made_again() {
    for version in [535, 550] {
        let bench = fake(version);
        let (card, server) = serving(&bench);
        let affected = client(&bench, &card);
        attached(&card, server, affected);
        let fault = card.dirs().log_dir().join("fake-fault");
        fs::write(&fault, "").unwrap();
        wait_for("the fault shows", || matches!(card.state().unwrap(), MpsState::Fault { .. }));
        fs::remove_file(&fault).unwrap();
        // Still at fault: an affected client lives.
        assert!(matches!(card.state().unwrap(), MpsState::Fault { .. }));
        card.channel()
            .ask(&Command::TerminateClient { server, client: affected.cast_signed() })
            .unwrap();
        wait_for("it recovers", || matches!(card.state().unwrap(), MpsState::Running { .. }));
    }
}

#[test]
fn an_orphan_server_is_found_and_ended_by_stop() {
    let bench = fake(550);
    let (card, server) = serving(&bench);
    let daemon = card.find_running().unwrap().unwrap();
    let lost = client(&bench, &card);
    attached(&card, server, lost);
    daemon.process.signal(Signal::SIGKILL).unwrap();
    assert!(daemon.process.wait_gone(LIMIT));
    assert_eq!(bench.status_of(lost), Some(4));
    assert_eq!(card.state().unwrap(), MpsState::Dead { orphans: vec![server] });
    let report = card.stop(&ForkSpawner, Duration::ZERO).unwrap();
    assert_eq!((report.daemon, report.servers_killed), (StoppedBy::NotRunning, vec![server]));
    assert_eq!(card.state().unwrap(), MpsState::Dead { orphans: vec![] });
}

#[test]
fn a_client_of_a_wrong_uid_shows_as_pending_in_the_log() {
    if !is_root("a_client_of_a_wrong_uid_shows_as_pending_in_the_log") {
        return;
    }
    let bench = fake(550);
    let (card, _server) = serving(&bench);
    let mut command = bench.command(&card.dirs().client_dir());
    command.arg("client").uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).stdout(Stdio::null());
    let wrong = bench.keep(command).cast_signed();
    wait_for("the client is pushed to the pending list", || {
        parse_log(&card.dirs().log_file().since(0).unwrap())
            .any(|event| event == Event::ClientPending { client: wrong, uid: NOBODY })
    });
}

#[test]
fn quit_gives_clients_their_grace_and_no_more() {
    let bench = fake(550);
    let (card, server) = serving(&bench);
    let held = client(&bench, &card);
    attached(&card, server, held);
    assert_eq!(card.stop(&ForkSpawner, Duration::from_secs(1)).unwrap().daemon, StoppedBy::Quit);
    assert_eq!(bench.status_of(held), Some(4));
}
