//! Which system calls the gate may make while it reads bytes of containers: what its loop was seen
//! to make (strace, static and dynamic), and what the allocator and the end of a process need. Any
//! other fails with EPERM: a call that was forgotten costs one operation, and not the gate.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use crate::error::GateError;

const ALLOWED: &[i64] = &[
    // Files below the card's directory, and /proc.
    libc::SYS_openat,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_lseek,
    libc::SYS_getdents64,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_fchmodat,
    libc::SYS_fcntl,
    // Sockets; which kind, see below.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // The loop.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_ppoll,
    libc::SYS_signalfd4,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Who it is.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    // Memory, signals, and its end, also by a panic.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_getrandom,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Older forms of these, which musl and glibc still use where the machine has them.
#[cfg(target_arch = "x86_64")]
const OLDER: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_chmod,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_epoll_wait,
    libc::SYS_poll,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[i64] = &[];

/// Allows the calling thread these calls and no others.
///
/// # Errors
/// [`GateError::Filter`]: then nothing may be read.
pub fn install() -> Result<(), GateError> {
    let program = program().map_err(|error| GateError::Filter(error.into()))?;
    apply_filter(&program).map_err(GateError::Filter)
}

fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().chain(OLDER).map(|number| (*number, Vec::new())).collect();
    let unix = u64::from(libc::AF_UNIX.unsigned_abs());
    let is_unix = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, unix)?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(vec![is_unix])?]);
    let otherwise = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, otherwise, SeccompAction::Allow, arch)?.try_into()
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::disallowed_methods,
        reason = "a failing unwrap is the test's failure, and the filter is a thread's"
    )]
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketType, socket};

    use super::*;

    #[test]
    fn a_filtered_thread_has_unix_sockets_and_files_and_little_else() {
        let filtered = std::thread::spawn(|| {
            install().unwrap();
            let unix = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).is_ok();
            let inet = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap_err();
            let netlink = socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap_err();
            let read = std::fs::read("/proc/self/stat").is_ok();
            let linked = std::os::unix::fs::symlink("/", "/tmp/mpsgate-filter").unwrap_err();
            let ran = std::process::Command::new("true").status().unwrap_err();
            (unix, read, [inet, netlink].map(|errno| errno == Errno::PERM), [linked, ran])
        });
        let (unix, read, others, errors) = filtered.join().unwrap();
        assert!(unix && read);
        assert_eq!(others, [true; 2]);
        assert!(errors.iter().all(|error| error.kind() == std::io::ErrorKind::PermissionDenied));
    }
}
