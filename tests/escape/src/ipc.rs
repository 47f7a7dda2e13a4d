//! What a shared IPC namespace shares: System V memory and POSIX queues.
//!
//! JUSTIFICATION for unsafe code: nix has no System V memory. One place.

#![allow(unsafe_code, reason = "see above")]

use std::ffi::CString;

use nix::errno::Errno;
use nix::libc;
use nix::mqueue::{MQ_OFlag, mq_open};
use nix::sys::stat::Mode;

use crate::{Outcome, failed};

/// Attaches a segment that somebody outside has made under this key.
pub(crate) fn shared_memory(key: i32) -> Outcome {
    // SAFETY: takes three numbers and gives one; it touches no memory of ours.
    let id = unsafe { libc::shmget(key, 0, 0) };
    if id < 0 {
        return Err(failed("shmget")(Errno::last()));
    }
    // SAFETY: with a null address the kernel chooses a free place, so no memory of ours is
    // replaced.
    let at = unsafe { libc::shmat(id, std::ptr::null(), 0) };
    if at.addr() == usize::MAX {
        return Err(failed("shmat")(Errno::last()));
    }
    // SAFETY: `at` is what shmat has just given and nothing refers to it.
    unsafe { libc::shmdt(at) };
    Ok(format!("System V segment {key} attaches for reading and writing"))
}

/// Opens a POSIX queue that somebody outside has made.
pub(crate) fn queue(name: &str) -> Outcome {
    let name = CString::new(name).map_err(|_| "the name holds a zero byte".to_owned())?;
    mq_open(name.as_c_str(), MQ_OFlag::O_RDWR | MQ_OFlag::O_NONBLOCK, Mode::empty(), None)
        .map_err(failed("mq_open"))?;
    Ok(format!("the queue {} opens", name.to_string_lossy()))
}
