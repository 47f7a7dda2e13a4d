//! Signals as something to wait for.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::GateError;

/// Blocks them for the calling thread, which has to be the process's only one, and gives what tells
/// of them.
///
/// # Errors
/// [`GateError::System`].
pub(crate) fn receive(signals: &[Signal]) -> Result<SignalFd, GateError> {
    let set: SigSet = signals.iter().copied().collect();
    set.thread_block().map_err(GateError::system("block signals"))?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(GateError::system("receive signals"))
}
