//! Ends a card's MPS and leaves nothing: no process, no gate, no file, no directory. `quit` leaves
//! three files and SIGTERM leaves all (measured), so the directories are always cleared here.

use std::time::Duration;

use crate::error::MpsError;
use crate::instance::{ControlDaemon, MpsInstance};
use crate::mps_process::Process;
use crate::spawner::Spawner;
use mpsgate_host::crash_point;
use mpsgate_host::process::Signal;

/// How long each step may take before the next, stronger one.
const STEP: Duration = Duration::from_secs(2);

/// What ended the control daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoppedBy {
    /// No daemon was running.
    NotRunning,
    /// It ended by itself, after `quit`.
    Quit,
    /// It needed SIGTERM; the channel was wedged or `quit` failed.
    Terminate,
    /// It needed SIGKILL.
    Kill,
}

/// The result of [`MpsInstance::stop`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopReport {
    /// How the control daemon ended.
    pub daemon: StoppedBy,
    /// Servers that outlived it and had to be ended.
    pub servers_killed: Vec<i32>,
}

impl MpsInstance {
    /// Ends daemon, gate, servers and, after `grace`, their clients; then removes the card's
    /// directories.
    ///
    /// # Errors
    /// [`MpsError::Stranger`] before any change; [`MpsError::StillRunning`];
    /// [`MpsError::LeftBehind`]; errors of the spawner.
    pub fn stop(&self, spawner: &dyn Spawner, grace: Duration) -> Result<StopReport, MpsError> {
        let daemon = match self.find_locked()? {
            Some(daemon) => self.end_daemon(&daemon, grace)?,
            // An older version's daemon, with its channel at another place.
            None => self.unlocked_daemon().map_or(Ok(StoppedBy::NotRunning), |old| end(&old))?,
        };
        self.end_gate(spawner)?;
        let mut servers_killed = Vec::new();
        for server in self.servers_alive() {
            end(&server)?;
            servers_killed.push(server.pid());
        }
        crash_point!("mps.daemon_ended");
        // Each is tried, whatever the result of the other.
        let supervisor = spawner.after_stop(self);
        self.dirs().remove()?;
        crash_point!("mps.directories_removed");
        supervisor?;
        Ok(StopReport { daemon, servers_killed })
    }

    fn end_daemon(&self, daemon: &ControlDaemon, grace: Duration) -> Result<StoppedBy, MpsError> {
        let process = &daemon.process;
        match self.channel().quit(grace) {
            Ok(()) if process.wait_gone(STEP) => return Ok(StoppedBy::Quit),
            Ok(()) => {}
            Err(error) => {
                log::warn!(card = self.card(), error:% = error; "quit failed, sending SIGTERM")
            }
        }
        end(process)
    }
}

/// Sends SIGTERM, then SIGKILL, to this process, and never to another one with its pid.
pub(crate) fn end(process: &Process) -> Result<StoppedBy, MpsError> {
    for (signal, by) in [(Signal::TERM, StoppedBy::Terminate), (Signal::KILL, StoppedBy::Kill)] {
        let path = format!("/proc/{}", process.pid());
        process.signal(signal).map_err(|source| MpsError::fs("signal", path, source))?;
        if process.wait_gone(STEP) {
            return Ok(by);
        }
    }
    Err(MpsError::StillRunning { pid: process.pid() })
}
