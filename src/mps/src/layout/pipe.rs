//! The way to the control daemon's sockets in its own mount namespace.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::MpsDirectories;
use crate::error::MpsError;
use crate::file_lock::lock_holder;
use crate::mps_process::{Process, seen_by};

impl MpsDirectories {
    /// A descriptor of the directory in which the holder of the card's lock has its sockets: the
    /// tmpfs in its mount namespace. `None` if no process holds the lock.
    ///
    /// # Errors
    /// [`MpsError::Lost`] if the tmpfs is no longer there; [`MpsError::Fs`].
    pub(crate) fn open_pipe(&self) -> Result<Option<OwnedFd>, MpsError> {
        let lock = self.daemon_lock();
        let holder =
            lock_holder(&lock).map_err(|source| MpsError::fs("look at lock", &lock, source))?;
        // Opened before the checks: while it lives, its pid shows its own facts.
        let Some(process) = holder.and_then(Process::open) else { return Ok(None) };
        let path = self.pipe_dir();
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = open(&seen_by(process.pid(), &path), flags, Mode::empty());
        if !process.is_alive() {
            return Ok(None);
        }
        let pipe = match opened {
            Ok(pipe) => File::from(pipe),
            Err(nix::errno::Errno::ENOENT) => {
                return Err(MpsError::Lost { path, found: "missing" });
            }
            Err(errno) => return Err(MpsError::fs("open", &path, errno)),
        };
        let device = |found: io::Result<fs::Metadata>| {
            found.map(|found| found.dev()).map_err(|source| MpsError::fs("look at", &path, source))
        };
        if device(pipe.metadata())? == device(fs::symlink_metadata(self.base()))? {
            return Err(MpsError::Lost { path, found: "gone: what is there is the node's" });
        }
        Ok(Some(pipe.into()))
    }
}
