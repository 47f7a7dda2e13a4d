//! That one gate serves a card. A POSIX lock (fcntl(2)), because the kernel tells mpsgated its
//! holder's pid.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, fcntl_lock, openat};
use rustix::io::Errno;

use crate::error::GateError;

/// Held until it is dropped, or its process ends.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "closing any descriptor of it ends the lock")] OwnedFd);

/// Takes the lock at `path`, whose directory is mpsgated's.
///
/// # Errors
/// [`GateError::Taken`] where another gate has it; [`GateError::Fs`].
pub fn lock(path: &Path) -> Result<Lock, GateError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file =
        openat(CWD, path, flags, Mode::RUSR | Mode::WUSR).map_err(GateError::fs("open", path))?;
    match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock(file)),
        Err(Errno::AGAIN | Errno::ACCESS) => Err(GateError::Taken { path: path.into() }),
        Err(errno) => Err(GateError::fs("lock", path)(errno)),
    }
}
