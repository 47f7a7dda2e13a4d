//! Recognising the processes of a card.
//!
//! A daemon holds a POSIX lock on `daemon.lock` for as long as it lives, and the kernel names the
//! lock's holder. The launcher took the lock, and only root can open the file. The daemon's own
//! lock and its pid file are ignored, because others can write them.

use std::ffi::OsStr;

use crate::error::MpsError;
use crate::file_lock::lock_holder;
use crate::instance::{ControlDaemon, MpsInstance};
use crate::kept_programs::SERVER_PROGRAM;
use crate::mps_process::{Process, all_pids, all_running};

impl MpsInstance {
    /// The daemon that runs in this directory, if any. It does not ask the channel, so it finds a
    /// wedged daemon too.
    ///
    /// # Errors
    /// [`MpsError::Stranger`] when another process holds the lock; [`MpsError::Unlocked`] when a
    /// daemon of the card lives without the lock; [`MpsError::Fs`].
    pub fn find_running(&self) -> Result<Option<ControlDaemon>, MpsError> {
        let found = self.find_locked()?;
        if found.is_none()
            && let Some(daemon) = self.unlocked_daemon()
        {
            let (card, uuid) = (self.card(), self.uuid().to_owned());
            return Err(MpsError::Unlocked { card, uuid, pid: daemon.pid() });
        }
        Ok(found)
    }

    /// The daemon that holds the lock at its path. Cheap: for a loop that waits for one.
    pub(crate) fn find_locked(&self) -> Result<Option<ControlDaemon>, MpsError> {
        let lock = self.dirs().daemon_lock();
        let holder =
            lock_holder(&lock).map_err(|source| MpsError::fs("look at lock", &lock, source))?;
        let Some(pid) = holder else { return Ok(None) };
        let process = Process::find(pid)
            .map_err(|source| MpsError::fs("look at process", format!("/proc/{pid}"), source))?;
        let Some(process) = process else {
            // It has ended since, or is in a pid namespace that is not visible (the kernel reports
            // 0).
            if pid > 0 {
                return Ok(None);
            }
            let why = "it is in another pid namespace".into();
            return Err(MpsError::Stranger { lock, pid, why });
        };
        if let Err(why) = self.check_identity(&process) {
            if !process.is_alive() {
                return Ok(None);
            }
            return Err(MpsError::Stranger { lock, pid, why });
        }
        let replaced = !process.runs_file(self.binary());
        Ok(Some(ControlDaemon { process, replaced }))
    }

    pub(crate) fn check_identity(&self, process: &Process) -> Result<(), String> {
        let own = nix::unistd::geteuid().as_raw();
        if !process.is_of(own) {
            return Err(format!(
                "it runs as uid {}, not as {own} alone",
                process.uid().map_or_else(String::new, |uid| uid.to_string())
            ));
        }
        if !process.runs(self.binary()) {
            let exe = process.exe().unwrap_or_default();
            return Err(format!("it runs {}, not {}", exe.display(), self.binary().display()));
        }
        if process.env("CUDA_MPS_PIPE_DIRECTORY").as_deref()
            != Some(self.dirs().pipe_dir().as_os_str())
        {
            return Err("it was started for another pipe directory".into());
        }
        Ok(())
    }

    /// Server processes of this card, whether or not their control daemon lives: those in the mount
    /// namespace of a control daemon of mpsgate. Only root can make such a namespace: it belongs to
    /// the node's user namespace, has the node's `/`, and has a tmpfs on the card's directory. No
    /// user can make or enter one, and the servers stay in it when their control daemon ends.
    #[must_use]
    pub fn servers_alive(&self) -> Vec<Process> {
        self.with_its_tmpfs(all_running(OsStr::new(SERVER_PROGRAM)))
    }

    /// All processes in the mount namespace of a control daemon of mpsgate.
    pub(crate) fn all_alive(&self) -> Vec<Process> {
        self.with_its_tmpfs(all_pids().into_iter().filter_map(Process::open))
    }

    fn with_its_tmpfs(&self, processes: impl Iterator<Item = Process>) -> Vec<Process> {
        let (pipe_dir, roots) = (self.dirs().pipe_dir(), self.trusted_roots());
        processes
            .filter(|process| process.has_root_of(&roots) && process.is_of_our_users())
            .filter(|process| process.has_tmpfs_at(&pipe_dir))
            .collect()
    }
}
