//! The card's gate: another program of mpsgate, which serves the containers' own sockets. It holds
//! a lock for as long as it lives, and the kernel names the lock's holder.

use mpsgate_host::crash_point;

use crate::error::MpsError;
use crate::file_lock::lock_holder;
use crate::instance::MpsInstance;
use crate::mps_process::Process;
use crate::spawner::Spawner;
use crate::stop::end;

impl MpsInstance {
    /// The gate that serves the card, if one does.
    ///
    /// # Errors
    /// [`MpsError::Stranger`] if its process cannot be seen; [`MpsError::Fs`].
    pub fn gate(&self) -> Result<Option<Process>, MpsError> {
        let lock = self.dirs().gate_lock();
        let holder =
            lock_holder(&lock).map_err(|source| MpsError::fs("look at lock", &lock, source))?;
        let Some(pid) = holder else { return Ok(None) };
        let found = Process::find(pid)
            .map_err(|source| MpsError::fs("look at process", format!("/proc/{pid}"), source))?;
        match found {
            None if pid <= 0 => {
                let why = "it is in another pid namespace".into();
                Err(MpsError::Stranger { lock, pid, why })
            }
            found => Ok(found),
        }
    }

    /// Starts the card's gate if none serves it, and returns before it serves. Returns whether it
    /// did.
    ///
    /// # Errors
    /// As [`Self::gate`], and errors of the spawner.
    pub fn ensure_gate(&self, spawner: &dyn Spawner) -> Result<bool, MpsError> {
        spawner.tend();
        if self.gate()?.is_some() {
            return Ok(false);
        }
        spawner.start_gate(self)?;
        crash_point!("mps.gate_started");
        Ok(true)
    }

    /// Ends the card's gate, and the store of its sockets.
    ///
    /// # Errors
    /// As [`Self::gate`]; [`MpsError::StillRunning`]; errors of the spawner.
    pub fn end_gate(&self, spawner: &dyn Spawner) -> Result<(), MpsError> {
        spawner.stop_gate(self)?;
        match self.gate()? {
            Some(gate) => end(&gate).map(|_| ()),
            None => Ok(()),
        }
    }
}
