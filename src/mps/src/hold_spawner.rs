//! Control daemons that the holder keeps running, [`crate::supervisor`]: for pods, which end all of
//! their processes, and for hosts on which no systemd keeps a unit for each card.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mpsgate_host::fd_store;
use mpsgate_host::file::{self, Durability, New};

use crate::error::MpsError;
use crate::instance::MpsInstance;
use crate::mps_process::{POLL, Process};
use crate::spawner::{Spawner, Started, UnitSpawner};
use crate::supervisor::{Answer, HoldError, Request, Start, ask, open_log};

/// How long a new holder may take until it answers.
const STARTS: Duration = Duration::from_secs(10);
/// A longer log is emptied when the next holder starts.
const LONGEST_LOG: u64 = 1 << 20;

/// A spawner that asks the holder in this directory.
#[derive(Debug)]
pub struct HoldSpawner {
    dir: PathBuf,
    orders: PathBuf,
    own: Option<OwnHolder>,
    /// When the holder's presence was last checked.
    asked: Mutex<Option<Instant>>,
}

/// How a holder is started if none answers: as the unit `mpsgate-hold.service` where systemd runs,
/// else as a process that outlives mpsgated. It is never mpsgated's child below systemd: the unit's
/// filter of namespaces would forbid the launcher to leave the node's.
#[derive(Debug)]
pub struct OwnHolder {
    /// `mpsgated`.
    pub program: PathBuf,
    /// The control program.
    pub control: PathBuf,
    /// The gates' program.
    pub gate: PathBuf,
    /// The cards' directories.
    pub mps: PathBuf,
    /// Starts the unit; `None` where no systemd runs.
    pub unit: Option<UnitSpawner>,
    /// The holder that this process started, to be waited for, so that it does not stay a zombie.
    pub started: Mutex<Option<Child>>,
}

impl HoldSpawner {
    /// `orders` is the directory in which the gates' parent finds its orders. Touches nothing.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, orders: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), orders: orders.into(), own: None, asked: Mutex::new(None) }
    }

    /// Starts a holder itself if none answers.
    #[must_use]
    pub fn with_own(mut self, own: OwnHolder) -> Self {
        self.own = Some(own);
        self
    }

    /// Asks the holder; starts one, once, if none answers and this spawner may.
    fn ask(&self, request: &Request) -> Result<Answer, MpsError> {
        let answer = ask(&self.dir, request);
        let (Err(HoldError::Away { .. }), Some(own)) = (&answer, &self.own) else {
            return answer.map_err(MpsError::Hold);
        };
        own.start(&self.dir)?;
        let deadline = Instant::now() + STARTS;
        loop {
            match ask(&self.dir, request) {
                Err(HoldError::Away { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(POLL);
                }
                other => return other.map_err(MpsError::Hold),
            }
        }
    }

    fn order(&self, mps: &MpsInstance) -> PathBuf {
        self.orders.join(mps.card().to_string())
    }

    /// Whether a usable holder answers.
    #[must_use]
    pub fn is_available(&self) -> bool {
        match ask(&self.dir, &Request::Check) {
            Ok(Answer::Ready(_)) => true,
            Ok(_) | Err(HoldError::Away { .. }) => false,
            Err(error) => {
                log::warn!(error:% = error; "the holder of control daemons is not used");
                false
            }
        }
    }
}

impl Spawner for HoldSpawner {
    /// Waits for a holder that has ended and starts another within 10 s: the gates' sockets are
    /// kept there while a gate is replaced, and a gate brings them within 5 s more.
    fn tend(&self) {
        let Some(own) = &self.own else { return };
        own.lock().take_if(|child| !matches!(child.try_wait(), Ok(None)));
        {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.is_some_and(|asked| asked.elapsed() < STARTS) {
                return;
            }
            *asked = Some(Instant::now());
        }
        // A holder that hangs is there: only a refusal of the kernel shows that there is none.
        let is_none = |source: &io::Error| {
            matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
        };
        if let Err(HoldError::Away { source, .. }) = ask(&self.dir, &Request::Check)
            && is_none(&source)
            && let Err(error) = own.start(&self.dir)
        {
            log::warn!(reason:% = error; "no holder of control daemons");
        }
    }

    fn start(&self, mps: &MpsInstance) -> Result<Started, MpsError> {
        let text = |value: std::ffi::OsString| {
            value.into_string().map_err(|value| MpsError::NotPlainPath { path: value.into() })
        };
        let variables = mps
            .environment()
            .into_iter()
            .map(|(name, value)| Ok((name.to_owned(), text(value)?)))
            .collect::<Result<_, MpsError>>()?;
        let request = Request::Start(Start {
            card: mps.card(),
            uuid: mps.uuid().to_owned(),
            program: mps.binary().to_path_buf(),
            log: mps.dirs().log_file().path().to_path_buf(),
            arguments: mps.arguments().iter().map(|word| (*word).to_owned()).collect(),
            variables,
        });
        match self.ask(&request)? {
            Answer::Started(pid) if pid > 0 => Ok(Started::Process(Process::open(pid))),
            other => Err(no_answer(&other)),
        }
    }

    /// In a pod the gates' parent is another container, and a file is its order.
    fn start_gate(&self, mps: &MpsInstance) -> Result<(), MpsError> {
        match self.ask(&Request::StartGate(mps.card()))? {
            Answer::Started(_) => return Ok(()),
            Answer::GatesByOrder => {}
            other => return Err(no_answer(&other)),
        }
        file::make_directory(&self.orders, 0o700)
            .map_err(|source| MpsError::fs("create directory", &self.orders, source))?;
        let order = self.order(mps);
        file::replace(&order, b"", &New::of(0o600, Durability::Atomic))
            .map_err(|source| MpsError::fs("write", order, source))
    }

    fn stop_gate(&self, mps: &MpsInstance) -> Result<(), MpsError> {
        let order = self.order(mps);
        match std::fs::remove_file(&order) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(MpsError::fs("remove", order, error));
            }
            _ => {}
        }
        let store = fd_store::socket(mps.dirs().root());
        let forget = fd_store::Request::Forget { card: mps.card() };
        let sent =
            fd_store::dial(&store).and_then(|socket| fd_store::send(socket.as_fd(), &forget, None));
        match sent {
            // Without a holder nothing is kept.
            Err(error) if !fd_store::is_away(&error) => Err(MpsError::fs("tell", store, error)),
            _ => Ok(()),
        }
    }
}

fn no_answer(answer: &Answer) -> MpsError {
    let why = format!("{answer:?} is no answer to a start");
    MpsError::Hold(HoldError::Message { why })
}

impl OwnHolder {
    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, dir: &Path) -> Result<(), MpsError> {
        // A mpsgated without the unit files is not in the unit either.
        if let Some(unit) = &self.unit
            && unit.has_holder()
        {
            return unit.start_holder(&self.control, &self.gate);
        }
        let failed = |source| MpsError::Run { program: self.program.clone(), source };
        let mut started = self.lock();
        if let Some(child) = started.as_mut()
            && child.try_wait().map_err(failed)?.is_none()
        {
            // It is starting, or hangs: the caller waits for its answer.
            return Ok(());
        }
        file::make_directory(dir, 0o700)
            .map_err(|source| MpsError::fs("create directory", dir, source))?;
        let path = dir.join("hold.log");
        let log = open_log(&path).map_err(|source| MpsError::fs("open log", &path, source))?;
        if log.metadata().is_ok_and(|found| found.len() > LONGEST_LOG) {
            log.set_len(0).map_err(|source| MpsError::fs("trim log", &path, source))?;
        }
        let errors = log.try_clone().map_err(|source| MpsError::fs("open log", &path, source))?;
        // It makes a session of its own, and becomes init's child when this process ends.
        let child = Command::new(&self.program)
            .arg0("mpsgated")
            .args(["hold", "--dir"])
            .arg(dir)
            .arg("--mps")
            .arg(&self.mps)
            .arg("--control")
            .arg(&self.control)
            .arg("--gate")
            .arg(&self.gate)
            .env_clear()
            .env("PATH", crate::subprocess::FIXED_PATH)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(failed)?;
        log::info!(pid = child.id(), log:% = path.display(); "a holder of control daemons was started");
        *started = Some(child);
        Ok(())
    }
}

/// `auto`: the holder if one answers, the units if this machine has a fitting systemd and the unit
/// files, else a holder that this spawner starts.
#[must_use]
pub fn choose_spawner(holder: HoldSpawner, unit: UnitSpawner, own: OwnHolder) -> Box<dyn Spawner> {
    if !holder.is_available() && unit.is_available() {
        return Box::new(unit);
    }
    Box::new(holder.with_own(own))
}
