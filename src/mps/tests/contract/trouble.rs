//! What an attack or an accident does to a card, and what can be seen and repaired of it.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use mpsgate_mps::{
    Connections, ControlDaemon, ForkSpawner, Glance, MpsError, MpsInstance, MpsState, Origin,
    Signal, WedgeCause,
};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::harness::{Bench, LIMIT, need, root, wait_for};

/// A connection that says nothing; `None` where the queue is full.
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

fn linked(bench: &Bench) -> (MpsInstance, ControlDaemon) {
    let (_, daemon) = bench.started();
    let card = bench.impatient_card();
    card.dirs().renew_links().unwrap();
    (card, daemon)
}

pub(crate) fn a_glance_tells_rest_work_and_stop_without_a_word(bench: &Bench) {
    let (card, daemon) = linked(bench);
    let heard = || card.dirs().log_file().since(0).unwrap().matches("Accepting connection").count();
    let before = heard();
    wait_for("it rests", || card.glance(&daemon) == Glance::AtRest);
    assert_eq!(heard(), before, "a glance is not heard");
    let held = idle_connection(&card.dirs().client_dir().join("control"));
    wait_for("it is busy", || card.glance(&daemon) == Glance::Busy);
    drop(held);
    wait_for("it rests again", || card.glance(&daemon) == Glance::AtRest);
    daemon.process.signal(Signal::STOP).unwrap();
    wait_for("it is stopped", || card.glance(&daemon) == Glance::Stopped);
    daemon.process.signal(Signal::KILL).unwrap();
    wait_for("it is gone", || card.glance(&daemon) == Glance::Gone);
}

fn makers(card: &MpsInstance, daemon: &ControlDaemon, known: &Connections) -> Vec<Option<i32>> {
    match card.wedge_cause(daemon, known) {
        WedgeCause::Held(held) => held.iter().map(|one| one.maker.map(|maker| maker.pid)).collect(),
        _ => Vec::new(),
    }
}

/// A process may connect, hand the connection to another one and end: its pid may then be
/// anybody's.
pub(crate) fn a_connection_whose_maker_has_ended_names_nobody(bench: &Bench) {
    need!(root());
    let (card, daemon) = linked(bench);
    let known = card.connections(&daemon);
    let script = "use Socket; socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0) or die; \
         connect($s, pack_sockaddr_un($ARGV[0])) or die; fork and exit; sleep 1000;";
    // The shell reaps the maker: one that was not reaped has not ended for the kernel.
    let mut shell = Process::new("sh");
    shell.args(["-c", "perl -e \"$1\" \"$2\"; sleep 1000", "sh", script]);
    shell.arg(card.dirs().client_dir().join("control"));
    shell.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    let group = nix::unistd::Pid::from_raw(bench.keep(shell).cast_signed());
    wait_for("it is held, and by nobody that lives", || makers(&card, &daemon, &known) == [None]);
    cut_all(&card, &daemon, &known);
    wait_for("it answers", || matches!(card.state(), Ok(MpsState::Running { .. })));
    nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL).unwrap();
}

/// The driver's own program is enough, and the daemon looks as if it rested.
pub(crate) fn a_front_end_that_stays_is_a_wedge_with_a_name(bench: &Bench) {
    need!(root());
    let (card, daemon) = linked(bench);
    let known = card.connections(&daemon);
    let mut stays = bench.command(&card.dirs().client_dir());
    let (input, kept) = std::io::pipe().unwrap();
    stays.stdin(Stdio::from(input)).stdout(Stdio::null()).stderr(Stdio::null());
    let front_end = bench.keep(stays).cast_signed();
    wait_for("it has connected", || card.connections(&daemon).has_more_than(&known));
    wait_for("nobody else is served", || matches!(card.state(), Ok(MpsState::Wedged { .. })));
    assert_eq!(makers(&card, &daemon, &known), [Some(front_end)]);
    drop(kept);
    wait_for("it answers", || matches!(card.state(), Ok(MpsState::Running { .. })));
}

pub(crate) fn a_flood_of_connections_is_a_wedge_with_a_name(bench: &Bench) {
    let (card, daemon) = linked(bench);
    let control = card.dirs().client_dir().join("control");
    let mut flood: Vec<OwnedFd> = (0..130).map_while(|_| idle_connection(&control)).collect();
    assert!(idle_connection(&control).is_none(), "128 wait, one is served (measured)");
    let own = std::process::id().cast_signed();
    wait_for("it is wedged by name", || {
        matches!(card.state(), Ok(MpsState::Wedged { cause: WedgeCause::Held(held), .. })
            if held.len() == 1 && held[0].maker.is_some_and(|maker| maker.pid == own))
    });
    // The first one's end brings the next one's turn.
    flood.remove(0);
    wait_for("the next one holds it", || {
        makers(&card, &daemon, &card.connections(&daemon)) == [Some(own)]
    });
    drop(flood);
    wait_for("it answers", || matches!(card.state(), Ok(MpsState::Running { .. })));
}

/// The daemon closes where nobody is there to take its greeting.
fn take_greeting(fd: &OwnedFd) {
    use nix::poll::{PollFd, PollFlags, poll};
    use std::os::fd::AsFd;
    poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], 10_000_u16).unwrap();
    let none = nix::sys::socket::MsgFlags::empty();
    assert_eq!(nix::sys::socket::recv(fd.as_raw_fd(), &mut [0; 64], none), Ok(9));
}

/// A client's first words, then one that no daemon knows.
fn say_unknown_word(control: &Path) -> OwnedFd {
    use nix::sys::socket::{ControlMessage, MsgFlags, UnixCredentials, sendmsg};
    let fd = idle_connection(control).unwrap();
    take_greeting(&fd);
    let who = UnixCredentials::new();
    let say = |bytes: &[u8], control: &[ControlMessage<'_>]| {
        let bytes = [std::io::IoSlice::new(bytes)];
        sendmsg::<UnixAddr>(fd.as_raw_fd(), &bytes, control, MsgFlags::empty(), None)
    };
    say(b"OUTBCRED\0", &[ControlMessage::ScmCredentials(&who)]).unwrap();
    say(&7_i32.to_ne_bytes(), &[]).unwrap();
    fd
}

pub(crate) fn a_word_that_it_does_not_know_costs_it_a_descriptor_for_ever(bench: &Bench) {
    need!(root());
    let (card, daemon) = linked(bench);
    let control = card.dirs().client_dir().join("control");
    let look = || card.descriptors(&daemon, &BTreeSet::new()).unwrap();
    // Its last front-end may have gone, and a busy daemon not have seen it.
    wait_for("nobody is connected", || look().connections.is_empty());
    let before = look();
    assert!(before.limit >= before.used, "{before:?}");
    let kept = say_unknown_word(&control);
    // What was said before may be taken this late by a busy double, and is over then.
    wait_for("it is there", || matches!(&look().connections[..], [one] if !one.over));
    let own = std::process::id().cast_signed();
    let [one] = &look().connections[..] else { panic!("{:?}", look()) };
    assert!(!one.over && one.network.is_some(), "{one:?}");
    assert_eq!(one.maker.map(|maker| maker.pid), Some(own));
    drop(kept);
    for _ in 0..9 {
        drop(say_unknown_word(&control));
    }
    wait_for("all are lost", || look().connections.iter().filter(|one| one.over).count() == 10);
    assert_eq!(look().used, before.used + 10);
    // Those that are known need no second look.
    let known: BTreeSet<u64> = look().connections.iter().map(|one| one.inode).collect();
    let again = card.descriptors(&daemon, &known).unwrap();
    assert!(again.connections.is_empty() && again.used == before.used + 10);
    card.channel().server_list().unwrap();
}

/// The neighbour: a connection that is held, or waits its turn, is no loss.
pub(crate) fn a_client_that_waits_is_not_over_and_has_a_maker(bench: &Bench) {
    need!(root());
    let (card, daemon) = linked(bench);
    let look = || card.descriptors(&daemon, &BTreeSet::new()).unwrap().connections;
    // Its last front-end may have gone, and a busy daemon not have seen it.
    wait_for("nobody is connected", || look().is_empty());
    let held = idle_connection(&card.dirs().client_dir().join("control")).unwrap();
    wait_for("it is there", || look().len() == 1);
    assert!(look().iter().all(|one| !one.over && one.maker.is_some()));
    drop(held);
    wait_for("the daemon closes it", || look().is_empty());
}

/// Puts a connection where no process has it open: into a socket's queue.
fn in_flight(connection: OwnedFd) -> (OwnedFd, OwnedFd) {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, socketpair};
    let (one, other) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC).unwrap();
    sendmsg::<UnixAddr>(
        one.as_raw_fd(),
        &[std::io::IoSlice::new(b"1")],
        &[ControlMessage::ScmRights(&[connection.as_raw_fd()])],
        MsgFlags::empty(),
        None,
    )
    .unwrap();
    (one, other)
}

fn cut_all(card: &MpsInstance, daemon: &ControlDaemon, known: &Connections) {
    let WedgeCause::Held(held) = card.wedge_cause(daemon, known) else { panic!("nothing holds") };
    assert!(held.iter().all(|one| card.cut(daemon, one.inode)));
}

pub(crate) fn a_connection_that_nobody_has_open_is_cut_at_the_daemons_end(bench: &Bench) {
    need!(root());
    let (card, daemon) = linked(bench);
    let known = card.connections(&daemon);
    let _queue = in_flight(idle_connection(&card.dirs().client_dir().join("control")).unwrap());
    let own = std::process::id().cast_signed();
    wait_for("it is held by its maker", || makers(&card, &daemon, &known) == [Some(own)]);
    cut_all(&card, &daemon, &known);
    wait_for("it answers", || matches!(card.state(), Ok(MpsState::Running { .. })));
}

/// The real one rests beside it, and turns all others away.
pub(crate) fn a_front_end_that_nobody_has_open_is_cut_too(bench: &Bench) {
    need!(root());
    let (card, daemon) = linked(bench);
    let known = card.connections(&daemon);
    let connection = idle_connection(&card.dirs().client_dir().join("control")).unwrap();
    let say = |bytes: &[u8], control: &[nix::sys::socket::ControlMessage<'_>]| {
        nix::sys::socket::sendmsg::<UnixAddr>(
            connection.as_raw_fd(),
            &[std::io::IoSlice::new(bytes)],
            control,
            nix::sys::socket::MsgFlags::empty(),
            None,
        )
        .unwrap()
    };
    take_greeting(&connection);
    let who = nix::sys::socket::UnixCredentials::new();
    say(b"OUTBCRED\0", &[nix::sys::socket::ControlMessage::ScmCredentials(&who)]);
    // What every front-end says first.
    say(&4_i32.to_ne_bytes(), &[]);
    let _queue = in_flight(connection);
    wait_for("nobody else is served", || matches!(card.state(), Ok(MpsState::Wedged { .. })));
    cut_all(&card, &daemon, &known);
    wait_for("it answers", || matches!(card.state(), Ok(MpsState::Running { .. })));
}

pub(crate) fn what_containers_see_is_made_again_whatever_took_its_place(bench: &Bench) {
    let (card, _daemon) = linked(bench);
    assert_eq!(card.dirs().repair().unwrap(), []);
    let (dir, elsewhere) = (card.dirs().client_dir(), bench.dir.path().join("elsewhere"));
    let control = dir.join("control");
    let own = card.dirs().pipe_dir().join("control").metadata().unwrap().ino();
    fs::write(&elsewhere, "mine").unwrap();
    type Attack<'a> = &'a dyn Fn();
    let attacks: [(&str, Attack<'_>); 7] = [
        ("missing", &|| {}),
        ("a regular file", &|| fs::write(&control, "x").unwrap()),
        ("a symbolic link", &|| symlink(&elsewhere, &control).unwrap()),
        ("a directory", &|| fs::create_dir(&control).unwrap()),
        ("a socket that leads elsewhere", &|| {
            std::os::unix::net::UnixListener::bind(&control).unwrap();
        }),
        ("a FIFO", &|| nix::unistd::mkfifo(&control, nix::sys::stat::Mode::S_IRWXU).unwrap()),
        ("not mpsgate's", &|| {
            fs::hard_link(card.dirs().pipe_dir().join("control"), &control).unwrap();
            symlink(&elsewhere, dir.join("mine")).unwrap();
        }),
    ];
    for (found, attack) in attacks {
        fs::remove_file(&control).unwrap();
        attack();
        let repairs = card.dirs().repair().unwrap();
        assert_eq!(repairs.len(), 1, "{found}: {repairs:?}");
        assert_eq!(repairs[0].found, found);
        assert_eq!(control.symlink_metadata().unwrap().ino(), own, "{found}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "{found}");
        assert_eq!(card.dirs().repair().unwrap(), [], "{found}: once is enough");
    }
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "mine");
    // What is not ours to throw away is named and left.
    fs::remove_file(&control).unwrap();
    fs::create_dir_all(control.join("full")).unwrap();
    let error = card.dirs().repair().unwrap_err();
    let named =
        matches!(&error, MpsError::InTheWay { path, found: "a directory" } if *path == control);
    assert!(named, "{error}");
    fs::remove_dir_all(&control).unwrap();
    // A directory whose mode keeps clients out.
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    let words: Vec<String> =
        card.dirs().repair().unwrap().iter().map(ToString::to_string).collect();
    let base = dir.parent().unwrap().display();
    assert_eq!(
        words,
        [format!("{base}/client was of mode 0700"), format!("{base}/client/control was missing")]
    );
    card.channel().server_list().unwrap();
}

pub(crate) fn a_file_of_the_daemons_that_is_gone_is_named(bench: &Bench) {
    let (card, daemon) = linked(bench);
    let pipe = card.dirs().pipe_dir();
    for name in ["control", "control_privileged", "control_lock", "log"] {
        let (path, away) = (pipe.join(name), bench.dir.path().join("away"));
        fs::rename(&path, &away).unwrap();
        for (found, plant) in [("missing", false), ("a symbolic link", true)] {
            if plant {
                symlink(&away, &path).unwrap();
            }
            let error = card.dirs().repair().unwrap_err();
            let named = matches!(&error, MpsError::Lost { path: lost, found: what }
                if *lost == path && *what == found);
            assert!(named, "{name}: {error}");
        }
        fs::remove_file(&path).unwrap();
        fs::rename(away, path).unwrap();
        assert_eq!(card.dirs().repair().unwrap(), [], "{name}");
    }
    assert!(daemon.process.is_alive());
}

pub(crate) fn a_link_in_a_directorys_place_is_named_and_not_followed(bench: &Bench) {
    let (card, daemon) = linked(bench);
    let base = card.dirs().client_dir().parent().unwrap().to_path_buf();
    for place in [
        base.parent().unwrap().to_path_buf(),
        base.clone(),
        base.join("pipe"),
        base.join("client"),
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

/// Where only the lock file decided, a second daemon would be started beside the one that serves.
pub(crate) fn a_daemon_whose_lock_was_taken_away_is_found_and_never_doubled(bench: &Bench) {
    let (card, daemon) = linked(bench);
    let lock = card.dirs().pipe_dir().join("control_lock");
    let away = bench.dir.path().join("away");
    type Attack<'a> = &'a dyn Fn();
    let attacks: [Attack<'_>; 3] =
        [&|| fs::rename(&lock, &away).unwrap(), &|| fs::write(&lock, "").unwrap(), &|| {
            fs::remove_file(&lock).unwrap()
        }];
    for attack in attacks {
        attack();
        wait_for("it is found", || {
            let found = card.find_running().ok().flatten();
            found.is_some_and(|it| it.process.pid() == daemon.process.pid())
        });
        let (adopted, origin) = card.ensure_running(&ForkSpawner, LIMIT).unwrap();
        assert_eq!((origin, adopted.process.pid()), (Origin::Adopted, daemon.process.pid()));
    }
    let report = card.stop(&ForkSpawner, Duration::ZERO).unwrap();
    assert!(report.servers_killed.is_empty() && !daemon.process.is_alive(), "{report:?}");
}
