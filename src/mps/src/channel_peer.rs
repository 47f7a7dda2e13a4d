//! Whether a control daemon is at rest, and who wedges its channel. There are two ways (measured on
//! 535 and 550):
//!
//! - A connection that says nothing: the daemon waits for its greeting without a limit, and serves
//!   nobody meanwhile. It is seen to wait for that one descriptor.
//! - A front-end that stays (`sleep 1000 | nvidia-cuda-mps-control`): the daemon serves one at a
//!   time and turns all others away, with exit status 1 (550) or without a word (535). It is seen
//!   to rest: only a connection more than there was when the channel was last well tells who it is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nix::libc;

use crate::instance::{ControlDaemon, MpsInstance};
use crate::peer::{holders_of, sockets};
use crate::process::Process;

/// Why a living control daemon does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WedgeCause {
    /// Somebody stopped the daemon (SIGSTOP, a frozen cgroup shows as unknown).
    Stopped,
    /// Its log FIFO is full and nobody reads it: one malformed record ends the thread that does,
    /// for good, and after some hundred lines the daemon blocks in its own log (measured).
    /// [`crate::MpsInstance::drain_log`] gets it going again.
    LogBlocked,
    /// It waits for an answer of the card's server, which does not come.
    ServerSilent {
        /// The server's pid.
        server: i32,
    },
    /// It waits for one connection, which these processes hold; who made it comes first. Nobody
    /// where they cannot be named.
    HeldBy(Vec<ChannelPeer>),
    /// It turns front-ends away, and these hold the connections that came since it was last well:
    /// one of them is to blame.
    OneOf(Vec<ChannelPeer>),
    /// Nothing could be found out.
    Unknown,
}

/// A process that holds a connection to the control daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelPeer {
    /// Its pid, as our pid namespace counts: its cgroup names the container.
    pub pid: i32,
    /// Start time in clock ticks since boot, so that nobody else is taken for it later.
    pub start_ticks: u64,
    /// Its effective uid.
    pub uid: u32,
    /// Its short name.
    pub name: String,
}

/// Sockets of a control daemon, by inode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Connections(BTreeSet<u64>);

impl Connections {
    /// Those that are in both.
    #[must_use]
    pub fn in_both(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// Whether a socket, by its inode, is among these.
    #[must_use]
    pub fn contains(&self, inode: u64) -> bool {
        self.0.contains(&inode)
    }

    /// Whether some of these are not among `known`.
    #[must_use]
    pub fn has_more_than(&self, known: &Self) -> bool {
        !self.0.is_subset(&known.0)
    }
}

/// What a control daemon does right now, read from /proc: costs microseconds and disturbs nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glance {
    /// Its main thread waits for whoever comes. A daemon whose cgroup is frozen looks like this
    /// too, so a command must be asked now and then.
    AtRest,
    /// It works, or waits for one certain descriptor: only a command can tell which.
    Busy,
    /// Somebody stopped it.
    Stopped,
    /// It has ended.
    Gone,
    /// The kernel does not show it.
    Unseen,
}

impl MpsInstance {
    /// Why a daemon that does not answer does not; the holder may be gone a moment later. Says
    /// nothing about one that does. `known` are the connections that were there when it answered
    /// last.
    #[must_use]
    pub fn wedge_cause(&self, daemon: &ControlDaemon, known: &Connections) -> WedgeCause {
        match find_wedge_cause(&daemon.process, &self.dirs().log_fifo()) {
            WedgeCause::Unknown => self.newcomers(&daemon.process, known),
            WedgeCause::HeldBy(holders) => {
                let mut servers = self.servers_alive().into_iter().map(|server| server.pid());
                let is_held = |server: &i32| holders.iter().any(|holder| holder.pid == *server);
                match servers.find(is_held) {
                    Some(server) => WedgeCause::ServerSilent { server },
                    None => WedgeCause::HeldBy(holders),
                }
            }
            cause => cause,
        }
    }

    /// The daemon's open sockets now.
    #[must_use]
    pub fn connections(&self, daemon: &ControlDaemon) -> Connections {
        Connections(sockets(&daemon.process).into_iter().map(|(_, inode)| inode).collect())
    }

    fn newcomers(&self, daemon: &Process, known: &Connections) -> WedgeCause {
        let servers: Vec<i32> = self.servers_alive().iter().map(Process::pid).collect();
        let mut newcomers = Vec::new();
        for (fd, _) in sockets(daemon).iter().filter(|(_, inode)| !known.0.contains(inode)) {
            let Some(holders) = holders_of(daemon, *fd) else { continue };
            if holders.iter().any(|holder| servers.contains(&holder.pid())) {
                continue;
            }
            // With one that cannot be named, nobody else can be blamed either.
            if holders.is_empty() {
                return WedgeCause::Unknown;
            }
            newcomers.extend(holders.iter().filter_map(ChannelPeer::of));
        }
        if newcomers.is_empty() { WedgeCause::Unknown } else { WedgeCause::OneOf(newcomers) }
    }

    /// The descriptor that the daemon waits for, where it waits for one alone.
    pub(crate) fn waits_for(&self, daemon: &ControlDaemon) -> Option<i32> {
        match system_call(daemon.process.pid())? {
            Call::Sleeping { number, first } if !WAITS_FOR_ANYBODY.contains(&number) => first,
            _ => None,
        }
    }

    pub(crate) fn rests(&self, daemon: &ControlDaemon) -> bool {
        self.glance(daemon) == Glance::AtRest
    }

    /// Looks at the daemon without a word to it.
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

/// Calls in which a process waits for more than one thing. The control daemon rests in `poll`
/// (measured on 535 and 550); newer ones may use another.
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
    parse_call(&fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?)
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

/// Looks at a daemon that did not answer; the holder may be gone a moment later.
fn find_wedge_cause(daemon: &Process, log_fifo: &Path) -> WedgeCause {
    if daemon.is_stopped() {
        return WedgeCause::Stopped;
    }
    let Some(Call::Sleeping { number, first: Some(fd) }) = system_call(daemon.pid()) else {
        return WedgeCause::Unknown;
    };
    if WAITS_FOR_ANYBODY.contains(&number) {
        return WedgeCause::Unknown;
    }
    let target = fs::read_link(format!("/proc/{}/fd/{fd}", daemon.pid())).ok();
    if target.as_deref() == Some(log_fifo) {
        return WedgeCause::LogBlocked;
    }
    match holders_of(daemon, fd) {
        Some(holders) => WedgeCause::HeldBy(holders.iter().filter_map(ChannelPeer::of).collect()),
        None => WedgeCause::Unknown,
    }
}

impl ChannelPeer {
    fn of(process: &Process) -> Option<Self> {
        Some(Self {
            pid: process.pid(),
            start_ticks: process.start_ticks(),
            uid: process.uid()?,
            name: process.comm(),
        })
    }
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
        // An address is no descriptor.
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
