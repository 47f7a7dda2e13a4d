//! The effect of an attack or an accident on a card, and what can be seen and repaired of it.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use mpsgate_mps::{
    ControlDaemon, Glance, MpsError, MpsInstance, MpsState, Signal, StoppedBy, WedgeCause,
};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::harness::{Bench, LIMIT, listing, need, wait_for};

/// A silent connection; `None` if the queue is full.
fn idle_connection(control: &Path) -> Option<OwnedFd> {
    let fd =
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    match connect(fd.as_raw_fd(), &UnixAddr::new(control).unwrap()) {
        Ok(()) => Some(fd),
        Err(Errno::EAGAIN) => None,
        Err(errno) => panic!("{errno}"),
    }
}

fn impatient(bench: &Bench) -> (MpsInstance, ControlDaemon) {
    let (_, daemon) = bench.started();
    (bench.impatient_card(), daemon)
}

pub(crate) fn a_glance_tells_rest_work_and_stop_without_a_word(bench: &Bench) {
    let (card, daemon) = impatient(bench);
    let heard = || card.dirs().log_file().since(0).unwrap().matches("Accepting connection").count();
    let before = heard();
    wait_for("it rests", || card.glance(&daemon) == Glance::AtRest);
    assert_eq!(heard(), before, "a glance is not heard");
    let held = idle_connection(&bench.pipe_of(&daemon).join("control"));
    wait_for("it is busy", || card.glance(&daemon) == Glance::Busy);
    drop(held);
    wait_for("it rests again", || card.glance(&daemon) == Glance::AtRest);
    daemon.process.signal(Signal::STOP).unwrap();
    wait_for("it is stopped", || card.glance(&daemon) == Glance::Stopped);
    daemon.process.signal(Signal::KILL).unwrap();
    wait_for("it is gone", || card.glance(&daemon) == Glance::Gone);
}

/// The driver's own program suffices, and the daemon looks at rest: only the connection shows it.
pub(crate) fn a_front_end_that_stays_is_seen_by_its_connection(bench: &Bench) {
    let (card, daemon) = impatient(bench);
    let known = card.connections(&daemon);
    let mut stays = bench.command(&bench.pipe_of(&daemon));
    let (input, kept) = std::io::pipe().unwrap();
    stays.stdin(Stdio::from(input)).stdout(Stdio::null()).stderr(Stdio::null());
    bench.keep(stays);
    wait_for("it has connected", || card.connections(&daemon).has_more_than(&known));
    wait_for("nobody else is served", || matches!(card.state(), Ok(MpsState::Wedged { .. })));
    let connected = card.connections(&daemon);
    assert!(connected.in_both(&card.connections(&daemon)).has_more_than(&known), "it stays");
    drop(kept);
    wait_for("it answers", || matches!(card.state(), Ok(MpsState::Running { .. })));
}

pub(crate) fn a_flood_of_connections_is_a_wedge_until_it_ends(bench: &Bench) {
    let (card, daemon) = impatient(bench);
    let control = bench.pipe_of(&daemon).join("control");
    let flood: Vec<OwnedFd> = (0..130).map_while(|_| idle_connection(&control)).collect();
    assert!(idle_connection(&control).is_none(), "128 wait, one is served (measured)");
    wait_for("it is wedged", || matches!(card.state(), Ok(MpsState::Wedged { .. })));
    drop(flood);
    wait_for("it answers", || matches!(card.state(), Ok(MpsState::Running { .. })));
}

/// Such a daemon looks the same as one that waits for another connection.
pub(crate) fn a_stopped_server_is_named_as_what_a_daemon_may_wait_for(bench: &Bench) {
    need!(bench.with_server());
    let (card, daemon) = impatient(bench);
    let server = card.ensure_server(nix::unistd::geteuid().as_raw(), LIMIT).unwrap().pid;
    assert_eq!(card.wedge_cause(&daemon), WedgeCause::Unknown);
    let process = mpsgate_mps::Process::open(server).unwrap();
    process.signal(Signal::STOP).unwrap();
    wait_for("it is named", || card.wedge_cause(&daemon) == WedgeCause::ServerStopped { server });
    process.signal(Signal::CONT).unwrap();
    wait_for("it goes on", || card.wedge_cause(&daemon) == WedgeCause::Unknown);
}

pub(crate) fn a_directory_whose_mode_was_changed_has_it_again(bench: &Bench) {
    let (card, _daemon) = impatient(bench);
    assert_eq!(card.dirs().repair().unwrap(), []);
    let clients = card.dirs().doors_dir(mpsgate_host::door_place::Kind::Process);
    fs::set_permissions(&clients, fs::Permissions::from_mode(0o700)).unwrap();
    let words: Vec<String> =
        card.dirs().repair().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(words, [format!("{} was of mode 0700", clients.display())]);
    assert_eq!(card.dirs().repair().unwrap(), [], "once is enough");
    card.channel().server_list().unwrap();
}

pub(crate) fn a_file_of_the_daemons_that_is_gone_is_named(bench: &Bench) {
    let (card, daemon) = impatient(bench);
    let (pipe, named) = (bench.pipe_of(&daemon), card.dirs().pipe_dir());
    for name in ["control", "control_privileged", "control_lock"] {
        let (path, away) = (pipe.join(name), pipe.join("away"));
        fs::rename(&path, &away).unwrap();
        for (found, plant) in [("missing", false), ("a symbolic link", true)] {
            if plant {
                symlink(&away, &path).unwrap();
            }
            let error = card.dirs().repair().unwrap_err();
            let is_named = matches!(&error, MpsError::Lost { path: lost, found: what }
                if *lost == named.join(name) && *what == found);
            assert!(is_named, "{name}: {error}");
        }
        fs::remove_file(&path).unwrap();
        fs::rename(away, path).unwrap();
        assert_eq!(card.dirs().repair().unwrap(), [], "{name}");
    }
    assert!(daemon.process.is_alive());
}

pub(crate) fn a_link_in_a_directorys_place_is_named_and_not_followed(bench: &Bench) {
    let (card, daemon) = impatient(bench);
    let base = card.dirs().pipe_dir().parent().unwrap().to_path_buf();
    for place in [
        base.parent().unwrap().to_path_buf(),
        base.clone(),
        base.join("pipe"),
        base.join("clients"),
        base.join("log"),
    ] {
        let away = bench.dir.path().join("away");
        fs::rename(&place, &away).unwrap();
        symlink(&away, &place).unwrap();
        for error in [card.dirs().repair().unwrap_err(), card.dirs().create().unwrap_err()] {
            let named = matches!(&error, MpsError::Planted { path, found: "a symbolic link" }
                if *path == place);
            assert!(named, "{}: {error}", place.display());
        }
        fs::remove_file(&place).unwrap();
        fs::rename(away, &place).unwrap();
    }
    assert_eq!(card.dirs().repair().unwrap(), []);
    card.channel().server_list().unwrap();
    assert!(daemon.process.is_alive());
}

/// A directory that root removes on the node is gone for the daemon, too: the kernel ends the
/// mount.
pub(crate) fn a_pipe_directory_that_root_removes_is_named_and_the_daemon_still_ended(
    bench: &Bench,
) {
    let (card, daemon) = impatient(bench);
    let pipe = card.dirs().pipe_dir();
    let lost = |why: &str| {
        for error in [card.channel().server_list().unwrap_err(), card.state().unwrap_err()] {
            let named = matches!(&error, MpsError::Lost { path, found }
                if *path == pipe && found.contains(why));
            assert!(named, "{error}");
        }
    };
    fs::remove_dir(&pipe).unwrap();
    lost("missing");
    card.dirs().create().unwrap();
    lost("the node's");
    assert!(daemon.process.is_alive());
    assert_eq!(card.stop(&bench.spawner(), Duration::ZERO).unwrap().daemon, StoppedBy::Terminate);
    assert!(bench.left().is_empty(), "{:?}", bench.left());
}

/// An older mpsgate's daemon has its files on the node, and no `daemon.lock`.
pub(crate) fn a_daemon_without_the_lock_is_left_alone_until_it_is_stopped(bench: &Bench) {
    let card = bench.card();
    card.dirs().create().unwrap();
    let mut old = bench.command(&card.dirs().pipe_dir());
    old.arg("-f").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let old = bench.keep(old).cast_signed();
    wait_for("it is found", || card.find_running().is_err());
    // It has its lock before it has its sockets.
    let mut files = listing(&card.dirs().pipe_dir());
    wait_for("it has made its files", || {
        std::thread::sleep(Duration::from_millis(200));
        let before = std::mem::replace(&mut files, listing(&card.dirs().pipe_dir()));
        files.contains_key("control") && files == before
    });
    let refused = card.ensure_running(&bench.spawner(), LIMIT).unwrap_err();
    let named = matches!(&refused, MpsError::Unlocked { card: 0, pid, .. } if *pid == old);
    assert!(named && refused.hint().unwrap().contains("mpsgate mps restart "), "{refused}");
    assert!(matches!(card.state(), Err(MpsError::Unlocked { .. })));
    assert!(files.contains_key("control") && listing(&card.dirs().pipe_dir()) == files);
    assert_eq!(card.stop(&bench.spawner(), Duration::ZERO).unwrap().daemon, StoppedBy::Terminate);
    assert!(mpsgate_mps::Process::open(old).is_none());
}

/// A lock that root has removed is no lock: its former holder looks like an older version's daemon,
/// and no other is started beside it.
pub(crate) fn a_daemon_whose_lock_was_taken_away_is_never_doubled(bench: &Bench) {
    let (card, daemon) = impatient(bench);
    let lock = card.dirs().pipe_dir().with_file_name("daemon.lock");
    fs::remove_file(&lock).unwrap();
    wait_for("it is found", || card.find_running().is_err());
    let refused = card.ensure_running(&bench.spawner(), LIMIT);
    let pid = daemon.process.pid();
    assert!(matches!(refused, Err(MpsError::Unlocked { pid: found, .. }) if found == pid));
    card.stop(&bench.spawner(), Duration::ZERO).unwrap();
    assert!(!daemon.process.is_alive());
}
