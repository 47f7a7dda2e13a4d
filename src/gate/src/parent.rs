//! The parent of every card's gate, where no systemd starts them: as a container of its own, whose
//! first process it is. mpsgated says by files which cards' gates are to run. It reads nothing of a
//! container's, and its children have no way back to it.

use std::collections::BTreeMap;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use mpsgate_config::paths::GATE_ORDERS;
use mpsgate_host::file;
use mpsgate_model::Backoff;
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::process::{Pid, Signal as ToSend, kill_process};

use crate::error::GateError;
use crate::signal_wait::receive;

/// Until a gate that has ended is started again, at first as its unit has it.
const REST: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// How often its orders are looked at, whatever the kernel has reported.
const LOOK: Duration = Duration::from_secs(5);
/// What gates get to serve clients that wait, and a little more. A pod's grace is longer.
const END: Duration = Duration::from_secs(12);

/// Starts `program`, which is this one, for each card that mpsgated asks for, and starts it again
/// when it ends, until SIGTERM or SIGINT. The calling thread must be the process's only one.
///
/// # Errors
/// When it cannot begin, or cannot wait any more.
pub fn start_all(program: &Path, mps: &Path) -> Result<(), GateError> {
    let signals = receive(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD])?;
    let mut orders = Orders::open(mps)?;
    let mut parent = Parent { program, mps, gates: BTreeMap::new() };
    log::info!(orders:% = orders.path.display(); "starts the gates of all GPUs");
    loop {
        parent.reap();
        parent.start(&orders.read()?, Instant::now())?;
        let now = Instant::now();
        let rests = parent.gates.values().filter_map(|gate| gate.rests_until(now));
        let left = rests.min().map_or(LOOK, |until| LOOK.min(until.duration_since(now)));
        wait(&[&signals.as_fd(), &orders.watch.as_fd()], left)?;
        let mut is_ended = false;
        while let Ok(Some(info)) = signals.read_signal() {
            is_ended |= i32::try_from(info.ssi_signo).is_ok_and(|number| number != libc::SIGCHLD);
        }
        if is_ended {
            return parent.end(&signals);
        }
    }
}

fn wait(fds: &[&std::os::fd::BorrowedFd<'_>], limit: Duration) -> Result<(), GateError> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
    // Rounded down it would turn without sleeping.
    let limit = Timespec::try_from(limit + Duration::from_millis(1)).ok();
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(GateError::system("wait for events")(errno)),
    }
}

/// Which cards' gates are to run.
struct Orders {
    path: PathBuf,
    watch: OwnedFd,
}

impl Orders {
    /// mpsgated and the supervisor make these directories as well; whoever comes first does.
    fn open(mps: &Path) -> Result<Self, GateError> {
        let path = mps.join(GATE_ORDERS);
        for (path, mode) in [(mps, 0o711), (path.as_path(), 0o700)] {
            file::make_directory(path, mode).map_err(GateError::fs("make", path))?;
        }
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(GateError::system("watch files"))?;
        Ok(Self { path, watch })
    }

    /// The cards; what happens from now on can be waited for.
    fn read(&mut self) -> Result<Vec<u32>, GateError> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.watch, &mut buffer);
        while reader.next().is_ok() {}
        // The same again is nothing new to the kernel; one that was made anew is.
        let wanted = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        let watched = inotify::add_watch(&self.watch, &self.path, wanted | WatchFlags::ONLYDIR);
        match watched {
            Ok(_) => {}
            Err(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
            Err(errno) => return Err(GateError::fs("watch", &self.path)(errno)),
        }
        let entries = fs::read_dir(&self.path).map_err(GateError::fs("list", &self.path))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter_map(|name| name.parse().ok()).collect())
    }
}

struct Parent<'a> {
    program: &'a Path,
    mps: &'a Path,
    gates: BTreeMap<u32, Gate>,
}

struct Gate {
    child: Option<Child>,
    started: Instant,
    /// After its next end.
    rest: Backoff,
    until: Instant,
}

impl Gate {
    fn rests_until(&self, now: Instant) -> Option<Instant> {
        (self.child.is_none() && self.until > now).then_some(self.until)
    }
}

impl Parent<'_> {
    fn start(&mut self, cards: &[u32], now: Instant) -> Result<(), GateError> {
        // Whose order is gone is ended by mpsgated.
        self.gates.retain(|card, gate| gate.child.is_some() || cards.contains(card));
        for card in cards {
            let gate = self.gates.entry(*card).or_insert_with(|| Gate {
                child: None,
                started: now,
                rest: REST,
                until: now,
            });
            if gate.child.is_some() || gate.until > now {
                continue;
            }
            let started = Command::new(self.program)
                .args(["--card", &card.to_string(), "--mps"])
                .arg(self.mps)
                .env_clear()
                .current_dir("/")
                .stdin(Stdio::null())
                .spawn();
            let program = || self.program.to_owned();
            let child =
                started.map_err(|source| GateError::Start { program: program(), source })?;
            log::info!(card, pid = child.id(); "gate started");
            gate.child = Some(child);
            gate.started = now;
        }
        Ok(())
    }

    fn reap(&mut self) {
        for (card, gate) in &mut self.gates {
            let Some(Ok(Some(status))) = gate.child.as_mut().map(Child::try_wait) else { continue };
            log::warn!(card, how:% = how(status); "gate ended");
            gate.child = None;
            let now = Instant::now();
            gate.until = now + gate.rest.pause_after(now.duration_since(gate.started));
        }
    }

    /// Their sockets are kept: the next one goes on where these end.
    fn end(mut self, signals: &SignalFd) -> Result<(), GateError> {
        self.signal(ToSend::TERM);
        let until = Instant::now() + END;
        loop {
            self.reap();
            let left = until.saturating_duration_since(Instant::now());
            if self.gates.values().all(|gate| gate.child.is_none()) {
                break;
            }
            if left.is_zero() {
                self.signal(ToSend::KILL);
                break;
            }
            wait(&[&signals.as_fd()], left)?;
            while let Ok(Some(_)) = signals.read_signal() {}
        }
        log::info!("ends");
        Ok(())
    }

    fn signal(&self, signal: ToSend) {
        // A child that was not waited for has its pid still.
        for child in self.gates.values().filter_map(|gate| gate.child.as_ref()) {
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, signal);
            }
        }
    }
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "in an unknown way".to_owned(),
    }
}
