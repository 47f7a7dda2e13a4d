//! Servers and clients below NVIDIA's control daemon and the fake, both with the fake's server: how
//! the daemon starts, asks, limits and ends a server, and hands clients over to it. The behaviour
//! of a server and a client is the fake's, and `tests/gpu` must confirm it on a real card.

use std::fs;
use std::num::NonZeroU32;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use mpsgate_mps::protocol::{Command, ServerStatus};
use mpsgate_mps::{MpsError, MpsInstance, MpsState, Origin, Signal, StoppedBy};

use crate::harness::{Bench, Kind, LIMIT, NOBODY, bench, feed, need, root, uuid, wait_for};
use crate::supervision::idle_connection;

fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// A card with 7 GiB and a server for this user.
fn serving(bench: &Bench) -> (MpsInstance, i32) {
    let (card, _) = bench.started();
    card.channel().set_default_limit(NonZeroU32::new(7168).unwrap()).unwrap();
    let server = card.ensure_server(own_uid(), LIMIT).unwrap();
    (card, server.pid)
}

/// A client in the background, attached through the daemon's `control` alone.
fn client(bench: &Bench) -> u32 {
    let mut command = bench.client(&bench.control_alone());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    bench.keep(command)
}

fn attached(card: &MpsInstance, server: i32, client: u32) {
    wait_for("the client attaches", || {
        card.channel().client_list(server).unwrap() == [client.cast_signed()]
    });
}

pub(crate) fn a_server_starts_and_is_found_again(bench: &Bench) {
    need!(bench.with_server());
    let (card, _) = bench.started();
    card.channel().set_default_limit(NonZeroU32::new(7000).unwrap()).unwrap();
    let server = card.ensure_server(own_uid(), LIMIT).unwrap();
    assert!(!server.was_running);
    let again = card.ensure_server(own_uid(), LIMIT).unwrap();
    assert_eq!((again.pid, again.was_running), (server.pid, true));
    let MpsState::Running { servers, .. } = card.state().unwrap() else {
        panic!("{:?}", card.state())
    };
    let status = if bench.version > 535 { ServerStatus::Active } else { ServerStatus::Unreported };
    assert_eq!((servers.len(), servers[0].uid, &servers[0].status), (1, Some(own_uid()), &status));
    card.channel().set_server_limit(server.pid, NonZeroU32::new(512).unwrap()).unwrap();
    assert_eq!(card.stop(&bench.spawner(), Duration::ZERO).unwrap().daemon, StoppedBy::Quit);
    assert!(card.servers_alive().is_empty());
    assert!(bench.left().is_empty(), "{:?}", bench.left());
}

/// The front-end of a killed mpsgated lives a moment longer.
pub(crate) fn a_server_comes_also_where_another_front_end_is_connected(bench: &Bench) {
    need!(bench.with_server());
    let (card, daemon) = bench.started();
    card.channel().set_default_limit(NonZeroU32::new(7000).unwrap()).unwrap();
    let held = idle_connection(&bench.pipe_of(&daemon).join("control"));
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(held);
    });
    assert!(!card.ensure_server(own_uid(), LIMIT).unwrap().was_running);
    ends.join().unwrap();
}

pub(crate) fn a_server_that_stays_initializing_is_not_ready(bench: &Bench) {
    need!(bench.with_server());
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

pub(crate) fn a_server_of_another_uid_is_named(bench: &Bench) {
    need!(root());
    need!(bench.with_server());
    let (card, _) = bench.started();
    let server = card.ensure_server(NOBODY, LIMIT).unwrap();
    let error = card.ensure_server(0, LIMIT).unwrap_err();
    let named = matches!(error, MpsError::ServerOfOtherUid { server: pid, serves: NOBODY, wanted: 0, .. }
        if pid == server.pid);
    assert!(named, "{error}");
}

/// The call does not wait for it, because its caller may have given up by then.
pub(crate) fn a_server_of_another_uid_that_is_not_ready_is_named_at_once(bench: &Bench) {
    need!(root());
    need!(bench.with_server());
    let (card, _) = bench.started();
    fs::write(card.dirs().log_dir().join("fake-server-slow"), "").unwrap();
    card.ensure_server(NOBODY, Duration::from_millis(100)).unwrap_err();
    let error = card.ensure_server(0, Duration::from_hours(1)).unwrap_err();
    assert!(matches!(error, MpsError::ServerOfOtherUid { serves: NOBODY, .. }), "{error}");
}

#[test]
fn a_server_that_starts_may_have_the_user_of_the_control_daemon() {
    need!(root());
    let bench = bench(Kind::Fake, 580).expect("the fake is always there");
    let (card, _) = bench.started();
    let late = card.dirs().log_dir().join("fake-server-late-user");
    fs::write(&late, "").unwrap();
    let server = std::thread::scope(|scope| {
        let started = scope.spawn(|| card.ensure_server(NOBODY, LIMIT));
        wait_for("it starts", || !card.servers_alive().is_empty());
        // Long enough for some looks at it.
        std::thread::sleep(Duration::from_millis(200));
        fs::remove_file(&late).unwrap();
        started.join().unwrap().unwrap()
    });
    assert_eq!(card.servers().unwrap()[0].uid, Some(NOBODY), "{server:?}");
}

#[test]
fn one_server_serves_all_uids_in_multiuser_mode() {
    need!(root());
    let bench = bench(Kind::Fake, 580).expect("the fake is always there");
    let card = bench.card().with_multiuser(true);
    card.ensure_running(&bench.spawner(), LIMIT).unwrap();
    let server = card.ensure_server(NOBODY, LIMIT).unwrap();
    assert_eq!(card.ensure_server(1000, LIMIT).unwrap().pid, server.pid);
    let mut command = bench.client(&bench.control_alone());
    command.uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).stdout(Stdio::null());
    let client = bench.keep(command);
    attached(&card, server.pid, client);
}

/// tests/gpu saw these answers of the driver's own on an H200 (580.159.04), and compares them at
/// each run.
#[test]
fn the_fake_of_580_answers_as_a_real_one_on_a_gpu() {
    let bench = bench(Kind::Fake, 580).expect("the fake is always there");
    let (card, server) = serving(&bench);
    let pid = client(&bench);
    attached(&card, server, pid);
    let dir = bench.pipe_of(&card.find_running().unwrap().unwrap());
    let ask = |words: &str| bench.ask(&dir, None, words).1;
    assert_eq!(ask("get_device_client_list\n"), format!("[0] 00:00.0, FAKE\n  {pid}.1\n"));
    let ps = ask("ps\n");
    assert!(ps.starts_with("PID ID SERVER DEVICE NAMESPACE COMMAND\n"), "{ps}");
    assert!(ps.contains(&format!("\n{pid} 1 {server} {} ", uuid())), "{ps}");
    assert_eq!(ask(&format!("terminate_client {server} 1\n")), "201\n");
    // The clients that count as terminated.
    let soon = Instant::now() + Duration::from_secs(20);
    let pids = card.terminate_clients(|client| client == pid.cast_signed(), soon).unwrap();
    assert_eq!(pids, [pid.cast_signed()]);
    let mut blind = bench.command(&dir);
    blind.arg("-f").env("CUDA_VISIBLE_DEVICES", "");
    assert_eq!(feed(blind, "").status.code(), Some(100));
}

pub(crate) fn a_client_attaches_through_control_alone_and_gets_the_lower_limit(bench: &Bench) {
    need!(bench.with_server());
    let (_card, server) = serving(bench);
    for (own, alloc, expected) in [
        (None, "7169", "limit_mib=7168\nCUDA_ERROR_OUT_OF_MEMORY\n"),
        (Some("0=1000M"), "1001", "limit_mib=1000\nCUDA_ERROR_OUT_OF_MEMORY\n"),
        (Some("0=9000M"), "7169", "limit_mib=7168\nCUDA_ERROR_OUT_OF_MEMORY\n"),
    ] {
        let mut command = bench.client(&bench.control_alone());
        command.args(["--alloc", alloc]);
        command.envs(own.map(|own| ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", own)));
        let output = feed(command, "");
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!("attached server={server} {expected}")
        );
    }
}

pub(crate) fn terminate_client_ends_exactly_that_client(bench: &Bench) {
    need!(bench.with_server());
    let (card, server) = serving(bench);
    let first = client(bench);
    attached(&card, server, first);
    let second = client(bench);
    wait_for("both attach", || card.channel().client_list(server).unwrap().len() == 2);
    card.channel().ask(&Command::TerminateClient { server, client: first.cast_signed() }).unwrap();
    assert_eq!(bench.status_of(first), Some(10));
    attached(&card, server, second);
    let missing = card.channel().ask(&Command::TerminateClient { server: 1, client: 1 });
    assert!(matches!(missing, Err(MpsError::ServerNotFound { server: 1 })), "{missing:?}");
}

pub(crate) fn the_doomed_clients_of_a_card_are_terminated_and_no_others(bench: &Bench) {
    need!(bench.with_server());
    let (card, server) = serving(bench);
    let soon = || Instant::now() + Duration::from_secs(20);
    assert_eq!(card.terminate_clients(|_| true, soon()).unwrap(), Vec::<i32>::new());
    let doomed = client(bench);
    attached(&card, server, doomed);
    let spared = client(bench);
    wait_for("both attach", || card.channel().client_list(server).unwrap().len() == 2);
    let pid = doomed.cast_signed();
    assert_eq!(card.terminate_clients(|client| client == pid, soon()).unwrap(), [pid]);
    assert_eq!(bench.status_of(doomed), Some(10));
    attached(&card, server, spared);
    let all = card.clients().unwrap();
    assert_eq!(
        all.iter().map(|(s, c)| (s.pid, c.clone())).collect::<Vec<_>>(),
        [(server, vec![spared.cast_signed()])]
    );
}

pub(crate) fn a_control_daemon_that_hangs_ends_a_termination_at_its_deadline(bench: &Bench) {
    need!(bench.with_server());
    let (card, _) = serving(bench);
    let daemon = card.find_running().unwrap().unwrap().process;
    daemon.signal(Signal::STOP).unwrap();
    // The channel itself would wait for 3 s.
    let error = card.terminate_clients(|_| true, Instant::now() + Duration::from_millis(50));
    daemon.signal(Signal::CONT).unwrap();
    assert!(
        matches!(&error, Err(MpsError::Wedged { after_ms, .. }) if *after_ms <= 50),
        "{error:?}"
    );
    let past = card.terminate_clients(|_| true, Instant::now());
    assert!(
        matches!(past, Err(MpsError::Wedged { .. } | MpsError::ChannelBusy { .. })),
        "{past:?}"
    );
}

pub(crate) fn a_faulted_server_is_reported_until_its_contexts_are_made_again(bench: &Bench) {
    {
        need!(bench.with_server());
        let (card, server) = serving(bench);
        let affected = client(bench);
        attached(&card, server, affected);
        let fault = card.dirs().log_dir().join("fake-fault");
        fs::write(&fault, "").unwrap();
        wait_for("the fault shows", || matches!(card.state().unwrap(), MpsState::Fault { .. }));
        fs::remove_file(&fault).unwrap();
        // It is still at fault: an affected client lives.
        assert!(matches!(card.state().unwrap(), MpsState::Fault { .. }));
        card.channel()
            .ask(&Command::TerminateClient { server, client: affected.cast_signed() })
            .unwrap();
        wait_for("it recovers", || matches!(card.state().unwrap(), MpsState::Running { .. }));
    }
}

/// Otherwise a process that can write to the log could fence a card with such a line.
pub(crate) fn of_a_driver_that_cannot_be_asked_no_line_of_the_log_makes_a_fault(bench: &Bench) {
    need!(bench.with_server());
    let (card, server) = serving(bench);
    fs::write(card.dirs().log_dir().join("fake-fault"), "").unwrap();
    wait_for("the line is there", || {
        card.dirs().log_file().since(0).unwrap().contains("fatal GPU error")
    });
    let MpsState::Running { servers, .. } = card.state().unwrap() else {
        panic!("{:?}", card.state())
    };
    assert_eq!((servers[0].pid, &servers[0].status), (server, &ServerStatus::Unreported));
}

/// Otherwise a process that can write to the log could keep a card without a server for ever.
pub(crate) fn a_server_that_starts_slowly_is_not_taken_for_ended_because_a_line_says_so(
    bench: &Bench,
) {
    need!(bench.with_server());
    let (card, _) = bench.started();
    let slow = card.dirs().log_dir().join("fake-server-slow");
    fs::write(&slow, "").unwrap();
    std::thread::scope(|scope| {
        let started = scope.spawn(|| card.ensure_server(own_uid(), LIMIT));
        wait_for("it is being started", || {
            card.dirs().log_file().since(0).unwrap().contains("Starting new server")
        });
        let mut log = fs::File::options().append(true).open(card.dirs().log_file().path()).unwrap();
        for _ in 0..20 {
            let line = "[2026-01-01 00:00:00.000 Control 7] Server 7 exited with status 1\n";
            std::io::Write::write_all(&mut log, line.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(25));
        }
        fs::remove_file(&slow).unwrap();
        assert!(!started.join().unwrap().unwrap().was_running);
    });
}

pub(crate) fn an_orphan_server_is_found_and_ended_by_stop(bench: &Bench) {
    need!(bench.with_server());
    let (card, server) = serving(bench);
    let daemon = card.find_running().unwrap().unwrap();
    let lost = client(bench);
    attached(&card, server, lost);
    daemon.process.signal(Signal::KILL).unwrap();
    assert!(daemon.process.wait_gone(LIMIT));
    assert_eq!(bench.status_of(lost), Some(4));
    assert_eq!(card.state().unwrap(), MpsState::Dead { orphans: vec![server] });
    let report = card.stop(&bench.spawner(), Duration::ZERO).unwrap();
    assert_eq!((report.daemon, report.servers_killed), (StoppedBy::NotRunning, vec![server]));
    assert_eq!(card.state().unwrap(), MpsState::Dead { orphans: vec![] });
}

/// It would not get the card, and its clients would run without MPS or not at all.
pub(crate) fn no_control_daemon_is_started_beside_an_orphan_server(bench: &Bench) {
    need!(bench.with_server());
    let (card, server) = serving(bench);
    let daemon = card.find_running().unwrap().unwrap();
    daemon.process.signal(Signal::KILL).unwrap();
    assert!(daemon.process.wait_gone(LIMIT));
    let refused = card.ensure_running(&bench.spawner(), LIMIT).unwrap_err();
    let named = matches!(&refused, MpsError::Orphans { pids, .. } if *pids == [server]);
    assert!(named && refused.hint().unwrap().contains(&format!("kill {server};")), "{refused}");
    assert_eq!(card.end_orphans().unwrap(), [server]);
    assert_eq!(card.ensure_running(&bench.spawner(), LIMIT).unwrap().1, Origin::Started);
    assert_eq!(card.end_orphans().unwrap(), [] as [i32; 0]);
}

/// Every user has the server program (CDI brings it into containers, too) and can set any
/// environment. No user has the mount namespace of a control daemon.
pub(crate) fn a_process_that_dresses_up_as_a_server_is_none(bench: &Bench) {
    need!(root());
    need!(bench.with_server());
    let (card, server) = serving(bench);
    let program = bench.binary.with_file_name("nvidia-cuda-mps-server");
    let pipe = card.dirs().pipe_dir();
    // It must not speak to the daemon, which would turn it away.
    let log = bench.dir.path().join("another");
    fs::create_dir(&log).unwrap();
    fs::write(log.join("fake-server-slow"), "").unwrap();
    let dressed_up = |around: &[&str]| {
        let mut command = std::process::Command::new("env");
        command.args(around).arg(&program).env_clear().env("PATH", "/usr/sbin:/usr/bin:/bin");
        command.env("CUDA_MPS_PIPE_DIRECTORY", &pipe);
        command.env("CUDA_MPS_LOG_DIRECTORY", &log);
        let parent = bench.keep(command);
        wait_for("it runs", || {
            let children = format!("/proc/{parent}/task/{parent}/children");
            let child = fs::read_to_string(children).unwrap_or_default();
            let runs = |pid: &str| {
                fs::read_link(format!("/proc/{pid}/exe"))
                    .is_ok_and(|exe| exe.ends_with("nvidia-cuda-mps-server"))
            };
            runs(child.trim()) || runs(&parent.to_string())
        });
    };
    dressed_up(&[]);
    let tmpfs = format!("mount -t tmpfs tmpfs {}; exec \"$@\"", pipe.display());
    let with_tmpfs = ["sh", "-ec", &tmpfs, "sh"];
    // Root of a user namespace may mount a tmpfs there.
    dressed_up(&[&["unshare", "--user", "--map-root-user", "--mount"], &with_tmpfs[..]].concat());
    let own_pids = ["unshare", "--pid", "--fork", "--kill-child", "--mount"];
    dressed_up(&[&own_pids, &with_tmpfs[..]].concat());
    // With the node's pids and a root of its own, as `docker run --pid=host`.
    let root = tempfile::tempdir().unwrap();
    let own_root = format!(
        "for d in bin lib lib64 usr tmp; do mkdir {0}/$d; mount --bind /$d {0}/$d; done; \
         mount -t tmpfs tmpfs {0}{1}; exec chroot {0} \"$@\"",
        root.path().display(),
        pipe.display()
    );
    dressed_up(&["unshare", "--mount", "sh", "-ec", &own_root, "sh"]);
    let alive: Vec<i32> = card.servers_alive().iter().map(mpsgate_mps::Process::pid).collect();
    assert_eq!(alive, [server]);
}

pub(crate) fn a_client_of_a_wrong_uid_shows_as_pending_in_the_log(bench: &Bench) {
    need!(root());
    need!(bench.with_server());
    let (card, _server) = serving(bench);
    let mut command = bench.client(&bench.control_alone());
    command.uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).stdout(Stdio::null());
    let wrong = bench.keep(command).cast_signed();
    wait_for("the client is pushed to the pending list", || {
        let line = format!("NEW CLIENT {wrong} from user {NOBODY}: ");
        let log = card.dirs().log_file().since(0).unwrap();
        log.lines().any(|seen| {
            seen.split_once(&line).is_some_and(|(_, what)| what.contains("to pending list"))
        })
    });
}

pub(crate) fn quit_gives_clients_their_grace_and_no_more(bench: &Bench) {
    need!(bench.with_server());
    let (card, server) = serving(bench);
    let held = client(bench);
    attached(&card, server, held);
    assert_eq!(
        card.stop(&bench.spawner(), Duration::from_secs(1)).unwrap().daemon,
        StoppedBy::Quit
    );
    assert_eq!(bench.status_of(held), Some(4));
}
