//! mpsgated under a supervisor, as systemd is one: whatever ends it, it is started again.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mpsgate_api::{Call, CardState, Client, Reply, Status};
use mpsgate_config::paths;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Failure;
use crate::node::wait_for;

/// What systemd waits before it starts a unit again, unless the unit says otherwise
/// (systemd.service(5), RestartSec=).
const RESTART_PAUSE: Duration = Duration::from_millis(100);
const PROGRAM: &str = "/usr/bin/mpsgated";
/// For an answer to what this program itself asks. What containers are told in time is decided by
/// what becomes of them.
const PATIENCE: Duration = Duration::from_secs(20);

struct Shared {
    pid: AtomicU32,
    starts: AtomicU32,
    stopping: AtomicBool,
    odd_ends: Mutex<Vec<String>>,
    log: PathBuf,
}

/// mpsgated and who starts it again.
pub(crate) struct Daemon {
    shared: Arc<Shared>,
    supervisor: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts it, until its cards are prepared.
    pub(crate) fn start(log: &Path) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            pid: AtomicU32::new(0),
            starts: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
            odd_ends: Mutex::default(),
            log: log.to_owned(),
        });
        let its = Arc::clone(&shared);
        let daemon = Self { shared, supervisor: Some(std::thread::spawn(move || supervise(&its))) };
        daemon.wait_settled()?;
        Ok(daemon)
    }

    /// Its pid; 0 while it is away.
    pub(crate) fn pid(&self) -> u32 {
        self.shared.pid.load(Ordering::SeqCst)
    }

    pub(crate) fn starts(&self) -> u32 {
        self.shared.starts.load(Ordering::SeqCst)
    }

    /// Sends a signal to the one that runs now.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Failure> {
        wait_for("mpsgated to run", || Ok(self.pid() != 0))?;
        kill(Pid::from_raw(self.pid().try_into()?), signal)?;
        Ok(())
    }

    /// Waits until the `starts`th one answers and has prepared its cards.
    pub(crate) fn wait_started(&self, starts: u32) -> Result<(), Failure> {
        wait_for("mpsgated to be started again", || Ok(self.starts() >= starts))?;
        self.wait_settled()
    }

    /// Waits until it answers, and every card is ready or has a reason not to be.
    pub(crate) fn wait_settled(&self) -> Result<(), Failure> {
        wait_for("mpsgated to have prepared its cards", || {
            let Ok(status) = status() else { return Ok(false) };
            let settled = status.cards.iter().all(|card| card.state != CardState::Starting);
            Ok(settled && !status.cards.is_empty())
        })
    }

    /// Ends that no signal of ours explains.
    pub(crate) fn odd_ends(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.odd_ends.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends it for good.
    pub(crate) fn stop(mut self) -> Result<(), Failure> {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.signal(Signal::SIGTERM)?;
        wait_for("mpsgated to end", || Ok(self.pid() == 0))?;
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.join().map_err(|_| "the supervisor panicked")?;
        }
        Ok(())
    }
}

fn supervise(shared: &Shared) {
    while !shared.stopping.load(Ordering::SeqCst) {
        match run_once(shared) {
            Ok(status) if was_signalled(status) || status.success() => {}
            Ok(status) => shared.odd(format!("mpsgated ended with {status}")),
            Err(error) => shared.odd(format!("mpsgated could not be run: {error}")),
        }
        std::thread::sleep(RESTART_PAUSE);
    }
}

fn run_once(shared: &Shared) -> std::io::Result<ExitStatus> {
    let log = OpenOptions::new().create(true).append(true).open(&shared.log)?;
    let before = usize::try_from(log.metadata()?.len()).map_err(std::io::Error::other)?;
    let mut child =
        Command::new(PROGRAM).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
    shared.pid.store(child.id(), Ordering::SeqCst);
    shared.starts.fetch_add(1, Ordering::SeqCst);
    let status = child.wait();
    shared.pid.store(0, Ordering::SeqCst);
    // What is shipped aborts at a panic; this build, which has the profile of tests, may live on.
    let said = std::fs::read(&shared.log)?;
    let of_this_instance = said.get(before..).unwrap_or_default();
    if let Some(line) =
        String::from_utf8_lossy(of_this_instance).lines().find(|l| l.contains("panicked at"))
    {
        shared.odd(format!("mpsgated has panicked: {line}"));
    }
    status
}

fn was_signalled(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(Signal::SIGKILL as i32)
}

impl Shared {
    fn odd(&self, what: String) {
        self.odd_ends.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }
}

/// What the daemon knows. One that is away, or silent on a busy machine, is asked again.
pub(crate) fn status() -> Result<Status, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let asked = Client::connect(Path::new(paths::SOCKET))
            .and_then(|client| client.call::<Status>(Call::Status, None, PATIENCE));
        match asked {
            Ok(Reply::Status(status)) => return Ok(*status),
            Ok(reply) => return Err(format!("not a status: {reply:?}").into()),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
