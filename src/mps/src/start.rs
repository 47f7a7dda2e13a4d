//! One card's control daemon: it is adopted, or started until it answers.

use std::time::{Duration, Instant};

use mpsgate_host::crash_point;

use crate::error::MpsError;
use crate::instance::{ControlDaemon, MpsInstance};
use crate::process::{POLL, Process};
use crate::spawner::{Spawner, Started};

/// What a control daemon says that ends because of another (535 and 550).
const ALREADY_RUNNING: &str = "An instance of this daemon is already running";
/// Two that start in the same moment may both end because of the other (550, seen under load).
const TRIES: usize = 3;
/// How long one that ended because another was quicker is given until that one can be seen: 535
/// refuses a second daemon before the first has its lock (seen once on a busy machine).
const QUICKER: Duration = Duration::from_millis(500);

/// Where a running daemon came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It ran already, with its servers and clients.
    Adopted,
    /// We started it: limits and server are still to be set.
    Started,
}

impl MpsInstance {
    /// Adopts the running daemon or starts one, and waits until it answers. Containers cannot reach
    /// a new one before [`MpsDirectories::renew_links`].
    ///
    /// # Errors
    /// [`MpsError::Wedged`] when one runs and does not answer: a second one is never started.
    /// [`MpsError::Orphans`] while servers of a dead one live.
    /// [`MpsError::StartFailed`] with the end of the log, and what directories and spawner say.
    pub fn ensure_running(
        &self,
        spawner: &dyn Spawner,
        limit: Duration,
    ) -> Result<(ControlDaemon, Origin), MpsError> {
        self.dirs().create()?;
        crash_point!("mps.directories_made");
        match self.find_running() {
            Ok(Some(daemon)) => {
                self.channel().server_list()?;
                return Ok((daemon, Origin::Adopted));
            }
            Ok(None) => self.refuse_orphans()?,
            Err(error @ MpsError::PidFileRefused { .. }) => {
                self.refuse_orphans()?;
                log::warn!(card = self.card(), error:% = error; "stale or forged pid file removed");
                let path = self.dirs().pid_file();
                std::fs::remove_file(&path)
                    .map_err(|source| MpsError::fs("remove", path, source))?;
            }
            Err(error) => return Err(error),
        }
        let deadline = Instant::now() + limit;
        let mut tries = TRIES;
        loop {
            let mark = self.dirs().log_file().mark();
            let started = spawner.start(self)?;
            crash_point!("mps.spawned");
            let failed = match self.wait_until_it_answers(spawner, &started, deadline) {
                Ok(daemon) => {
                    if started.is(daemon.process.pid()) {
                        return Ok((daemon, Origin::Started));
                    }
                    // Somebody was quicker. Ours may not have noticed yet, and would take the lock
                    // the moment that the other one ends, without limits.
                    spawner.abort(self, &started)?;
                    return Ok((daemon, Origin::Adopted));
                }
                Err(reason) => reason,
            };
            if let Err(error) = spawner.abort(self, &started) {
                log::warn!(card = self.card(), error:% = error; "cannot end the daemon that failed to start");
            }
            let tail = self.dirs().log_file().tail(mark);
            tries -= 1;
            if tries == 0 || Instant::now() >= deadline || !tail.contains(ALREADY_RUNNING) {
                return Err(MpsError::StartFailed { card: self.card(), reason: failed, tail });
            }
        }
    }

    /// Servers without a control daemon hold the card: another daemon's could not have it.
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
            // Asked after that: an end of ours because another was quicker is no failure.
            let running = match self.find_locked() {
                // It has written its pid file, and takes the lock next.
                Err(MpsError::PidFileRefused { .. }) => None,
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
