//! A control daemon's descriptors and connections as the kernel shows them: how many there are, who
//! made each, whether its other end is gone, and its end by our hand.
//!
//! A word that the daemon does not know costs it the connection's descriptor for ever, also when
//! the client has gone (measured, 535 and 550): such a connection is over, and stays. One that a
//! living client keeps is never over.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, getsockopt, shutdown, sockopt};
use nix::sys::stat::fstat;

use crate::instance::{ControlDaemon, MpsInstance};
use crate::process::Process;
use crate::sys;

/// Connections that one count looks at: in a flood it must not take longer than the flood. The
/// others' turn comes with the next.
const LOOKED_AT: usize = 320;

/// Between two looks for the next connection, and between two at the numbers that are free: those
/// of connections that have ended are, again.
const PROBE: Duration = Duration::from_micros(100);
const ROUND: Duration = Duration::from_millis(20);

/// Who connected, and lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maker {
    /// Its pid, as our pid namespace counts.
    pub pid: i32,
    /// The uid that it connected with.
    pub uid: u32,
}

/// An accepted connection of a control daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The inode of the daemon's end: names it for as long as it is there.
    pub inode: u64,
    /// `None` where whoever connected has ended, or cannot be told.
    pub maker: Option<Maker>,
    /// The network namespace that it was made in, by inode.
    pub network: Option<u64>,
    /// The other end is gone.
    pub over: bool,
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

/// What a control daemon has open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptors {
    /// All of them.
    pub used: u64,
    /// How many it may have.
    pub limit: u64,
    /// Inodes of all its sockets.
    pub sockets: BTreeSet<u64>,
    /// Its connections, but for those that were not to be looked at.
    pub connections: Vec<Connection>,
}

impl MpsInstance {
    /// Counts what the daemon has open; looks at each connection that is not in `skip`. Costs
    /// microseconds for each, and says nothing to the daemon.
    ///
    /// # Errors
    /// What the kernel says, usually that the daemon has ended.
    pub fn descriptors(
        &self,
        daemon: &ControlDaemon,
        skip: &BTreeSet<u64>,
    ) -> io::Result<Descriptors> {
        let process = &daemon.process;
        let (used, limit) = (self.descriptors_open(daemon)?, self.descriptor_limit(daemon)?);
        let found = sockets(process);
        let connections = found
            .iter()
            .filter(|(_, inode)| !skip.contains(inode))
            .take(LOOKED_AT)
            .filter_map(|(fd, inode)| Connection::look(&open(process, *fd, *inode)?, *inode))
            .collect();
        Ok(Descriptors {
            used,
            limit,
            sockets: found.into_iter().map(|(_, inode)| inode).collect(),
            connections,
        })
    }

    /// How many descriptors the daemon has open: microseconds, and all that is looked at while they
    /// are few.
    ///
    /// # Errors
    /// What the kernel says, usually that the daemon has ended.
    pub fn descriptors_open(&self, daemon: &ControlDaemon) -> io::Result<u64> {
        let fds = format!("/proc/{}/fd", daemon.process.pid());
        // The directory's size is their number since Linux 6.2, and 0 before.
        match fs::metadata(&fds)?.len() {
            0 => Ok(u64::try_from(fs::read_dir(fds)?.count()).unwrap_or(u64::MAX)),
            open => Ok(open),
        }
    }

    /// How many it may have open.
    ///
    /// # Errors
    /// As above.
    pub fn descriptor_limit(&self, daemon: &ControlDaemon) -> io::Result<u64> {
        limit_of(&daemon.process)
    }

    /// Waits for the connections that the daemon takes next, and gives each to `sees` at once,
    /// while whoever made it lives: a count comes too late for processes that connect and end. A
    /// new connection has the lowest free number, so nothing else is looked at.
    pub fn watch_connections(
        &self,
        daemon: &ControlDaemon,
        time: Duration,
        mut sees: impl FnMut(&Connection),
    ) {
        let process = &daemon.process;
        let until = Instant::now() + time;
        let mut known = BTreeSet::new();
        while Instant::now() < until {
            let Ok(mut free) = FreeNumbers::of(process) else { return };
            let round = (Instant::now() + ROUND).min(until);
            while Instant::now() < round {
                std::thread::sleep(PROBE);
                while let Some(socket) =
                    process.pidfd().and_then(|pidfd| sys::pidfd_getfd(pidfd, free.lowest()).ok())
                {
                    free.take();
                    let Ok(inode) = fstat(&socket).map(|stat| stat.st_ino) else { continue };
                    if known.insert(inode)
                        && let Some(connection) = Connection::look(&socket, inode)
                    {
                        sees(&connection);
                    }
                }
            }
        }
    }

    /// The daemon's open sockets now.
    #[must_use]
    pub fn connections(&self, daemon: &ControlDaemon) -> Connections {
        Connections(sockets(&daemon.process).into_iter().map(|(_, inode)| inode).collect())
    }

    /// The connection of the descriptor that the daemon waits for, or all that are not `known`:
    /// servers that made one, and the connections of others that are not over.
    pub(crate) fn suspects(
        &self,
        daemon: &ControlDaemon,
        waits_for: Option<i32>,
        known: &Connections,
    ) -> (Vec<i32>, Vec<Connection>) {
        let process = &daemon.process;
        let alive: Vec<i32> = self.servers_alive().iter().map(Process::pid).collect();
        let (mut servers, mut others) = (Vec::new(), Vec::new());
        for (fd, inode) in sockets(process) {
            if waits_for.map_or_else(|| known.contains(inode), |only| fd != only) {
                continue;
            }
            let Some(socket) = open(process, fd, inode) else { continue };
            // A server is known to be one, whatever uid it has taken since it connected.
            let by = getsockopt(&socket, sockopt::PeerCredentials).ok().map(|who| who.pid());
            // A pair of its own, if it has one.
            if by == Some(process.pid()) {
                continue;
            }
            if let Some(server) = by.filter(|pid| alive.contains(pid)) {
                servers.push(server);
            } else if let Some(connection) =
                Connection::look(&socket, inode).filter(|connection| !connection.over)
            {
                others.push(connection);
            }
        }
        others.sort_by_key(|connection| connection.inode);
        (servers, others)
    }

    /// Ends a connection at the daemon's own end, whoever holds the other one. `false` where it is
    /// not there any more.
    #[must_use]
    pub fn cut(&self, daemon: &ControlDaemon, inode: u64) -> bool {
        let process = &daemon.process;
        let found = sockets(process).into_iter().find(|(_, of)| *of == inode);
        let socket = found.and_then(|(fd, inode)| open(process, fd, inode));
        socket.is_some_and(|socket| {
            !getsockopt(&socket, sockopt::AcceptConn).unwrap_or(true)
                && shutdown(socket.as_raw_fd(), Shutdown::Both).is_ok()
        })
    }
}

impl Connection {
    /// `None` for a socket that listens.
    fn look(socket: &OwnedFd, inode: u64) -> Option<Self> {
        if getsockopt(socket, sockopt::AcceptConn).ok()? {
            return None;
        }
        Some(Self {
            inode,
            maker: maker(socket),
            network: sys::network_of(socket.as_fd())
                .ok()
                .and_then(|network| Some(fstat(&network).ok()?.st_ino)),
            over: is_over(socket),
        })
    }
}

/// Descriptor and inode of each socket of a process.
fn sockets(process: &Process) -> Vec<(i32, u64)> {
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

/// Who connected. A pid may be another process's by now: kernels from 6.5 on give a descriptor for
/// the very process; on older ones the uid has to fit at least.
fn maker(socket: &OwnedFd) -> Option<Maker> {
    let credentials = getsockopt(socket, sockopt::PeerCredentials).ok()?;
    let maker = Maker { pid: credentials.pid(), uid: credentials.uid() };
    match sys::peer_pidfd(socket.as_fd()) {
        Ok(pidfd) => {
            let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
            let info = fs::read_to_string(path).ok()?;
            (pid_of(&info) == Some(maker.pid)).then_some(maker)
        }
        Err(error) if error.raw_os_error() == Some(nix::libc::ENOPROTOOPT) => {
            let lives = Process::open(maker.pid)?;
            (lives.uid() == Some(maker.uid)).then_some(maker)
        }
        Err(_) => None,
    }
}

/// The pid in what the kernel tells of a pidfd; `None` where its process has ended.
fn pid_of(info: &str) -> Option<i32> {
    let line = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    line.trim().parse().ok().filter(|pid| *pid > 0)
}

fn is_over(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO).is_ok()
        && fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

/// A copy of the daemon's descriptor, where it still is what it was seen to be.
fn open(process: &Process, fd: i32, inode: u64) -> Option<OwnedFd> {
    let socket = sys::pidfd_getfd(process.pidfd()?, fd).ok()?;
    (fstat(&socket).ok()?.st_ino == inode).then_some(socket)
}

/// Numbers of descriptors that a process has not given away, from the lowest on.
struct FreeNumbers {
    taken: BTreeSet<i32>,
    lowest: i32,
}

impl FreeNumbers {
    fn of(process: &Process) -> io::Result<Self> {
        let entries = fs::read_dir(format!("/proc/{}/fd", process.pid()))?;
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        Ok(Self::without(entries.flatten().filter_map(number).collect()))
    }

    fn without(taken: BTreeSet<i32>) -> Self {
        let mut numbers = Self { taken, lowest: -1 };
        numbers.take();
        numbers
    }

    fn lowest(&self) -> i32 {
        self.lowest
    }

    /// The lowest is in use now.
    fn take(&mut self) {
        self.lowest += 1;
        while self.taken.contains(&self.lowest) {
            self.lowest += 1;
        }
    }
}

/// How many descriptors a process may have.
fn limit_of(process: &Process) -> io::Result<u64> {
    let limits = fs::read_to_string(format!("/proc/{}/limits", process.pid()))?;
    Ok(open_files(&limits).unwrap_or(u64::MAX))
}

/// The soft limit in `/proc/PID/limits`; `None` where there is none.
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_descriptor_has_the_lowest_free_number() {
        let mut free = FreeNumbers::without([0, 1, 2, 4, 5].into());
        let mut next = Vec::new();
        for _ in 0..3 {
            next.push(free.lowest());
            free.take();
        }
        assert_eq!(next, [3, 6, 7]);
        assert_eq!(FreeNumbers::without(BTreeSet::new()).lowest(), 0);
    }

    #[test]
    fn reads_the_limit_of_open_files() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max processes             63459                63459                processes\n\
                      Max open files            16384                524288               files\n";
        assert_eq!(open_files(limits), Some(16384));
        assert_eq!(open_files("Max open files            unlimited   unlimited   files\n"), None);
        assert_eq!(open_files(""), None);
    }

    #[test]
    fn a_pidfd_of_a_process_that_has_ended_names_nobody() {
        assert_eq!(pid_of("pos:\t0\nflags:\t02\nPid:\t77\nNSpid:\t77\n"), Some(77));
        for ended in ["Pid:\t-1\nNSpid:\t-1\n", "Pid:\t0\n", "flags:\t02\n", ""] {
            assert_eq!(pid_of(ended), None, "{ended}");
        }
    }
}
