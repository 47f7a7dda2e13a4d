//! Processes, named so that a reused pid is never taken for one: pidfds, and start times beside them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use mpsgate_model::ledger::ProcessId;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How often the end of a process is looked for where the kernel has no pidfds (before 5.3).
const POLL: Duration = Duration::from_millis(50);

/// The living process `pid`; `None` where there is none, or a zombie.
pub(crate) fn identify(pid: u32) -> Option<ProcessId> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(ProcessId { pid, start_time: start_time(&stat)? })
}

/// Whether exactly this process lives.
pub(crate) fn is_alive(process: &ProcessId) -> bool {
    identify(process.pid).is_some_and(|now| now == *process)
}

/// Field 22 of proc_pid_stat(5), `None` for a process that has ended. The name in field 2 may itself
/// hold spaces and brackets.
pub(crate) fn start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The moment in ticks since boot, as start times count it: a process that starts from now on has
/// this one or a later one. USER_HZ is 100 on every architecture that has NVIDIA drivers.
pub(crate) fn ticks_now() -> Option<u64> {
    ticks(&std::fs::read_to_string("/proc/uptime").ok()?)
}

/// Of proc_uptime(5): seconds with two digits behind the point.
fn ticks(uptime: &str) -> Option<u64> {
    let (seconds, rest) = uptime.split_once('.')?;
    let hundredths: u64 = rest.get(..2)?.parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(100)?.checked_add(hundredths)
}

/// The parent of a living process: field 4.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok().filter(|parent| *parent > 1)
}

/// The effective uid of a process.
pub(crate) fn uid(pid: u32) -> Option<u32> {
    effective_uid(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// Of `/proc/PID/status`: real, effective, saved and of the file system.
fn effective_uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Whether a process is in our own pid namespace, so that its pids are ours.
pub(crate) fn counts_as_we_do(pid: u32) -> bool {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/pid")).ok();
    let own = namespace("self");
    own.is_some() && namespace(&pid.to_string()) == own
}

/// Whether a process has mapped a file whose path begins so (proc_pid_maps(5)); `None` where that is not to be seen.
pub(crate) fn maps_file(pid: i32, beginning: &str) -> Option<bool> {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let path = |line: &str| line.find('/').map(|at| line[at..].starts_with(beginning));
    Some(maps.lines().filter_map(path).any(|is_it| is_it))
}

/// The name of a process for messages: `pid 12 (sleep)`. Never its arguments: what is said here is in the log, in other
/// tenants' refusals and on the node's object, and people pass passwords as arguments. A title that a process gives itself
/// (`setproctitle`) is in the place of the arguments, so the first of them is not shown either.
pub(crate) fn describe(pid: u32) -> String {
    let text = command(pid);
    if text.is_empty() { format!("pid {pid}") } else { format!("pid {pid} ({text})") }
}

/// Its short name (proc_pid_comm(5)), which it can choose: at most 15 bytes; empty where it has ended.
pub(crate) fn command(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    mpsgate_model::printable::plain(String::from_utf8_lossy(&name).trim_end_matches('\n'))
}

/// A process whose end can be waited for.
#[derive(Debug)]
pub(crate) enum Watched {
    /// By descriptor.
    PidFd(OwnedFd),
    /// By looking again and again: the kernel has no pidfds.
    Polled(ProcessId),
    /// It has ended already.
    Gone,
}

impl Watched {
    /// Opens `process`. The descriptor comes first: if the start time is then still the same, both
    /// mean one process.
    pub(crate) fn open(process: &ProcessId) -> io::Result<Self> {
        let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else {
            return Ok(Self::Gone);
        };
        let watched = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Self::PidFd(fd),
            Err(Errno::NOSYS) => Self::Polled(*process),
            Err(Errno::SRCH) => Self::Gone,
            Err(errno) => return Err(errno.into()),
        };
        Ok(if is_alive(process) { watched } else { Self::Gone })
    }

    /// Waits for the end.
    pub(crate) async fn ended(self) -> io::Result<()> {
        match self {
            Self::Gone => Ok(()),
            Self::PidFd(fd) => register(fd)?.readable().await.map(drop),
            Self::Polled(process) => {
                while is_alive(&process) {
                    tokio::time::sleep(POLL).await;
                }
                Ok(())
            }
        }
    }
}

/// Waits for the end of a process; by polling where a descriptor cannot be had.
pub(crate) async fn ended(process: &ProcessId) {
    let watched = Watched::open(process).unwrap_or_else(|error| {
        log::warn!(pid = process.pid, reason:% = error; "process is polled");
        Watched::Polled(*process)
    });
    if let Err(error) = watched.ended().await {
        log::warn!(pid = process.pid, reason:% = error; "process is polled");
        // `Polled` itself cannot fail.
        let _ = Watched::Polled(*process).ended().await;
    }
}

// JUSTIFICATION (1 block): tokio 1.54 has no safe way to wait for a descriptor of ours; its older,
// safe one is deprecated.
#[expect(unsafe_code, reason = "see the justification above")]
fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open, always gives the same number, and is moved into the `AsyncFd`,
    // which never hands it out for writing.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// What a received pidfd refers to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Referred {
    /// Its pid in our own pid namespace.
    pub(crate) pid: u32,
    /// The same process as the pid namespaces below ours count it, outermost first.
    pub(crate) nested: Vec<u32>,
}

/// Reads `fdinfo`. `None` where the descriptor is no pidfd, or one of a process that has ended or that
/// our pid namespace cannot see.
pub(crate) fn refers_to(fd: impl AsFd) -> Option<Referred> {
    let info = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    parse_fdinfo(&std::fs::read_to_string(info).ok()?)
}

pub(crate) fn parse_fdinfo(text: &str) -> Option<Referred> {
    let field = |name| text.lines().find_map(|line| line.strip_prefix(name));
    // 0: of another pid namespace. -1: ended.
    let pid = field("Pid:")?.trim().parse::<u32>().ok().filter(|pid| *pid != 0)?;
    let nested = field("NSpid:").unwrap_or_default();
    Some(Referred {
        pid,
        nested: nested.split_ascii_whitespace().filter_map(|p| p.parse().ok()).collect(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    #![allow(clippy::disallowed_types, reason = "the tests start processes to look at")]
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> (Child, ProcessId) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = identify(child.id()).unwrap();
        (child, process)
    }

    #[test]
    fn ticks_count_as_start_times_do() {
        assert_eq!(ticks("12345.67 99.00\n"), Some(1_234_567));
        assert_eq!(ticks("12345"), None);
        let before = ticks_now().unwrap();
        let (mut child, process) = sleeper();
        let after = ticks_now().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!((before..=after).contains(&process.start_time), "{before} {process:?} {after}");
    }

    #[test]
    fn reads_the_start_time_behind_any_name_and_none_of_a_zombie() {
        let fields = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(start_time(&format!("7 (a) b (c)) S {fields}")), Some(4711));
        assert_eq!(start_time(&format!("7 (a) Z {fields}")), None);
        assert_eq!(start_time("7 (a) S 1"), None);
        assert_eq!(start_time(""), None);
    }

    #[test]
    fn a_process_with_another_start_time_is_another_process() {
        let (mut child, process) = sleeper();
        assert!(is_alive(&process));
        let reused = ProcessId { start_time: process.start_time + 1, ..process };
        assert!(!is_alive(&reused));
        assert!(matches!(Watched::open(&reused).unwrap(), Watched::Gone));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_end_is_seen_with_and_without_pidfds_before_the_process_is_reaped() {
        let (mut child, process) = sleeper();
        let by_fd = Watched::open(&process).unwrap();
        assert!(matches!(by_fd, Watched::PidFd(_)), "{by_fd:?}");
        let by_poll = Watched::Polled(process);
        child.kill().unwrap();
        by_fd.ended().await.unwrap();
        by_poll.ended().await.unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_named_without_what_it_was_told() {
        let mut child = Command::new("sleep").args(["1000", "0.0"]).spawn().unwrap();
        // Until then it is a copy of this test.
        while command(child.id()) != "sleep" {
            std::thread::yield_now();
        }
        assert_eq!(describe(child.id()), format!("pid {} (sleep)", child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(describe(child.id()), format!("pid {}", child.id()));
        // This test's own thread may be called anything.
        let named = || std::fs::write("/proc/self/comm", "a\x1b[2J\nb\u{9b}").unwrap();
        named();
        assert_eq!(command(std::process::id()), "a�[2J�b�");
    }

    #[test]
    fn knows_what_a_pidfd_refers_to() {
        let (mut child, process) = sleeper();
        let Watched::PidFd(fd) = Watched::open(&process).unwrap() else { panic!("no pidfd") };
        assert_eq!(refers_to(&fd).unwrap().pid, process.pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(refers_to(&fd), None, "a process that has ended");
        assert_eq!(refers_to(io::stderr()), None, "no pidfd");
    }

    #[test]
    fn a_process_of_a_foreign_pid_namespace_is_none() {
        assert_eq!(parse_fdinfo("pos:\t0\nPid:\t0\nNSpid:\t0\n"), None);
        assert_eq!(
            parse_fdinfo("pos:\t0\nflags:\t02000002\nPid:\t42\nNSpid:\t42\t7\n"),
            Some(Referred { pid: 42, nested: vec![42, 7] })
        );
    }
}
