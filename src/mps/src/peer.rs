//! Who holds the other end of a connection, right now.
//!
//! `SO_PEERCRED` names who *connected*. A process may connect, hand the connection to a child and
//! end; its pid may then be another container's. So the kernel's socket diagnosis is asked for the
//! other end's inode, and every process that has it open is a holder. An accepted socket belongs to
//! the *client's* network namespace (af_unix.c, `unix_stream_connect`), where a container's cannot
//! be seen from the host: the question is asked from there, by a thread that enters it and ends.
//!
//! Needs kernel 5.6 (`pidfd_getfd`), `unix_diag`, and root. Without `unix_diag` the process that
//! connected is taken, if it lived before the wedge was seen.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, getsockopt, recv, send, socket,
    sockopt,
};
use nix::sys::stat::fstat;
use std::os::fd::AsRawFd;

use crate::process::{Process, all_pids};
use crate::sys;

/// Tables of descriptors that are read of one process: with more nobody is named, and whoever
/// connected is asked for.
const TABLES: usize = 256;
/// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLMSG_ERROR` of linux/netlink.h.
const NLMSG_ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const NLM_F_REQUEST: u16 = 1;
/// `UDIAG_SHOW_PEER` of linux/unix_diag.h.
const UDIAG_SHOW_PEER: u32 = 4;
/// `UNIX_DIAG_PEER`.
const UNIX_DIAG_PEER: u16 = 2;
/// Sizes of `struct nlmsghdr` and `struct unix_diag_msg`.
const HEADER: usize = 16;
const DIAG: usize = 16;

/// Processes that hold the other end of the connection `fd` of `owner`; who connected comes first.
/// Empty where nobody can be named, `None` where `fd` is no connection.
pub(crate) fn holders_of(owner: &Process, fd: i32) -> Option<Vec<Process>> {
    let socket = sys::pidfd_getfd(owner.pidfd()?, fd).ok()?;
    // A listening socket has no other end; what is no socket fails.
    if getsockopt(&socket, sockopt::AcceptConn).ok()? {
        return None;
    }
    let connected = getsockopt(&socket, sockopt::PeerCredentials).ok()?.pid();
    let own = owner.pid();
    let mut holders: Vec<Process> = match other_end(socket) {
        Ok(inode) => {
            let link = format!("socket:[{inode}]");
            all_pids()
                .into_iter()
                .filter(|pid| *pid != own && has_open(*pid, &link))
                .filter_map(Process::open)
                // Opened after it was seen: it may have handed the connection on meanwhile.
                .filter(|process| has_open(process.pid(), &link))
                .collect()
        }
        Err(error) => {
            log::debug!(reason:% = error; "socket diagnosis failed, asking who connected");
            Process::open(connected).filter(|process| process.pid() != own).into_iter().collect()
        }
    };
    holders.sort_by_key(|process| process.pid() != connected);
    Some(holders)
}

/// Whether a process has it open: in the table of its main thread, or in one that another thread
/// made its own (`unshare(CLONE_FILES)`).
pub(crate) fn has_open(pid: i32, link: &str) -> bool {
    is_in_table(pid, pid, link) || is_in_tables_of_threads(pid, link)
}

fn is_in_table(pid: i32, thread: i32, link: &str) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task/{thread}/fd")) else { return false };
    entries
        .flatten()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == link))
}

fn is_in_tables_of_threads(pid: i32, link: &str) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut read = 0;
    threads
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|thread| *thread != pid)
        // A kernel without kcmp has every table read.
        .filter(|thread| !sys::share_descriptors(pid, *thread).unwrap_or(false))
        .take_while(|_| {
            read += 1;
            read <= TABLES
        })
        .any(|thread| is_in_table(pid, thread, link))
}

/// Inode of the socket that `socket` is connected to.
pub(crate) fn other_end(socket: OwnedFd) -> io::Result<u32> {
    let inode = u32::try_from(fstat(&socket)?.st_ino).map_err(io::Error::other)?;
    let namespace = sys::network_of(socket.as_fd())?;
    // A namespace is entered by a thread; this one must stay where it is.
    std::thread::scope(|scope| {
        let asked = scope.spawn(move || -> io::Result<u32> {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            ask(inode)
        });
        asked.join().map_err(|_| io::Error::other("the thread panicked"))?
    })
}

fn ask(inode: u32) -> io::Result<u32> {
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkSockDiag,
    )?;
    send(netlink.as_raw_fd(), &request(inode), MsgFlags::empty())?;
    let mut answer = [0; 4096];
    let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT)?;
    parse(answer.get(..length).unwrap_or_default())
}

/// `struct nlmsghdr` and `struct unix_diag_req`.
fn request(inode: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40);
    bytes.extend(40_u32.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    // Family, protocol, padding; then states, inode, what to show, and no cookie.
    bytes.extend([AddressFamily::Unix as u8, 0, 0, 0]);
    for word in [u32::MAX, inode, UDIAG_SHOW_PEER, u32::MAX, u32::MAX] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes
}

fn parse(answer: &[u8]) -> io::Result<u32> {
    let u16_at = |at: usize| answer.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes);
    let u32_at = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    if u16_at(4) == Some(NLMSG_ERROR) {
        let errno = u32_at(HEADER).unwrap_or_default().cast_signed();
        return Err(io::Error::from_raw_os_error(-errno));
    }
    let mut at = HEADER + DIAG;
    while let (Some(length), Some(kind)) = (u16_at(at), u16_at(at + 2)) {
        if kind == UNIX_DIAG_PEER {
            return u32_at(at + 4).ok_or_else(|| io::Error::other("the answer is cut off"));
        }
        at += usize::from(length.max(4)).next_multiple_of(4);
    }
    // Its other end is closed, or waits to be accepted.
    Err(io::Error::from(io::ErrorKind::NotConnected))
}

/// Descriptor and inode of each socket of a process.
pub(crate) fn sockets(process: &Process) -> Vec<(i32, u64)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{}/fd", process.pid())) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let link = fs::read_link(entry.path()).ok()?;
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, inode))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn an_answer_that_is_an_error_or_cut_off_is_an_error() {
        let mut error = vec![0; 36];
        error[4] = 2;
        error[16..20].copy_from_slice(&(-2_i32).to_ne_bytes());
        assert_eq!(parse(&error).unwrap_err().raw_os_error(), Some(2));
        assert!(parse(&[]).is_err());
        let mut answer = vec![0; 32];
        answer.extend([5, 0, 6, 0, 1, 0, 0, 0]);
        answer.extend([8, 0, 2, 0]);
        assert!(parse(&answer).is_err());
        answer.extend(77_u32.to_ne_bytes());
        assert_eq!(parse(&answer).unwrap(), 77);
    }
}
