//! Control daemons that another program of ours keeps, [`crate::supervisor`]: for pods, which take
//! along all that runs in them, and for hosts on which no systemd keeps a unit for each card.

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
use crate::process::{POLL, Process};
use crate::spawner::{Spawner, Started, UnitSpawner};
use crate::supervisor::{Answer, HoldError, Request, Start, ask, open_log};

/// How long a holder that was just started may take until it answers.
const STARTS: Duration = Duration::from_secs(10);
/// A holder's log that is longer begins anew with the next holder.
const LONGEST_LOG: u64 = 1 << 20;

/// Asks the holder whose directory this is.
#[derive(Debug)]
pub struct HoldSpawner {
    dir: PathBuf,
    orders: PathBuf,
    own: Option<OwnHolder>,
    /// When was asked the last time whether it is there.
    asked: Mutex<Option<Instant>>,
}

/// How a holder is started where none answers: as the unit `mpsgate-hold.service` where systemd
/// runs, else as a process that outlives us. Never as our child below systemd: our unit's filter of
/// namespaces would forbid the launcher to leave the node's.
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
    /// The one that we started as a process: to be waited for, that it does not stay a zombie.
    pub started: Mutex<Option<Child>>,
}

impl HoldSpawner {
    /// `orders`: the directory in which the gates' parent finds which are to run. Touches nothing.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, orders: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), orders: orders.into(), own: None, asked: Mutex::new(None) }
    }

    /// Starts a holder itself where none answers.
    #[must_use]
    pub fn with_own(mut self, own: OwnHolder) -> Self {
        self.own = Some(own);
        self
    }

    /// Asks; where nobody answers a holder is started, once, if that is ours to do.
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

    /// Whether a holder answers, one that we could use.
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
    /// A holder that has ended is no zombie for long, and has a successor within 10 s: the gates'
    /// sockets lie there while a gate is replaced, and a gate brings them within 5 s more.
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
        // One that hangs is there: only who is refused by the kernel knows that none is.
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

    /// In a pod the gates' parent is another container: a file is its order.
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
        let told =
            fd_store::dial(&store).and_then(|socket| fd_store::send(socket.as_fd(), &forget, None));
        match told {
            // Where no holder is, none keeps anything.
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
        // Who runs without our unit files is not in our unit either.
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
            // It is on its way, or hangs: the caller waits for its answer.
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
        // It makes a session of its own, and is init's as soon as we end.
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
            .env("PATH", crate::run::FIXED_PATH)
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

/// `auto`: the holder where one answers, the units where this machine has a systemd and our unit
/// files that they are for, else a holder that we start.
#[must_use]
pub fn choose_spawner(holder: HoldSpawner, unit: UnitSpawner, own: OwnHolder) -> Box<dyn Spawner> {
    if !holder.is_available() && unit.is_available() {
        return Box::new(unit);
    }
    Box::new(holder.with_own(own))
}
