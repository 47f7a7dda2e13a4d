//! Adopts one card's control daemon, or starts one and waits until it answers.

use std::time::{Duration, Instant};

use mpsgate_host::crash_point;

use crate::error::MpsError;
use crate::instance::{ControlDaemon, MpsInstance};
use crate::mps_process::{POLL, Process};
use crate::spawner::{Spawner, Started};
use crate::supervisor::HoldError;

/// How long a daemon that ended because another was quicker waits for that one to appear: the
/// launcher has the lock before it is the control daemon.
const QUICKER: Duration = Duration::from_millis(500);

/// The origin of a running daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was running already, with its servers and clients.
    Adopted,
    /// mpsgate started it: limits and server are still to be set.
    Started,
}

impl MpsInstance {
    /// Adopts the running daemon or starts one, and waits until it answers.
    ///
    /// # Errors
    /// [`MpsError::Wedged`] when one runs and does not answer: a second one is never started.
    /// [`MpsError::Unlocked`] when one runs that an older version started, which is left alone.
    /// [`MpsError::Orphans`] while servers of a dead one live.
    /// [`MpsError::StartFailed`] with the end of the log, and what directories and spawner say.
    pub fn ensure_running(
        &self,
        spawner: &dyn Spawner,
        limit: Duration,
    ) -> Result<(ControlDaemon, Origin), MpsError> {
        // Checked before any change: an older version's daemon needs its directories as they are.
        if self.find_running()?.is_some() {
            return self.adopt();
        }
        self.refuse_orphans()?;
        self.dirs().create()?;
        crash_point!("mps.directories_made");
        self.dirs().clear_pipe()?;
        let deadline = Instant::now() + limit;
        let mark = self.dirs().log_file().mark();
        let started = match spawner.start(self) {
            // The holder already has a daemon for the card, which another process started first.
            Err(error @ MpsError::Hold(HoldError::Refused { .. })) => {
                let theirs = self.wait_until_it_answers(spawner, &Started::Process(None), deadline);
                return theirs.map(|daemon| (daemon, Origin::Adopted)).map_err(|_| error);
            }
            other => other?,
        };
        crash_point!("mps.spawned");
        let reason = match self.wait_until_it_answers(spawner, &started, deadline) {
            Ok(daemon) if started.is(daemon.process.pid()) => {
                return Ok((daemon, Origin::Started));
            }
            // Another process was quicker and has the lock: this daemon ends by itself.
            Ok(daemon) => {
                spawner.abort(self, &started)?;
                return Ok((daemon, Origin::Adopted));
            }
            Err(reason) => reason,
        };
        if let Err(error) = spawner.abort(self, &started).and_then(|()| self.end_remains()) {
            log::warn!(card = self.card(), error:% = error; "cannot end the daemon that failed to start");
        }
        let tail = self.dirs().log_file().tail(mark);
        Err(MpsError::StartFailed { card: self.card(), reason, tail })
    }

    fn adopt(&self) -> Result<(ControlDaemon, Origin), MpsError> {
        self.dirs().create()?;
        self.channel().server_list()?;
        let pipe_dir = self.dirs().pipe_dir();
        let daemon = self.find_running()?.ok_or(MpsError::NotRunning { pipe_dir })?;
        Ok((daemon, Origin::Adopted))
    }

    /// Refuses to start while servers without a control daemon hold the card: a new daemon's
    /// servers could not have it.
    fn refuse_orphans(&self) -> Result<(), MpsError> {
        let pids: Vec<i32> = self.servers_alive().iter().map(Process::pid).collect();
        if pids.is_empty() { Ok(()) } else { Err(MpsError::Orphans { card: self.card(), pids }) }
    }

    fn wait_until_it_answers(
        &self,
        spawner: &dyn Spawner,
        started: &Started,
        deadline: Instant,
    ) -> Result<ControlDaemon, String> {
        let begin = Instant::now();
        let mut given_up = None;
        loop {
            let ended = spawner.has_ended(self, started).map_err(|error| error.to_string())?;
            // Asked after that: if this daemon ended because another was quicker, that is no
            // failure.
            let running = match self.find_locked() {
                // The launcher has the lock, but is not the control daemon yet.
                Err(MpsError::Stranger { .. }) => None,
                other => other.map_err(|error| error.to_string())?,
            };
            if let Some(daemon) = running {
                match self.channel().server_list() {
                    Ok(_) => return Ok(daemon),
                    Err(error) if Instant::now() >= deadline => return Err(error.to_string()),
                    Err(_) => {}
                }
            } else if ended
                && *given_up.get_or_insert_with(|| Instant::now() + QUICKER) <= Instant::now()
            {
                return Err("it ended at once".into());
            } else if Instant::now() >= deadline {
                return Err(format!("it does not answer after {} ms", begin.elapsed().as_millis()));
            }
            std::thread::sleep(POLL);
        }
    }
}
