//! Processes that outlive their supervisor: servers without their control daemon, and a control
//! daemon without its lock.

use std::fs;
use std::time::Duration;

use crate::error::MpsError;
use crate::file_lock::lock_holder;
use crate::instance::MpsInstance;
use crate::mps_process::{Process, all_running};
use crate::stop::end;

/// A new daemon takes its lock, or ends, within milliseconds.
const GROWN: Duration = Duration::from_secs(2);

impl MpsInstance {
    /// Ends the servers of a control daemon that has died, which still hold the card; their clients
    /// have lost them already. Returns the pids of the ended servers.
    ///
    /// # Errors
    /// [`MpsError::StillRunning`], [`MpsError::Fs`].
    pub fn end_orphans(&self) -> Result<Vec<i32>, MpsError> {
        let mut ended = Vec::new();
        for server in self.servers_alive() {
            end(&server)?;
            ended.push(server.pid());
        }
        Ok(ended)
    }

    /// Ends what a failed start has left in its mount namespace: a program that went into the
    /// background. Processes with such a namespace took the lock first. So if the lock is free
    /// afterwards, none of the processes that were seen is another one's control daemon.
    ///
    /// # Errors
    /// [`MpsError::StillRunning`], [`MpsError::Fs`].
    pub(crate) fn end_remains(&self) -> Result<(), MpsError> {
        let remains = self.all_alive();
        if !matches!(self.find_locked(), Ok(None)) {
            return Ok(());
        }
        remains.iter().try_for_each(|process| end(process).map(drop))
    }

    /// A control daemon of this card that does not hold the present `daemon.lock`: an older mpsgate
    /// started it, or root has removed its lock. Only if no process holds the lock.
    pub(crate) fn unlocked_daemon(&self) -> Option<Process> {
        // Its own lock, on the node: another program may have started this one, too. Only root gets
        // there.
        let own = lock_holder(&self.dirs().pipe_dir().join("control_lock"));
        if let Some(process) = own.ok().flatten().and_then(Process::open) {
            return Some(process);
        }
        let (program, roots) = (self.binary().file_name()?, self.trusted_roots());
        all_running(program)
            .filter(|process| is_daemon(process) && process.age() >= Some(GROWN))
            .filter(|process| process.has_root_of(&roots) && process.is_of_our_users())
            .find(|process| self.check_identity(process).is_ok())
    }
}

/// Whether it is not a front-end, which runs the same program in the same environment.
fn is_daemon(process: &Process) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"-f")
}
