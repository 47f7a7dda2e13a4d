//! Who wedges a control channel. The control daemon serves one connection at a time and waits for
//! its greeting without a limit, so one idle connection stops everybody (measured).
//!
//! The peer is found through the daemon's own descriptors (`pidfd_getfd`, `SO_PEERCRED`), not
//! through /proc/net/unix: the kernel lists an accepted socket in the *client's* network
//! namespace, where a container's connection cannot be seen from the host. Best effort: needs
//! kernel 5.6 and ptrace rights over the daemon; without them the holder stays unknown.

use std::fs;
use std::path::Path;

use nix::sys::socket::{getsockopt, sockopt};

use crate::process::Process;
use crate::sys;

/// Why a living control daemon does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WedgeCause {
    /// Somebody stopped the daemon (SIGSTOP, a frozen cgroup shows as unknown).
    Stopped,
    /// Its log FIFO is full and nobody reads it: one malformed record ends the thread that does, for
    /// good, and after some hundred lines the daemon blocks in its own log (measured).
    /// [`crate::CardMps::drain_log`] gets it going again.
    LogBlocked,
    /// These processes hold its connections; the first one is the one it waits for, where known.
    HeldBy(Vec<Holder>),
    /// Nothing could be found out.
    Unknown,
}

/// A process that holds a connection to the control daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its pid, as our pid namespace counts: /proc/PID/cgroup names the container.
    pub pid: i32,
    /// Its effective uid.
    pub uid: u32,
    /// Its short name.
    pub name: String,
}

/// Looks at the daemon now; the holder may be gone a moment later.
pub(crate) fn find_wedge_cause(daemon: &Process, log_fifo: &Path) -> WedgeCause {
    if daemon.is_stopped() {
        return WedgeCause::Stopped;
    }
    let waits_for = blocked_on_descriptor(daemon.pid());
    let target =
        waits_for.and_then(|fd| fs::read_link(format!("/proc/{}/fd/{fd}", daemon.pid())).ok());
    if target.as_deref() == Some(log_fifo) {
        return WedgeCause::LogBlocked;
    }
    let mut peers = connected_peers(daemon);
    // What it waits for is the culprit; the others are clients and servers it may know well.
    if let Some(position) = peers.iter().position(|(fd, _)| Some(*fd) == waits_for) {
        return WedgeCause::HeldBy(vec![peers.swap_remove(position).1]);
    }
    if peers.is_empty() {
        return WedgeCause::Unknown;
    }
    WedgeCause::HeldBy(peers.into_iter().map(|(_, holder)| holder).collect())
}

fn connected_peers(daemon: &Process) -> Vec<(i32, Holder)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{}/fd", daemon.pid())) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| {
            fs::read_link(entry.path())
                .is_ok_and(|link| link.to_string_lossy().starts_with("socket:"))
        })
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|fd| Some((fd, peer_of(daemon, fd)?)))
        .collect()
}

fn peer_of(daemon: &Process, fd: i32) -> Option<Holder> {
    let socket = sys::pidfd_getfd(daemon.pidfd()?, fd).ok()?;
    if getsockopt(&socket, sockopt::AcceptConn).ok()? {
        return None;
    }
    let pid = getsockopt(&socket, sockopt::PeerCredentials).ok()?.pid();
    let peer = Process::open(pid).filter(|peer| peer.pid() != daemon.pid())?;
    Some(Holder { pid, uid: peer.uid()?, name: peer.comm() })
}

/// First argument of the system call in which the process sleeps: the descriptor, for those that
/// can block a control daemon (recvmsg on a connection, write on its log).
fn blocked_on_descriptor(pid: i32) -> Option<i32> {
    let syscall = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
    let argument = syscall.split_whitespace().nth(1)?.strip_prefix("0x")?;
    i32::from_str_radix(argument, 16).ok()
}
