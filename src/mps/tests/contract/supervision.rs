//! The program as `MpsInstance` handles it.

use std::fs;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command as Process;
use std::time::Duration;

use mpsgate_mps::protocol::{Command, Percent};
use mpsgate_mps::{
    Capabilities, Channel, ClientLinks, ForkSpawner, MpsDirectories, MpsError, MpsInstance,
    MpsState, Origin, Signal, Spawner, StoppedBy, UnitSpawner, WedgeCause,
};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::harness::{Bench, Kind, LIMIT, listing, on_a_gpu, script, uuid, wait_for};

fn mib(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap()
}

/// A tenant's idle connection to `control`.
fn idle_connection(control: &Path) -> OwnedFd {
    let fd =
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    connect(fd.as_raw_fd(), &UnixAddr::new(control).unwrap()).unwrap();
    fd
}

pub(crate) fn limits_read_back(bench: &Bench) {
    let (card, _daemon) = bench.started();
    assert_eq!(card.channel().default_limit().unwrap(), None);
    for value in [1, 512, 1023, 1024, 1025, 7000, 7168, 141_000, 1_000_000] {
        card.channel().set_default_limit(mib(value)).unwrap();
    }
    assert_eq!(card.channel().default_limit().unwrap().as_deref(), Some("976G"));
    let missing = card.channel().set_server_limit(7, mib(1));
    assert!(matches!(missing, Err(MpsError::ServerNotFound { server: 7 })), "{missing:?}");
}

pub(crate) fn starts_detached_with_a_clean_environment(bench: &Bench) {
    let (card, daemon) = bench.started();
    let proc = format!("/proc/{}", daemon.process.pid());
    let stat = fs::read_to_string(format!("{proc}/stat")).unwrap();
    let fields: Vec<i64> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .skip(1)
        .take(3)
        .map(|field| field.parse().unwrap())
        .collect();
    assert_ne!(fields[0], i64::from(std::process::id()), "it is our child");
    let own = nix::unistd::getsid(None).unwrap().as_raw();
    assert_ne!(fields[2], i64::from(own), "it is in our session");
    let environ = fs::read_to_string(format!("{proc}/environ")).unwrap();
    let mut names: Vec<_> =
        environ.split_terminator('\0').map(|entry| entry.split_once('=').unwrap().0).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["CUDA_MPS_LOG_DIRECTORY", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES", "PATH"]
    );
    assert!(environ.contains(&format!("CUDA_VISIBLE_DEVICES={}\0", uuid())));
    let (_, hard) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let limits = fs::read_to_string(format!("{proc}/limits")).unwrap();
    let open_files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft: u64 = open_files.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(soft >= hard.min(16_384), "{open_files}");
    for fd in fs::read_dir(format!("{proc}/fd")).unwrap().flatten() {
        let Ok(target) = fs::read_link(fd.path()) else { continue };
        let known = target.starts_with(card.dirs().pipe_dir())
            || target == card.dirs().log_file().path()
            || target == Path::new("/dev/null")
            // From 580 on it looks at the cards.
            || on_a_gpu() && target.to_string_lossy().starts_with("/dev/nvidia")
            || ["socket:", "pipe:", "anon_inode:"]
                .iter()
                .any(|kind| target.to_string_lossy().starts_with(kind));
        assert!(known, "inherited {}", target.display());
    }
    assert_eq!(listing(card.dirs().log_file().path().parent().unwrap())["control.log"], "-0640");
}

pub(crate) fn adopts_what_runs_and_stops_without_a_trace(bench: &Bench) {
    let (card, daemon) = bench.started();
    card.channel().set_default_limit(mib(7168)).unwrap();
    // Another mpsgated, which knows nothing of the first.
    let again = bench.card();
    let (adopted, origin) = again.ensure_running(&ForkSpawner, LIMIT).unwrap();
    assert_eq!((origin, adopted.process.pid()), (Origin::Adopted, daemon.process.pid()));
    assert_eq!(adopted.process.start_ticks(), daemon.process.start_ticks());
    assert_eq!(again.channel().default_limit().unwrap().as_deref(), Some("7G"));
    assert_eq!(
        again.state().unwrap(),
        MpsState::Running { pid: daemon.process.pid(), servers: vec![] }
    );
    card.dirs().renew_links().unwrap();
    let report = again.stop(&ForkSpawner, Duration::from_secs(1)).unwrap();
    assert_eq!((report.daemon, report.servers_killed), (StoppedBy::Quit, vec![]));
    assert!(!daemon.process.is_alive());
    assert!(listing(&bench.dir.path().join("mps")).is_empty());
    assert_eq!(again.state().unwrap(), MpsState::Dead { orphans: vec![] });
    assert_eq!(again.stop(&ForkSpawner, Duration::ZERO).unwrap().daemon, StoppedBy::NotRunning);
}

pub(crate) fn two_starters_make_one_daemon(bench: &Bench) {
    let start = || bench.card().ensure_running(&ForkSpawner, LIMIT).unwrap();
    for _ in 0..10 {
        let (one, other) = std::thread::scope(|scope| {
            let (one, other) = (scope.spawn(start), scope.spawn(start));
            (one.join().unwrap(), other.join().unwrap())
        });
        assert_eq!(one.0.process.pid(), other.0.process.pid());
        let origins = [one.1, other.1];
        assert_eq!(
            origins.iter().filter(|origin| **origin == Origin::Started).count(),
            1,
            "{origins:?}"
        );
        // As a crash leaves the directory.
        one.0.process.signal(Signal::KILL).unwrap();
        assert!(one.0.process.wait_gone(LIMIT));
    }
}

pub(crate) fn an_idle_connection_is_a_wedge_with_a_name(bench: &Bench) {
    bench.started();
    let card = bench.impatient_card();
    card.dirs().renew_links().unwrap();
    // As from a container: in a network namespace of its own, where allowed.
    let control = card.dirs().client_dir().join("control");
    let tenant = std::thread::spawn(move || {
        if nix::unistd::geteuid().is_root() {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        }
        idle_connection(&control)
    });
    let held = tenant.join().unwrap();
    wait_for("the connection is served", || {
        matches!(card.channel().server_list(), Err(MpsError::Wedged { .. }))
    });
    let MpsState::Wedged { cause: WedgeCause::Held(connections), .. } = card.state().unwrap()
    else {
        panic!("not held by anybody: {:?}", card.state());
    };
    let makers: Vec<_> = connections.iter().map(|one| one.maker.map(|maker| maker.pid)).collect();
    assert_eq!(makers, [Some(std::process::id().cast_signed())]);
    // A wedged daemon is never doubled.
    let doubled = card.ensure_running(&ForkSpawner, LIMIT);
    assert!(matches!(doubled, Err(MpsError::Wedged { .. })), "{doubled:?}");
    drop(held);
    wait_for("it answers again", || matches!(card.state(), Ok(MpsState::Running { .. })));
    let _held = idle_connection(&card.dirs().client_dir().join("control"));
    wait_for("wedged again", || {
        matches!(card.channel().server_list(), Err(MpsError::Wedged { .. }))
    });
    assert_eq!(card.stop(&ForkSpawner, Duration::ZERO).unwrap().daemon, StoppedBy::Terminate);
    assert!(listing(&bench.dir.path().join("mps")).is_empty());
}

pub(crate) fn a_stopped_daemon_is_wedged_and_still_ended(bench: &Bench) {
    let (_, daemon) = bench.started();
    let card = bench.impatient_card();
    daemon.process.signal(Signal::STOP).unwrap();
    let pid = daemon.process.pid();
    wait_for("it stops", || {
        card.state().unwrap() == MpsState::Wedged { pid, cause: WedgeCause::Stopped }
    });
    assert_eq!(card.stop(&ForkSpawner, Duration::ZERO).unwrap().daemon, StoppedBy::Kill);
    assert!(listing(&bench.dir.path().join("mps")).is_empty());
}

pub(crate) fn a_forged_pid_file_misleads_nobody(bench: &Bench) {
    let mut sleep = Process::new("sleep");
    sleep.arg("1000");
    let victim = bench.keep(sleep);
    let card = bench.card();
    card.dirs().create().unwrap();
    let pid_file = card.dirs().pipe_dir().join("nvidia-cuda-mps-control.pid");
    fs::write(&pid_file, victim.to_string()).unwrap();
    let refused = card.find_running();
    let named = matches!(&refused, Err(MpsError::PidFileRefused { pid, why, .. })
        if *pid == Some(victim.cast_signed()) && why.contains("it runs "));
    assert!(named, "{refused:?}");
    assert_eq!(card.state().unwrap(), MpsState::Dead { orphans: vec![] });
    // It does not keep us from starting, nor from finding what we started.
    let (daemon, origin) = card.ensure_running(&ForkSpawner, LIMIT).unwrap();
    assert_eq!(origin, Origin::Started);
    fs::write(&pid_file, victim.to_string()).unwrap();
    assert_eq!(card.find_running().unwrap().unwrap().process.pid(), daemon.process.pid());
    assert_eq!(card.stop(&ForkSpawner, Duration::ZERO).unwrap().daemon, StoppedBy::Quit);
    assert!(fs::metadata(format!("/proc/{victim}")).is_ok(), "the forged pid was killed");
}

pub(crate) fn a_strangers_lock_is_named(bench: &Bench) {
    let (card, daemon) = bench.started();
    // To a card that expects another program, this daemon is a stranger.
    let other = MpsInstance::new(0, card.uuid(), "/bin/sh", bench.dirs(0));
    for error in [
        other.find_running().unwrap_err(),
        other.ensure_running(&ForkSpawner, LIMIT).unwrap_err(),
        other.stop(&ForkSpawner, Duration::ZERO).unwrap_err(),
    ] {
        let named = matches!(&error, MpsError::Stranger { pid, why, .. }
            if *pid == daemon.process.pid() && why.contains("not /bin/sh"));
        assert!(named, "{error}");
    }
    assert!(daemon.process.is_alive());
}

pub(crate) fn links_follow_a_restarted_daemon(bench: &Bench) {
    let (card, daemon) = bench.started();
    let client = Channel::as_client(card.binary(), card.dirs());
    assert!(!card.dirs().links_current().unwrap());
    assert!(matches!(client.server_list(), Err(MpsError::NotRunning { .. })));
    card.dirs().renew_links().unwrap();
    card.dirs().renew_links().unwrap();
    assert!(card.dirs().links_current().unwrap());
    assert_eq!(
        listing(&card.dirs().client_dir()).into_keys().collect::<Vec<_>>(),
        ["control", "log"]
    );
    assert_eq!(listing(card.dirs().client_dir().parent().unwrap())["client"], "d0755");
    client.server_list().unwrap();
    // Killed, as a crash would: the new one makes new sockets.
    daemon.process.signal(Signal::KILL).unwrap();
    assert!(daemon.process.wait_gone(LIMIT));
    let (_, origin) = card.ensure_running(&ForkSpawner, LIMIT).unwrap();
    assert_eq!(origin, Origin::Started);
    assert!(!card.dirs().links_current().unwrap());
    assert!(matches!(client.server_list(), Err(MpsError::NotRunning { .. })));
    card.dirs().renew_links().unwrap();
    client.server_list().unwrap();
    let protected =
        client.ask(&Command::SetDefaultActiveThreadPercentage(Percent::new(10).unwrap()));
    assert_eq!(
        matches!(protected, Err(MpsError::NotPermitted { .. })),
        bench.version > 535,
        "{protected:?}"
    );
    card.dirs().remove_links().unwrap();
    assert!(listing(&card.dirs().client_dir()).is_empty());
}

pub(crate) fn many_threads_share_the_channel(bench: &Bench) {
    let (card, _daemon) = bench.started();
    // A second channel stands for a second process: only the file lock is between them.
    let other = bench.card();
    std::thread::scope(|scope| {
        for card in [&card, &other, &card, &other] {
            scope.spawn(move || {
                for _ in 0..25 {
                    card.channel().server_list().unwrap();
                }
            });
        }
    });
}

pub(crate) fn a_missing_daemon_is_told_from_a_wedged_one(bench: &Bench) {
    let card = bench.card();
    assert!(matches!(card.channel().server_list(), Err(MpsError::NotRunning { .. })));
    card.dirs().create().unwrap();
    assert!(matches!(card.channel().server_list(), Err(MpsError::NotRunning { .. })));
    let absent = Channel::new(Path::new("/nonexistent/control"), card.dirs());
    assert!(matches!(absent.server_list(), Err(MpsError::Run { .. })));
}

pub(crate) fn capabilities_are_probed_without_a_trace(bench: &Bench) {
    let scratch = bench.dir.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let newer = bench.version > 535;
    let expected = Capabilities {
        multiuser: bench.is_multiuser(),
        settings_protected: newer,
        server_status: newer,
    };
    assert_eq!(Capabilities::probe(&bench.binary, &scratch).unwrap(), expected);
    assert!(listing(&scratch).is_empty());
    if bench.kind == Kind::Fake {
        fs::write(bench.binary.with_file_name("fake-mps-version"), "580").unwrap();
        assert!(Capabilities::probe(&bench.binary, &scratch).unwrap().multiuser);
        assert!(listing(&scratch).is_empty());
    }
    assert!(Capabilities::probe(Path::new("/bin/false"), &scratch).is_err());
    assert!(Capabilities::probe(Path::new("/nonexistent"), &scratch).is_err());
    assert!(listing(&scratch).is_empty());
}

/// Cards come up at the same time, and the directory of card 1 is called 1 like the first process
/// of a pid namespace: neither may answer for the program that is probed.
pub(crate) fn probes_at_once_do_not_answer_for_each_other(bench: &Bench) {
    let scratch = bench.dir.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let dirs = MpsDirectories::new(&scratch, std::process::id(), ClientLinks::default()).unwrap();
    let card = MpsInstance::new(0, "", bench.binary.clone(), dirs);
    card.ensure_running(&ForkSpawner, LIMIT).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let found = Capabilities::probe(&bench.binary, &scratch).unwrap();
                assert_eq!(found.multiuser, bench.is_multiuser());
            });
        }
    });
    assert!(card.channel().server_list().unwrap().is_empty());
    card.stop(&ForkSpawner, LIMIT).unwrap();
    assert!(listing(&scratch).is_empty());
}

/// The real program has no server program here; the fake's is told to die. Often, because the real
/// one hangs up on the front-end now and then.
pub(crate) fn a_server_that_dies_is_an_error(bench: &Bench) {
    if bench.kind == Kind::Real && on_a_gpu() {
        return; // its server does not die
    }
    let (card, _daemon) = bench.started();
    fs::write(card.dirs().log_dir().join("fake-server-dies"), "").unwrap();
    let own = nix::unistd::geteuid().as_raw();
    for _ in 0..50 {
        let error = card.ensure_server(own, LIMIT).unwrap_err();
        let told = matches!(&error, MpsError::ServerDied { tail, .. } if tail.contains("exited with status 1"));
        assert!(told, "{error}");
    }
    assert!(card.channel().server_list().unwrap().is_empty());
}

/// A card whose control program is a shell script.
fn scripted(dir: &Path, body: &str) -> MpsInstance {
    let program = dir.join("control");
    script(&program, body);
    let dirs = MpsDirectories::new(&dir.join("mps"), 0, ClientLinks::default()).unwrap();
    MpsInstance::new(0, "GPU-x", program, dirs)
}

#[test]
fn a_start_that_ends_at_once_shows_the_end_of_its_log() {
    for status in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        let card = scripted(dir.path(), &format!("echo boom; exit {status}"));
        let error = card.ensure_running(&ForkSpawner, LIMIT).unwrap_err();
        let told = matches!(&error, MpsError::StartFailed { reason, tail, .. }
            if reason == "it ended at once" && tail == "boom");
        assert!(told, "{error}");
    }
}

#[test]
fn a_program_that_cannot_be_executed_is_an_error_of_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = MpsDirectories::new(&dir.path().join("mps"), 0, ClientLinks::default()).unwrap();
    let card = MpsInstance::new(0, "GPU-x", "/nonexistent", dirs);
    let error = card.ensure_running(&ForkSpawner, LIMIT).unwrap_err();
    assert!(
        matches!(&error, MpsError::Run { program, .. } if program == Path::new("/nonexistent")),
        "{error}"
    );
}

#[test]
fn a_start_that_never_answers_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let pid_file = dir.path().join("pid");
    let card = scripted(dir.path(), &format!("echo $$ >{}; exec sleep 1000", pid_file.display()));
    let error = card.ensure_running(&ForkSpawner, Duration::from_secs(2)).unwrap_err();
    let told = matches!(&error, MpsError::StartFailed { reason, .. } if reason.contains("does not answer"));
    assert!(told, "{error}");
    let pid: i32 = fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
    assert!(mpsgate_mps::Process::open(pid).is_none());
}

/// `systemctl` itself is a script here; units run for real on machines with systemd.
#[test]
fn a_unit_is_started_with_its_environment_and_forgotten_after_the_stop() {
    let dir = tempfile::tempdir().unwrap();
    let card = scripted(dir.path(), "exit 1");
    let (systemctl, calls) = (dir.path().join("systemctl"), dir.path().join("calls"));
    script(&systemctl, &format!("echo \"$@\" >>{}; [ \"$1\" != is-active ]", calls.display()));
    let spawner = UnitSpawner::new(&systemctl, dir.path());
    card.dirs().create().unwrap();
    let started = spawner.start(&card).unwrap();
    let environment = fs::read_to_string(dir.path().join("mps-0.env")).unwrap();
    assert!(environment.contains("CUDA_VISIBLE_DEVICES=\"GPU-x\"\n"), "{environment}");
    assert!(environment.contains("MPSGATE_MPS_FLAGS=\"\"\n"), "{environment}");
    let program = format!("MPSGATE_MPS_CONTROL=\"{}\"\n", card.binary().display());
    assert!(environment.contains(&program), "{environment}");
    assert!(spawner.has_ended(&card, &started).unwrap());
    spawner.after_stop(&card).unwrap();
    assert!(!dir.path().join("mps-0.env").exists());
    let unit = "mpsgate-mps@0.service";
    let expected =
        format!("start {unit}\nis-active --quiet {unit}\nstop {unit}\nreset-failed {unit}\n");
    assert_eq!(fs::read_to_string(calls).unwrap(), expected);
    let absent = UnitSpawner::new("/nonexistent", dir.path());
    assert!(matches!(absent.start(&card), Err(MpsError::Run { .. })));
    assert!(!absent.is_available());
}
