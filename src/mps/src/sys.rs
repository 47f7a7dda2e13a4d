//! The system call that neither std nor nix offers safely. The only `unsafe` of this crate.
//!
//! JUSTIFICATION: what a holder starts must begin with another signal mask than the holder's.
#![allow(unsafe_code, reason = "see JUSTIFICATION above; each block has its SAFETY note")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::SigSet;

/// Has `command`'s program begin with no signal blocked: std hands ours on, and a supervisor has
/// blocked those that it reads, SIGTERM among them.
pub(crate) fn unblock_signals(command: &mut Command) {
    let between_fork_and_exec = || Ok(SigSet::empty().thread_set_mask()?);
    // SAFETY: one system call on a value of its own: no allocation, no locks, no panics.
    unsafe { command.pre_exec(between_fork_and_exec) };
}
