//! The system calls that neither std nor nix offers safely. The only `unsafe` of this crate.
//!
//! JUSTIFICATION: programs that a holder starts must begin with another signal mask than the
//! holder's, and without descriptors that another process has left open.
#![allow(unsafe_code, reason = "see JUSTIFICATION above; each block has its SAFETY note")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::SigSet;

/// Lets `command`'s program begin with no signal blocked: std passes this process's mask on, and a
/// supervisor has blocked the signals that it reads, SIGTERM among them.
pub(crate) fn unblock_signals(command: &mut Command) {
    let between_fork_and_exec = || Ok(SigSet::empty().thread_set_mask()?);
    // SAFETY: one system call on a value of its own: no allocation, no locks, no panics.
    unsafe { command.pre_exec(between_fork_and_exec) };
}

/// Keeps inherited descriptors from the programs that this process starts: an init script's lock
/// would be held for as long as a control daemon lives. Descriptors opened later are close-on-exec
/// anyway.
pub(crate) fn hand_on_no_descriptors() {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for number in numbers.filter(|number: &i32| *number > 2) {
        // SAFETY: a number and a flag: nothing is closed, and one that is not open is an error.
        unsafe { nix::libc::fcntl(number, nix::libc::F_SETFD, nix::libc::FD_CLOEXEC) };
    }
}
