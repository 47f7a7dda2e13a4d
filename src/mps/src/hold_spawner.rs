//! Control daemons that another program of ours keeps, [`crate::supervisor`]: for pods, which take
//! along all that runs in them.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use mpsgate_host::fd_store;
use mpsgate_host::file::{self, Durability, New};

use crate::error::MpsError;
use crate::instance::MpsInstance;
use crate::process::Process;
use crate::spawner::{ForkSpawner, Spawner, Started, UnitSpawner};
use crate::supervisor::{Answer, HoldError, Request, Start, ask};

/// Asks the holder whose directory this is.
#[derive(Debug, Clone)]
pub struct HoldSpawner {
    dir: PathBuf,
    orders: PathBuf,
}

impl HoldSpawner {
    /// `orders`: the directory in which the gates' parent finds which are to run. Touches nothing.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>, orders: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), orders: orders.into() }
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
        match ask(&self.dir, &request).map_err(MpsError::Hold)? {
            Answer::Started(pid) if pid > 0 => Ok(Started::Process(Process::open(pid))),
            other => {
                let why = format!("{other:?} is no answer to a start");
                Err(MpsError::Hold(HoldError::Message { why }))
            }
        }
    }

    /// The gates' parent is in another container: a file is its order.
    fn start_gate(&self, mps: &MpsInstance, _program: &Path) -> Result<(), MpsError> {
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

/// `auto`: the holder where one answers, the unit where this machine has systemd and our unit file,
/// else the two forks.
#[must_use]
pub fn choose_spawner(holder: HoldSpawner, unit: UnitSpawner) -> Box<dyn Spawner> {
    if holder.is_available() {
        return Box::new(holder);
    }
    if unit.is_available() { Box::new(unit) } else { Box::new(ForkSpawner) }
}
