//! Recognising the processes of a card.
//!
//! A daemon is known by the POSIX lock that it holds on `control_lock` for as long as it lives: the
//! kernel names the holder, so neither a stale nor a forged pid file can mislead us. 535 writes no
//! pid file at all (measured).

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

use crate::error::MpsError;
use crate::instance::{ControlDaemon, MpsInstance};
use crate::process::{Process, all_pids};

/// File name of the server program.
const SERVER_PROGRAM: &str = "nvidia-cuda-mps-server";
/// A pid and a line's end fit into it. Anybody on the node can write the pid file (mode 0666,
/// measured on 550), so no more of it is read.
const PID_FILE_BYTES: u64 = 32;

impl MpsInstance {
    /// The daemon that runs in our directory, if any. Does not ask the channel: a wedged daemon is
    /// found too.
    ///
    /// # Errors
    /// [`MpsError::Stranger`] when the lock's holder is not our daemon;
    /// [`MpsError::PidFileRefused`] when nobody holds the lock, yet the pid file names a living
    /// process or is no file; [`MpsError::Fs`].
    pub fn find_running(&self) -> Result<Option<ControlDaemon>, MpsError> {
        match self.find_locked() {
            // One whose lock was taken away serves its clients as before.
            nobody @ (Ok(None) | Err(MpsError::PidFileRefused { .. })) => {
                let Some(process) = self.unlocked_daemon() else { return nobody };
                let replaced = !process.runs_file(self.binary());
                Ok(Some(ControlDaemon { process, replaced }))
            }
            other => other,
        }
    }

    /// The daemon that holds the lock at its place. Cheap: for a loop that waits for one.
    pub(crate) fn find_locked(&self) -> Result<Option<ControlDaemon>, MpsError> {
        let lock = self.dirs().control_lock();
        let Some(pid) =
            lock_holder(&lock).map_err(|source| MpsError::fs("look at lock", &lock, source))?
        else {
            return self.refuse_pid_file().map(|()| None);
        };
        let Some(process) = Process::open(pid) else {
            // Ended since, or lives in a pid namespace that we cannot see (the kernel says 0).
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
        match read_pid_file(&self.dirs().pid_file()) {
            Ok(Some(claimed)) if claimed != pid => {
                log::warn!(card = self.card(), pid, claimed; "pid file names another process, ignored");
            }
            Err(why) => {
                log::warn!(card = self.card(), pid, reason = why.as_str(); "pid file ignored");
            }
            Ok(_) => {}
        }
        let replaced = !process.runs_file(self.binary());
        Ok(Some(ControlDaemon { process, replaced }))
    }

    /// Nobody holds the lock, so whatever the pid file names is not our daemon.
    fn refuse_pid_file(&self) -> Result<(), MpsError> {
        let path = self.dirs().pid_file();
        let process = match read_pid_file(&path) {
            Err(why) => return Err(MpsError::PidFileRefused { path, pid: None, why }),
            Ok(pid) => pid.and_then(Process::open),
        };
        let Some(process) = process else { return Ok(()) };
        let why = match self.check_identity(&process) {
            Err(why) => why,
            Ok(()) => "it does not hold control_lock".into(),
        };
        let pid = process.pid();
        let why = format!("it names pid {pid}, which is not our control daemon: {why}");
        Err(MpsError::PidFileRefused { path, pid: Some(pid), why })
    }

    pub(crate) fn check_identity(&self, process: &Process) -> Result<(), String> {
        let own = nix::unistd::geteuid().as_raw();
        if process.uid() != Some(own) {
            return Err(format!(
                "it runs as uid {}, not {own}",
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

    /// Server processes of this card, whether or not their control daemon lives: by program name
    /// and environment, outside every container, where anybody can dress up as one.
    #[must_use]
    pub fn servers_alive(&self) -> Vec<Process> {
        let (pipe_dir, roots) = (self.dirs().pipe_dir(), self.trusted_roots());
        all_pids()
            .into_iter()
            .filter_map(Process::open)
            .filter(|process| process.exe().is_some_and(|exe| exe.ends_with(SERVER_PROGRAM)))
            .filter(|process| process.has_root_of(&roots))
            .filter(|process| {
                process
                    .env("CUDA_MPS_PIPE_DIRECTORY")
                    .is_some_and(|dir| dir == pipe_dir.as_os_str())
            })
            .collect()
    }
}

/// The pid in the file; `None` where there is none. Never waits, and reads next to nothing.
///
/// # Errors
/// What is wrong with the file, as the end of a sentence.
fn read_pid_file(path: &Path) -> Result<Option<i32>, String> {
    let file =
        File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err("it is a symbolic link".into());
        }
        Err(error) => return Err(error.to_string()),
    };
    if !file.metadata().map_err(|error| error.to_string())?.is_file() {
        return Err("it is not a regular file".into());
    }
    let mut text = Vec::new();
    file.take(PID_FILE_BYTES).read_to_end(&mut text).map_err(|error| error.to_string())?;
    Ok(std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()))
}

/// Who holds a POSIX lock; `None` when nobody does or there is no file.
pub(crate) fn lock_holder(path: &Path) -> io::Result<Option<i32>> {
    let file =
        File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut lock = libc::flock {
        l_type: libc::c_short::try_from(libc::F_WRLCK).unwrap_or_default(),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_GETLK(&mut lock))?;
    Ok((i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid))
}
