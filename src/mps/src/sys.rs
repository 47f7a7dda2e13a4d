//! The system calls that neither std nor nix offers safely. The only `unsafe` of this crate.
//!
//! JUSTIFICATION: `pidfd_getfd` shows who made the connection that holds a channel, and lets it be
//! cut; and a daemon that outlives us must leave our session between `fork` and `exec`.
#![allow(unsafe_code, reason = "see JUSTIFICATION above; each block has its SAFETY note")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sys::resource::{Resource, rlim_t, setrlimit};
use nix::sys::signal::SigSet;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{ForkResult, fork, getpid, setsid, write};

fn checked(result: libc::c_long) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    libc::c_int::try_from(result).map_err(io::Error::other)
}

/// A copy of descriptor `target` of another process; needs ptrace rights and kernel 5.6.
pub(crate) fn pidfd_getfd(process: BorrowedFd<'_>, target: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes three integers and touches no memory of ours.
    let fd =
        checked(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), target, 0) })?;
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The network namespace of a socket, whoever's it is; needs CAP_NET_ADMIN over it and kernel 4.9.
pub(crate) fn network_of(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// `SIOCGSKNS` of linux/sockios.h.
    const SIOCGSKNS: libc::Ioctl = 0x894C;
    // SAFETY: this request has no argument and touches no memory of ours.
    let fd = checked(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) }.into())?;
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A descriptor for the very process that made a connection; fails with `ENOPROTOOPT` before kernel
/// 6.5, and otherwise where that process is gone.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// `SO_PEERPIDFD` of asm-generic/socket.h.
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of_val(&fd)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of the integer.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut length,
        )
    };
    checked(done.into())?;
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes `command`, once spawned, a daemon: own session, not our child, nothing of ours open. Its
/// pid arrives as four native-endian bytes in `report`. `spawn` still reports a failed exec; the
/// child that it returns is the intermediate one and is reaped by waiting for it.
pub(crate) fn daemonise(command: &mut Command, report: OwnedFd, nofile: [(rlim_t, rlim_t); 2]) {
    let between_fork_and_exec = move || -> io::Result<()> {
        // Descriptors that we inherited may lack CLOEXEC; std's own pipe to us has it already.
        // SAFETY: three integers; only marks descriptors. Kernels before 5.11 refuse, and then
        // only what we ourselves inherited leaks.
        unsafe {
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
        };
        setsid()?;
        // SAFETY: this process has one thread, the copy of the one that called fork.
        if let ForkResult::Parent { .. } = unsafe { fork() }? {
            // SAFETY: _exit runs no handlers; the grandchild carries on.
            unsafe { libc::_exit(0) };
        }
        write(&report, &getpid().as_raw().to_ne_bytes())?;
        umask(Mode::from_bits_truncate(0o022));
        let [wanted, possible] = nofile;
        setrlimit(Resource::RLIMIT_NOFILE, wanted.0, wanted.1)
            .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, possible.0, possible.1))?;
        Ok(())
    };
    // SAFETY: the closure makes system calls only: no allocation, no locks, no panics.
    unsafe { command.pre_exec(between_fork_and_exec) };
}

/// Has `command`'s program begin with no signal blocked: std hands ours on, and a supervisor has
/// blocked those that it reads, SIGTERM among them.
pub(crate) fn unblock_signals(command: &mut Command) {
    let between_fork_and_exec = || Ok(SigSet::empty().thread_set_mask()?);
    // SAFETY: one system call on a value of its own: no allocation, no locks, no panics.
    unsafe { command.pre_exec(between_fork_and_exec) };
}
