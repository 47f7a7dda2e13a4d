//! Recognising the processes of a card.
//!
//! A daemon is known by the POSIX lock that it holds on `daemon.lock` for as long as it lives: the
//! kernel names the holder. The launcher took it, root alone can open the file, and neither the
//! daemon's own lock nor its pid file, which others can write, is looked at.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::libc;
use nix::sys::stat::Mode;

use crate::error::MpsError;
use crate::instance::{ControlDaemon, MpsInstance};
use crate::layout::MpsDirectories;
use crate::process::{Process, all_pids, seen_by};

/// File name of the server program.
const SERVER_PROGRAM: &str = "nvidia-cuda-mps-server";

impl MpsInstance {
    /// The daemon that runs in our directory, if any. Does not ask the channel: a wedged daemon is
    /// found too.
    ///
    /// # Errors
    /// [`MpsError::Stranger`] when the lock's holder is not our daemon; [`MpsError::Unlocked`] when
    /// a daemon of the card lives without the lock; [`MpsError::Fs`].
    pub fn find_running(&self) -> Result<Option<ControlDaemon>, MpsError> {
        let found = self.find_locked()?;
        if found.is_none()
            && let Some(daemon) = self.unlocked_daemon()
        {
            return Err(MpsError::Unlocked { card: self.card(), pid: daemon.pid() });
        }
        Ok(found)
    }

    /// The daemon that holds the lock at its place. Cheap: for a loop that waits for one.
    pub(crate) fn find_locked(&self) -> Result<Option<ControlDaemon>, MpsError> {
        let lock = self.dirs().daemon_lock();
        let holder =
            lock_holder(&lock).map_err(|source| MpsError::fs("look at lock", &lock, source))?;
        let Some(pid) = holder else { return Ok(None) };
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
        let replaced = !process.runs_file(self.binary());
        Ok(Some(ControlDaemon { process, replaced }))
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

    /// Server processes of this card, whether or not their control daemon lives: those in the mount
    /// namespace of a control daemon of ours. Only root makes a namespace like that: it belongs to
    /// the node's user namespace, has the node's `/`, and has a tmpfs on the card's directory. No
    /// user can make one or enter one, and the servers keep theirs when their control daemon ends.
    #[must_use]
    pub fn servers_alive(&self) -> Vec<Process> {
        self.with_its_tmpfs(|process| {
            process.exe().is_some_and(|exe| exe.ends_with(SERVER_PROGRAM))
        })
    }

    /// Whoever is in the mount namespace of a control daemon of ours, of those that are wanted.
    pub(crate) fn with_its_tmpfs(&self, is_wanted: impl Fn(&Process) -> bool) -> Vec<Process> {
        let (pipe_dir, roots) = (self.dirs().pipe_dir(), self.trusted_roots());
        all_pids()
            .into_iter()
            .filter_map(Process::open)
            .filter(is_wanted)
            .filter(|process| process.has_root_of(&roots) && process.is_of_our_users())
            .filter(|process| process.has_tmpfs_at(&pipe_dir))
            .collect()
    }
}

/// The directory in which the process that holds the card's lock has its sockets: a descriptor of
/// the tmpfs in its mount namespace. `None` where nobody holds the lock.
///
/// # Errors
/// [`MpsError::Lost`] where the tmpfs is not there any more; [`MpsError::Fs`].
pub(crate) fn open_pipe(dirs: &MpsDirectories) -> Result<Option<OwnedFd>, MpsError> {
    let lock = dirs.daemon_lock();
    let holder =
        lock_holder(&lock).map_err(|source| MpsError::fs("look at lock", &lock, source))?;
    // Opened before it is looked at: what is seen by its pid is its own while it lives.
    let Some(process) = holder.and_then(Process::open) else { return Ok(None) };
    let path = dirs.pipe_dir();
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let opened = open(&seen_by(process.pid(), &path), flags, Mode::empty());
    if !process.is_alive() {
        return Ok(None);
    }
    let pipe = match opened {
        Ok(pipe) => File::from(pipe),
        Err(nix::errno::Errno::ENOENT) => return Err(MpsError::Lost { path, found: "missing" }),
        Err(errno) => return Err(MpsError::fs("open", &path, errno)),
    };
    let device = |found: io::Result<fs::Metadata>| {
        found.map(|found| found.dev()).map_err(|source| MpsError::fs("look at", &path, source))
    };
    if device(pipe.metadata())? == device(fs::symlink_metadata(dirs.base()))? {
        return Err(MpsError::Lost { path, found: "gone: what is there is the node's" });
    }
    Ok(Some(pipe.into()))
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
    let mut lock = write_lock();
    fcntl(&file, FcntlArg::F_GETLK(&mut lock))?;
    Ok((i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid))
}

/// A lock on a whole file that admits nobody else.
pub(crate) fn write_lock() -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(libc::F_WRLCK).unwrap_or_default(),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}
