//! The program as `MpsInstance` handles it.

use std::fs;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use mpsgate_mps::{
    Capabilities, Channel, HoldSpawner, MpsDirectories, MpsError, MpsInstance, MpsState, Origin,
    Signal, Spawner, StoppedBy, UnitSpawner, WedgeCause,
};
use mpsgate_testing::can_be_leased;
use mpsgate_testing::programs::Holder;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::harness::{Bench, Kind, LIMIT, listing, need, on_a_gpu, root, script, uuid, wait_for};

fn mib(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap()
}

/// An idle connection to `control`.
pub(crate) fn idle_connection(control: &Path) -> OwnedFd {
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
            || target == card.dirs().pipe_dir().with_file_name("daemon.lock")
            || target == Path::new("/dev/null")
            || target.ends_with("nvidia-cuda-mps-server")
            // From 580 on it looks at the cards.
            || on_a_gpu() && target.to_string_lossy().starts_with("/dev/nvidia")
            || ["socket:", "pipe:", "anon_inode:"]
                .iter()
                .any(|kind| target.to_string_lossy().starts_with(kind));
        assert!(known, "inherited {}", target.display());
    }
    assert_eq!(listing(card.dirs().log_file().path().parent().unwrap())["control.log"], "-0640");
}

pub(crate) fn nobody_leases_its_programs_while_it_lives(bench: &Bench) {
    need!(bench.with_server());
    let server = bench.binary.with_file_name("nvidia-cuda-mps-server");
    wait_for("it can be leased", || can_be_leased(&server));
    let (card, _daemon) = bench.started();
    for program in [&bench.binary, &server] {
        assert!(!can_be_leased(program), "{}", program.display());
    }
    card.stop(&bench.spawner(), Duration::ZERO).unwrap();
    wait_for("it can be leased again", || can_be_leased(&server));
}

pub(crate) fn adopts_what_runs_and_stops_without_a_trace(bench: &Bench) {
    let (card, daemon) = bench.started();
    card.channel().set_default_limit(mib(7168)).unwrap();
    // Another mpsgated, which does not know the first.
    let again = bench.card();
    let (adopted, origin) = again.ensure_running(&bench.spawner(), LIMIT).unwrap();
    assert_eq!((origin, adopted.process.pid()), (Origin::Adopted, daemon.process.pid()));
    assert_eq!(adopted.process.start_ticks(), daemon.process.start_ticks());
    assert_eq!(again.channel().default_limit().unwrap().as_deref(), Some("7G"));
    assert_eq!(
        again.state().unwrap(),
        MpsState::Running { pid: daemon.process.pid(), servers: vec![] }
    );
    let report = again.stop(&bench.spawner(), Duration::from_secs(1)).unwrap();
    assert_eq!((report.daemon, report.servers_killed), (StoppedBy::Quit, vec![]));
    assert!(!daemon.process.is_alive());
    assert!(bench.left().is_empty(), "{:?}", bench.left());
    assert_eq!(again.state().unwrap(), MpsState::Dead { orphans: vec![] });
    assert_eq!(again.stop(&bench.spawner(), Duration::ZERO).unwrap().daemon, StoppedBy::NotRunning);
}

pub(crate) fn two_starters_make_one_daemon(bench: &Bench) {
    let spawner = bench.spawner();
    let start = || bench.card().ensure_running(&spawner, LIMIT).unwrap();
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
        // The directory as a crash leaves it.
        one.0.process.signal(Signal::KILL).unwrap();
        assert!(one.0.process.wait_gone(LIMIT));
    }
}

pub(crate) fn an_idle_connection_is_a_wedge_until_it_ends(bench: &Bench) {
    let (_, daemon) = bench.started();
    let card = bench.impatient_card();
    let control = bench.pipe_of(&daemon).join("control");
    let is_wedged = || matches!(card.channel().server_list(), Err(MpsError::Wedged { .. }));
    let held = idle_connection(&control);
    wait_for("the connection is served", is_wedged);
    let wedged = matches!(card.state(), Ok(MpsState::Wedged { cause: WedgeCause::Unknown, .. }));
    assert!(wedged, "{:?}", card.state());
    // A second daemon is never started beside a wedged one.
    let doubled = card.ensure_running(&bench.spawner(), LIMIT);
    assert!(matches!(doubled, Err(MpsError::Wedged { .. })), "{doubled:?}");
    drop(held);
    wait_for("it answers again", || matches!(card.state(), Ok(MpsState::Running { .. })));
    let _held = idle_connection(&control);
    wait_for("wedged again", is_wedged);
    assert_eq!(card.stop(&bench.spawner(), Duration::ZERO).unwrap().daemon, StoppedBy::Terminate);
    assert!(bench.left().is_empty(), "{:?}", bench.left());
}

pub(crate) fn a_stopped_daemon_is_wedged_and_still_ended(bench: &Bench) {
    let (_, daemon) = bench.started();
    let card = bench.impatient_card();
    daemon.process.signal(Signal::STOP).unwrap();
    let pid = daemon.process.pid();
    wait_for("it stops", || {
        card.state().unwrap() == MpsState::Wedged { pid, cause: WedgeCause::Stopped }
    });
    assert_eq!(card.stop(&bench.spawner(), Duration::ZERO).unwrap().daemon, StoppedBy::Kill);
    assert!(bench.left().is_empty(), "{:?}", bench.left());
}

/// The daemon makes files that every user may write, in a directory that no user reaches.
pub(crate) fn its_files_are_out_of_every_users_reach(bench: &Bench) {
    need!(root());
    let (card, daemon) = bench.started();
    let (pipe, there) = (card.dirs().pipe_dir(), bench.pipe_of(&daemon));
    assert_eq!(listing(&there)["control"], "s0666");
    assert_eq!(fs::metadata(&there).unwrap().mode() & 0o7777, 0o711);
    let found = fs::symlink_metadata(&pipe).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o700));
    assert!(listing(&pipe).is_empty());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(pipe.to_str().unwrap()), "{mounts}");
    for place in [pipe.join("."), there.join("control")] {
        let mut look = Process::new("setpriv");
        look.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "ls"]).arg(&place);
        let output = look.env("LC_ALL", "C").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("Permission denied"), "{}: {text}", place.display());
    }
    let lock = pipe.with_file_name("daemon.lock");
    assert_eq!(fs::symlink_metadata(lock).unwrap().mode() & 0o7777, 0o600);
}

/// A holder that dies ends nothing else, and the next one serves the same cards.
pub(crate) fn a_daemon_outlives_its_holder_and_is_adopted_with_the_next(bench: &Bench) {
    need!(root());
    let (_, daemon) = bench.started();
    let holder = bench.holder().take().unwrap();
    let pid = nix::unistd::Pid::from_raw(holder.pid().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    drop(holder);
    assert!(daemon.process.is_alive());
    let (card, next) = (bench.card(), bench.spawner());
    let (adopted, origin) = card.ensure_running(&next, LIMIT).unwrap();
    assert_eq!((origin, adopted.process.pid()), (Origin::Adopted, daemon.process.pid()));
    assert!(card.ensure_gate(&next).unwrap());
    wait_for("the gate serves the card", || card.gate().unwrap().is_some());
    assert_eq!(card.stop(&next, Duration::from_secs(1)).unwrap().daemon, StoppedBy::Quit);
    assert!(card.gate().unwrap().is_none());
    assert!(bench.left().is_empty(), "{:?}", bench.left());
}

pub(crate) fn a_strangers_lock_is_named(bench: &Bench) {
    let (card, daemon) = bench.started();
    // To a card that expects another program, this daemon is a stranger.
    let other = MpsInstance::new(0, card.uuid(), "/bin/sh", bench.dirs(0));
    for error in [
        other.find_running().unwrap_err(),
        other.ensure_running(&bench.spawner(), LIMIT).unwrap_err(),
        other.stop(&bench.spawner(), Duration::ZERO).unwrap_err(),
    ] {
        let named = matches!(&error, MpsError::Stranger { pid, why, .. }
            if *pid == daemon.process.pid() && why.contains("not /bin/sh"));
        assert!(named, "{error}");
    }
    assert!(daemon.process.is_alive());
}

pub(crate) fn many_threads_share_the_channel(bench: &Bench) {
    let (card, _daemon) = bench.started();
    // A second channel takes the place of a second process: only the file lock is between them.
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
    let (card, _daemon) = bench.started();
    let absent = Channel::new(Path::new("/nonexistent/control"), card.dirs());
    assert!(matches!(absent.server_list(), Err(MpsError::Run { .. })));
}

pub(crate) fn capabilities_are_probed_without_a_trace(bench: &Bench) {
    let scratch = bench.dir.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let expected =
        Capabilities { multiuser: bench.is_multiuser(), server_status: bench.version > 535 };
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

/// Cards start at the same time, and the directory of card 1 is called 1 like the first process of
/// a pid namespace: neither may answer for the probed program.
pub(crate) fn probes_at_once_do_not_answer_for_each_other(bench: &Bench) {
    let scratch = bench.dir.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let (_, daemon) = bench.started();
    let card = bench.card();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let found = Capabilities::probe(&bench.binary, &scratch).unwrap();
                assert_eq!(found.multiuser, bench.is_multiuser());
            });
        }
    });
    assert!(card.channel().server_list().unwrap().is_empty() && daemon.process.is_alive());
    assert!(listing(&scratch).is_empty());
}

/// The real program has no server program here; the fake's has orders to die. Repeated, because the
/// real one closes the front-end's connection now and then.
pub(crate) fn a_server_that_dies_is_an_error(bench: &Bench) {
    if bench.kind == Kind::Real && on_a_gpu() {
        return; // its server does not die
    }
    let (card, _daemon) = bench.started();
    fs::write(card.dirs().log_dir().join("fake-server-dies"), "").unwrap();
    let own = nix::unistd::geteuid().as_raw();
    for _ in 0..50 {
        let error = card.ensure_server(own, LIMIT).unwrap_err();
        let dead = matches!(&error, MpsError::ServerDied { tail, .. } if tail.contains("exited with status 1"));
        assert!(dead, "{error}");
    }
    assert!(card.channel().server_list().unwrap().is_empty());
}

/// A card with another control program, and a holder that starts it.
struct Other {
    card: MpsInstance,
    spawner: HoldSpawner,
    _holder: Holder,
    _dir: tempfile::TempDir,
}

impl Other {
    fn new(program: impl FnOnce(&Path) -> PathBuf) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (program, hold) = (program(dir.path()), dir.path().join("hold"));
        let mps = dir.path().join("mps");
        let holder = Holder::start(&hold, &mps, &program, None);
        let card = MpsInstance::new(0, "GPU-x", program, MpsDirectories::new(&mps, 0).unwrap());
        Self {
            card,
            spawner: HoldSpawner::new(hold, mps.join("gates")),
            _holder: holder,
            _dir: dir,
        }
    }

    fn scripted(body: &str) -> Self {
        Self::new(|dir| scripted(dir, body))
    }

    /// Why it does not start, and the end of its log. The lock is free afterwards.
    fn fails(&self, limit: Duration) -> (String, String) {
        let error = self.card.ensure_running(&self.spawner, limit).unwrap_err();
        let MpsError::StartFailed { reason, tail, .. } = error else { panic!("{error}") };
        assert!(self.card.find_running().unwrap().is_none());
        (reason, tail)
    }
}

fn scripted(dir: &Path, body: &str) -> PathBuf {
    let program = dir.join("control");
    script(&program, body);
    program
}

#[test]
fn a_start_that_ends_at_once_shows_the_end_of_its_log() {
    need!(root());
    for status in [0, 1] {
        let other = Other::scripted(&format!("echo boom; exit {status}"));
        let reason = other.fails(LIMIT);
        assert_eq!(reason, ("it ended at once".to_owned(), "boom".to_owned()));
    }
}

/// The request names the holder's own control program; the launcher finds none.
#[test]
fn a_program_that_cannot_be_executed_is_an_error_of_the_start() {
    need!(root());
    let other = Other::new(|_| "/nonexistent".into());
    let (reason, tail) = other.fails(LIMIT);
    assert_eq!(reason, "it ended at once");
    assert!(tail.contains("cannot run /nonexistent"), "{tail}");
}

#[test]
fn a_start_that_never_answers_is_ended() {
    need!(root());
    let other = Other::scripted("echo $$; exec sleep 1000");
    let (reason, tail) = other.fails(Duration::from_secs(2));
    assert!(reason.contains("does not answer"), "{reason}");
    assert!(mpsgate_mps::Process::open(tail.trim().parse().unwrap()).is_none(), "{tail}");
}

/// A program in the background has no lock and is no control daemon.
#[test]
fn a_program_that_leaves_its_place_has_not_started() {
    need!(root());
    let other = Other::scripted("sleep 1000 & echo $!");
    let (reason, tail) = other.fails(LIMIT);
    assert_eq!(reason, "it ended at once");
    assert!(mpsgate_mps::Process::open(tail.trim().parse().unwrap()).is_none(), "{tail}");
}

/// `systemctl` is a script here; units run for real on machines with systemd.
#[test]
fn a_unit_is_started_with_its_environment_and_forgotten_after_the_stop() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = MpsDirectories::new(&dir.path().join("mps"), 0).unwrap();
    let card = MpsInstance::new(0, "GPU-x", scripted(dir.path(), "exit 1"), dirs);
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
