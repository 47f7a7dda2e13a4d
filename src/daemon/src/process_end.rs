//! Waiting for the end of a process, naming one to people, and what a received pidfd refers to.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use mpsgate_host::process::Process;
pub(crate) use mpsgate_host::process::{
    ProcessId, counts_as_we_do, find, identify, is_alive, is_seen, parent, real_uid, shown,
    ticks_now, uid,
};
use mpsgate_host::procfs;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How often the end of a process is looked for where the kernel has no pidfds (before 5.3).
const POLL: Duration = Duration::from_millis(50);

/// Whether a process has mapped a file whose path begins so (proc_pid_maps(5)); `None` where that
/// is not to be seen.
pub(crate) fn maps_file(pid: u32, beginning: &str) -> Option<bool> {
    let maps = shown(pid, |thread| procfs::text(thread.join("maps")).ok())?;
    Some(mapped(&maps).any(|path| path.starts_with(beginning)))
}

/// The paths of the files that a process has mapped, by the text of its `maps`. A mapping that is
/// no file's may have a name, too, in brackets.
pub(crate) fn mapped(maps: &str) -> impl Iterator<Item = &str> {
    let names = maps.lines().filter_map(|line| line.splitn(6, ' ').nth(5));
    names.map(str::trim_start).filter(|name| name.starts_with('/'))
}

/// A process for messages, which may have ended: what has its pid now is not named for it.
pub(crate) fn describe_it(process: &ProcessId) -> String {
    let words = describe(process.pid);
    // Afterwards: what is alive now was so then.
    if is_seen(process) { words } else { format!("pid {} (ended)", process.pid) }
}

/// The name of a process for messages: `pid 12 (sleep)`. Never its arguments: what is said here is
/// in the log, in other tenants' refusals and on the node's object, and people pass passwords as
/// arguments. A title that a process gives itself (`setproctitle`) is in the place of the
/// arguments, so the first of them is not shown either.
pub(crate) fn describe(pid: u32) -> String {
    let text = command(pid);
    if text.is_empty() { format!("pid {pid}") } else { format!("pid {pid} ({text})") }
}

/// Its short name (proc_pid_comm(5)), which it can choose: at most 15 bytes; empty where it has
/// ended.
pub(crate) fn command(pid: u32) -> String {
    let name = procfs::text(format!("/proc/{pid}/comm")).unwrap_or_default();
    mpsgate_model::printable::plain(name.trim_end_matches('\n'))
}

/// A process whose end can be waited for.
#[derive(Debug)]
pub(crate) enum Watched {
    /// By descriptor.
    PidFd(OwnedFd),
    /// By looking again and again: the kernel has given no pidfd, or does not show it now.
    Polled(ProcessId),
    /// It has ended already.
    Gone,
}

impl Watched {
    pub(crate) fn open(process: &ProcessId) -> Self {
        match Process::open(process.pid).filter(|opened| opened.id() == *process) {
            // It cannot be read.
            None if is_alive(process) => Self::Polled(*process),
            None => Self::Gone,
            Some(opened) => opened.into_pidfd().map_or(Self::Polled(*process), Self::PidFd),
        }
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
    if let Err(error) = Watched::open(process).ended().await {
        log::warn!(pid = process.pid, reason:% = error; "process is polled");
        // `Polled` itself cannot fail.
        let _ = Watched::Polled(*process).ended().await;
    }
}

// JUSTIFICATION (1 block): tokio 1.54 has no safe way to wait for a descriptor of ours; its older,
// safe one is deprecated.
#[expect(unsafe_code, reason = "see the justification above")]
pub(crate) fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
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

/// Reads `fdinfo`. `None` where the descriptor is no pidfd, or one of a process that has ended or
/// that our pid namespace cannot see.
pub(crate) fn refers_to(fd: impl AsFd) -> Option<Referred> {
    let info = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    parse_fdinfo(&procfs::text(info).ok()?)
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
    use std::process::Command;

    use mpsgate_testing::Spawned;

    use super::*;

    fn sleeper() -> (Spawned, ProcessId) {
        let child = Spawned::new();
        let process = identify(child.pid()).unwrap();
        (child, process)
    }

    #[test]
    fn a_process_has_mapped_what_its_lines_end_with() {
        for (rest, path) in [
            ("r-xp 00001000 08:01 42          /usr/lib/libc.so.6", Some("/usr/lib/libc.so.6")),
            ("rw-s 00000000 00:1a 7 /dev/shm/x (deleted)", Some("/dev/shm/x (deleted)")),
            ("r--p 00000000 08:01 42   /a b/c", Some("/a b/c")),
            ("rw-p 00000000 00:00 0 ", None),
            ("rw-p 00000000 00:00 0", None),
            ("rw-p 00000000 00:00 0          [heap]", None),
            ("rw-p 00000000 00:00 0          [anon:/dev/shm/x]", None),
        ] {
            let line = format!("7f0000000000-7f0000001000 {rest}\n");
            assert_eq!(mapped(&line).next(), path, "{rest}");
        }
        assert_eq!(mapped("\nx\n1-2 r 0 0:0 1 /a\n3-4 r 0 0:0 1 /b\n").count(), 2);
    }

    #[test]
    fn a_process_with_another_start_time_is_another_process() {
        let (_child, process) = sleeper();
        assert!(is_alive(&process));
        let reused = ProcessId { start_time: process.start_time + 1, ..process };
        assert!(!is_alive(&reused));
        assert!(matches!(Watched::open(&reused), Watched::Gone));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_end_is_seen_with_and_without_pidfds_before_the_process_is_reaped() {
        let (mut child, process) = sleeper();
        let by_fd = Watched::open(&process);
        assert!(matches!(by_fd, Watched::PidFd(_)), "{by_fd:?}");
        let by_poll = Watched::Polled(process);
        child.kill();
        by_fd.ended().await.unwrap();
        by_poll.ended().await.unwrap();
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
        let (child, process) = sleeper();
        let Watched::PidFd(fd) = Watched::open(&process) else { panic!("no pidfd") };
        assert_eq!(refers_to(&fd).unwrap().pid, process.pid);
        drop(child);
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
