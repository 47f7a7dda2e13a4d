//! Whether a control daemon is at rest, and what keeps it from answering. No container has a
//! connection to it. A process that has one can delay it in two ways (measured on 535 and 550):
//!
//! - A silent connection: the daemon waits for its greeting without a limit, and serves no other
//!   meanwhile. The gate and mpsgate's front-ends give up after some seconds.
//! - A front-end that stays (`sleep 1000 | nvidia-cuda-mps-control`): the daemon serves one at a
//!   time and turns all others away, with exit status 1 (550) or without a message (535). It looks
//!   at rest.

use std::fs;

use mpsgate_host::procfs;
pub use mpsgate_model::WedgeCause;
use nix::libc;

use crate::instance::{ControlDaemon, MpsInstance};
use crate::mps_process::Process;

/// What a control daemon does now, read from /proc in microseconds without disturbing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glance {
    /// Its main thread waits for any connection. A daemon with a frozen cgroup looks like this too,
    /// so a command must be sent now and then.
    AtRest,
    /// It works, or waits for one certain descriptor: only a command can show which.
    Busy,
    /// It was stopped.
    Stopped,
    /// It has ended.
    Gone,
    /// The kernel does not show it.
    Unseen,
}

impl MpsInstance {
    /// Why a silent daemon does not answer; the cause may pass a moment later. The result means
    /// nothing for a daemon that answers.
    #[must_use]
    pub fn wedge_cause(&self, daemon: &ControlDaemon) -> WedgeCause {
        let process = &daemon.process;
        if process.is_stopped() {
            return WedgeCause::Stopped;
        }
        if let Some(Call::Sleeping { first: Some(fd), .. }) = system_call(process.pid()) {
            let target = fs::read_link(format!("/proc/{}/fd/{fd}", process.pid())).ok();
            if target == Some(self.dirs().log_fifo()) {
                return WedgeCause::LogBlocked;
            }
        }
        match self.servers_alive().into_iter().find(Process::is_stopped) {
            Some(server) => WedgeCause::ServerStopped { server: server.pid() },
            None => WedgeCause::Unknown,
        }
    }

    /// Reads the daemon's state without a command.
    #[must_use]
    pub fn glance(&self, daemon: &ControlDaemon) -> Glance {
        let process = &daemon.process;
        if process.is_stopped() {
            return if process.is_alive() { Glance::Stopped } else { Glance::Gone };
        }
        let Some(call) = system_call(process.pid()) else {
            return if process.is_alive() { Glance::Unseen } else { Glance::Gone };
        };
        match call {
            _ if !process.is_alive() => Glance::Gone,
            Call::Sleeping { number, .. } if WAITS_FOR_ANYBODY.contains(&number) => Glance::AtRest,
            Call::Sleeping { .. } | Call::Running => Glance::Busy,
        }
    }
}

/// System calls in which a process waits for more than one thing. The control daemon rests in
/// `poll` (measured on 535 and 550); newer ones may use another.
const WAITS_FOR_ANYBODY: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// The main thread, as /proc/PID/syscall shows it.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Running,
    Sleeping {
        number: libc::c_long,
        /// The first argument: the descriptor, for calls that can block a control daemon (recvmsg
        /// on a connection, write on its log).
        first: Option<i32>,
    },
}

fn system_call(pid: i32) -> Option<Call> {
    parse_call(&procfs::text(format!("/proc/{pid}/syscall")).ok()?)
}

fn parse_call(text: &str) -> Option<Call> {
    let mut words = text.split_whitespace();
    let number = words.next()?;
    if number == "running" {
        return Some(Call::Running);
    }
    let first = words.next().and_then(|word| word.strip_prefix("0x"));
    Some(Call::Sleeping {
        number: number.parse().ok()?,
        first: first.and_then(|hex| i32::from_str_radix(hex, 16).ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_shows_of_a_system_call() {
        assert_eq!(parse_call("running\n"), Some(Call::Running));
        assert_eq!(
            parse_call("47 0x4 0x7ffd 0x40000000 0x0 0x0 0x640 0x7ffc 0x7f12\n"),
            Some(Call::Sleeping { number: 47, first: Some(4) })
        );
        // An address is not a descriptor.
        assert_eq!(
            parse_call("7 0x7faf9dd0aaaa 0x3 0xffffffff"),
            Some(Call::Sleeping { number: 7, first: None })
        );
        assert_eq!(
            parse_call("-1 0x7ffd 0x7f12"),
            Some(Call::Sleeping { number: -1, first: Some(0x7ffd) })
        );
        assert_eq!(parse_call(""), None);
    }
}
