//! The card's gate: another program of ours, which serves the containers' own sockets. It is known
//! by the lock that it holds for as long as it lives: the kernel names the holder.

use mpsgate_host::crash_point;

use crate::error::MpsError;
use crate::instance::MpsInstance;
use crate::lock::lock_holder;
use crate::process::Process;
use crate::spawner::Spawner;
use crate::stop::end;

impl MpsInstance {
    /// The gate that serves the card, if any does.
    ///
    /// # Errors
    /// [`MpsError::Stranger`] where its process cannot be seen; [`MpsError::Fs`].
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

    /// Has the card's gate started where none serves it; returns before it does. Whether it was.
    ///
    /// # Errors
    /// As [`Self::gate`], and what the spawner says.
    pub fn ensure_gate(&self, spawner: &dyn Spawner) -> Result<bool, MpsError> {
        spawner.tend();
        if self.gate()?.is_some() {
            return Ok(false);
        }
        spawner.start_gate(self)?;
        crash_point!("mps.gate_started");
        Ok(true)
    }

    /// Ends the card's gate, and what keeps its sockets.
    ///
    /// # Errors
    /// As [`Self::gate`]; [`MpsError::StillRunning`]; what the spawner says.
    pub fn end_gate(&self, spawner: &dyn Spawner) -> Result<(), MpsError> {
        spawner.stop_gate(self)?;
        match self.gate()? {
            Some(gate) => end(&gate).map(|_| ()),
            None => Ok(()),
        }
    }
}
