//! Processes, identified so that a reused pid is never taken for them: by start time, and by pidfd
//! where the kernel has them (since 5.3).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
pub use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::procfs;

/// USER_HZ is 100 on every architecture that has NVIDIA drivers.
const MS_PER_TICK: u64 = 10;

/// A process, identified so that a reused pid is not taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Pid in this process's pid namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot, field 22 of `/proc/<pid>/stat`.
    pub start_time: u64,
}

/// The living process `pid`; `None` where there is none, or all of its threads have ended.
///
/// # Errors
/// If it cannot be read, as when no more files can be opened: the process may live.
pub fn find(pid: u32) -> io::Result<Option<ProcessId>> {
    living(pid, Stat::read(Path::new(&format!("/proc/{pid}"))))
}

fn living(pid: u32, stat: io::Result<Stat>) -> io::Result<Option<ProcessId>> {
    match stat {
        Ok(stat) if stat.has_ended() => Ok(None),
        Ok(stat) => Ok(Some(ProcessId { pid, start_time: stat.start_time })),
        Err(error) if procfs::is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The living process `pid`, if it is seen. For callers that refuse or look again if it is not. A
/// caller that would take it for ended must use [`find`].
#[must_use]
pub fn identify(pid: u32) -> Option<ProcessId> {
    find(pid).ok().flatten()
}

/// Whether exactly this process lives. A process that cannot be read counts as living.
#[must_use]
pub fn is_alive(process: &ProcessId) -> bool {
    may_live(process, find(process.pid))
}

fn may_live(process: &ProcessId, found: io::Result<Option<ProcessId>>) -> bool {
    match found {
        Ok(found) => found == Some(*process),
        Err(_) => true,
    }
}

/// Whether exactly this process is seen to live. Callers ask before they signal or blame it, which
/// must never hit another process with its pid.
#[must_use]
pub fn is_seen(process: &ProcessId) -> bool {
    identify(process.pid) == Some(*process)
}

/// The most threads of one process that are looked at: a tenant can have thousands that have ended.
const THREADS: usize = 32;

/// What `look` finds in the `/proc` directory of a living process. If its first thread is ending or
/// has ended, the directory of another, living thread is used. The kernel shows no program, root,
/// environment, mounts and descriptors of an ended thread, only some namespaces, its former user
/// ids, and under v1 `/` for its cgroup. `None` if nothing is found, or if the first 32 threads
/// have all ended.
#[must_use]
pub fn shown<T>(pid: u32, look: impl Fn(&Path) -> Option<T>) -> Option<T> {
    let living = |thread: &Path| {
        let found = look(thread);
        // Read afterwards: a thread that is not ending now was not ending before.
        let stat = Stat::read(thread).ok()?;
        (!stat.is_exiting()).then_some(found)
    };
    let process = PathBuf::from(format!("/proc/{pid}"));
    let of_another = || {
        let threads = std::fs::read_dir(process.join("task")).ok()?;
        threads.flatten().take(THREADS).find_map(|thread| living(&thread.path()))
    };
    living(&process).or_else(of_another)?
}

/// The time since the process started.
#[must_use]
pub fn age(process: &ProcessId) -> Option<Duration> {
    let ticks = ticks_now()?.checked_sub(process.start_time)?;
    Some(Duration::from_millis(ticks.checked_mul(MS_PER_TICK)?))
}

/// The first of these files, or directories, that was changed while the process ran. By ages, not
/// times of day: the time of boot in `/proc/stat` is off where the clock was set since. Both are
/// known to a hundredth of a second: a process that was started in the same one may count as older.
#[must_use]
pub fn changed_since<'a>(
    process: &ProcessId,
    mut files: impl Iterator<Item = &'a Path>,
) -> Option<&'a Path> {
    let age = age(process)?;
    let unchanged =
        |path: &Path| SystemTime::now().duration_since(path.metadata().ok()?.modified().ok()?).ok();
    files.find(|path| unchanged(path).is_some_and(|unchanged| age > unchanged))
}

/// The parent of a process; `None` if that is init, or cannot be seen.
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    Some(Stat::of(pid)?.parent).filter(|parent| *parent > 1)
}

/// Fields of proc_pid_stat(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Its state, as `S` or `Z`.
    pub state: char,
    /// Its parent's pid; 0 for a parent that this process cannot see.
    pub parent: u32,
    /// The device of its terminal (`tty_nr`); 0 where it has none.
    pub terminal: i32,
    /// Its flags, or those of its first thread.
    pub flags: u64,
    /// How many threads it has. The first one counts even if it has ended before others.
    pub threads: u32,
    /// See [`ProcessId::start_time`].
    pub start_time: u64,
}

/// `PF_EXITING` of linux/sched.h: a thread has it from the first step of its end.
const EXITING: u64 = 4;

impl Stat {
    /// The fields of a process, which may be a zombie.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        Self::read(Path::new(&format!("/proc/{pid}"))).ok()
    }

    /// Reads the fields of the process or thread with this directory of `/proc`.
    fn read(directory: &Path) -> io::Result<Self> {
        let text = procfs::text(directory.join("stat"))?;
        Self::parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// The fields after the name, which may itself contain spaces and brackets.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        // The parent is field 4.
        let terminal = fields.nth(7 - 5)?.parse().ok()?;
        let flags = fields.nth(9 - 8)?.parse().ok()?;
        let threads = fields.nth(20 - 10)?.parse().ok()?;
        let start_time = fields.nth(22 - 21)?.parse().ok()?;
        Some(Self { state, parent, terminal, flags, threads, start_time })
    }

    /// Whether the process has ended and only its parent has not waited for it. A process lives
    /// until the last of its threads has ended; the first one is a zombie until then.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1
    }

    /// Whether this thread, or the first one of this process, is ending or has ended.
    #[must_use]
    pub fn is_exiting(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') || self.flags & EXITING != 0
    }
}

/// A process that was alive when it was opened. A signal never reaches another one.
#[derive(Debug)]
pub struct Process {
    id: ProcessId,
    pidfd: Option<OwnedFd>,
}

impl Process {
    /// `None` when no such process lives (a zombie does not).
    ///
    /// # Errors
    /// If it cannot be read: the process may live.
    pub fn find(pid: u32) -> io::Result<Option<Self>> {
        let Some(raw) = raw(pid) else { return Ok(None) };
        // The pidfd first: if the start time can then be read, both belong to the same process.
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).ok();
        Ok(find(pid)?.map(|id| Self { id, pidfd }))
    }

    /// The same, if it is seen: see [`identify`].
    #[must_use]
    pub fn open(pid: u32) -> Option<Self> {
        Self::find(pid).ok().flatten()
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Sends a signal; a process that is gone counts as signalled.
    ///
    /// # Errors
    /// The kernel's error, usually `EPERM`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let sent = match (&self.pidfd, raw(self.id.pid)) {
            (Some(fd), _) => pidfd_send_signal(fd, signal),
            (None, Some(pid)) if is_seen(&self.id) => kill_process(pid, signal),
            (None, _) => Ok(()),
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Its pidfd, if the kernel has them.
    #[must_use]
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// The same, as an owner.
    #[must_use]
    pub fn into_pidfd(self) -> Option<OwnedFd> {
        self.pidfd
    }
}

fn raw(pid: u32) -> Option<Pid> {
    Pid::from_raw(pid.try_into().ok()?)
}

/// Pids of all processes that this process can see.
#[must_use]
pub fn all() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The effective uid of a process.
#[must_use]
pub fn uid(pid: u32) -> Option<u32> {
    uids(pid).map(|[_, effective, ..]| effective)
}

/// Whether all four user ids of a process are this one: those of a set-user-ID program include its
/// caller's.
#[must_use]
pub fn is_of(pid: u32, uid: u32) -> bool {
    uids(pid) == Some([uid; 4])
}

/// The real uid of a process: that of its user, whatever it executes.
#[must_use]
pub fn real_uid(pid: u32) -> Option<u32> {
    uids(pid).map(|[real, ..]| real)
}

fn uids(pid: u32) -> Option<[u32; 4]> {
    let look = |thread: &Path| parse_uids(&procfs::text(thread.join("status")).ok()?);
    // A process that is ending shows the user ids that it had.
    shown(pid, look).or_else(|| look(&PathBuf::from(format!("/proc/{pid}"))))
}

/// The user ids in proc_pid_status(5): real, effective, saved and of the file system.
pub(crate) fn parse_uids(status: &str) -> Option<[u32; 4]> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut numbers = line.split_ascii_whitespace().map_while(|word| word.parse().ok());
    Some([numbers.next()?, numbers.next()?, numbers.next()?, numbers.next()?])
}

/// Whether a process is in this process's pid namespace, so that both count pids alike. The kernel
/// shows this namespace of an ended thread, too.
#[must_use]
pub fn counts_as_we_do(pid: u32) -> bool {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/pid")).ok();
    let own = namespace("self");
    own.is_some() && namespace(&pid.to_string()) == own
}

/// The current time in ticks since boot, as start times count it: a process that starts after this
/// call has this value or a later one.
#[must_use]
pub fn ticks_now() -> Option<u64> {
    ticks(&procfs::text("/proc/uptime").ok()?)
}

/// Reads proc_uptime(5): seconds with two digits after the point.
fn ticks(uptime: &str) -> Option<u64> {
    let (seconds, rest) = uptime.split_once('.')?;
    let hundredths: u64 = rest.get(..2)?.parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(100)?.checked_add(hundredths)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_testing::Spawned;

    use super::*;

    fn sleeper() -> (Spawned, ProcessId) {
        let child = Spawned::new();
        let process = identify(child.pid()).unwrap();
        (child, process)
    }

    #[test]
    fn ticks_count_as_start_times_do() {
        assert_eq!(ticks("12345.67 99.00\n"), Some(1_234_567));
        assert_eq!(ticks("12345"), None);
        let before = ticks_now().unwrap();
        let (_child, process) = sleeper();
        let after = ticks_now().unwrap();
        assert!(age(&process).unwrap() < Duration::from_secs(600));
        assert!((before..=after).contains(&process.start_time), "{before} {process:?} {after}");
    }

    #[test]
    fn reads_the_start_time_behind_any_name_and_knows_a_zombie() {
        let fields = |flags: u64, threads: u32| {
            format!("2 3 4 5 6 {flags} 8 9 10 11 12 13 14 15 16 17 {threads} 19 4711 20")
        };
        let stat = Stat::parse(&format!("7 (a) b (c)) S {}", fields(7 << 8, 18))).unwrap();
        let expected = Stat {
            state: 'S',
            parent: 2,
            terminal: 5,
            flags: 7 << 8,
            threads: 18,
            start_time: 4711,
        };
        assert_eq!(stat, expected);
        for (state, flags, threads, has_ended, is_exiting) in [
            ('S', 0, 1, false, false),
            ('R', EXITING, 1, false, true),
            ('Z', EXITING, 1, true, true),
            ('Z', EXITING, 0, true, true),
            // The first thread has ended before another one.
            ('Z', EXITING, 2, false, true),
        ] {
            let stat = Stat::parse(&format!("7 (a) {state} {}", fields(flags, threads))).unwrap();
            assert_eq!((stat.has_ended(), stat.is_exiting()), (has_ended, is_exiting), "{stat:?}");
        }
        assert_eq!(Stat::parse("7 (a) S 1"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_process_with_another_start_time_is_another_process() {
        let (_child, process) = sleeper();
        assert!(is_alive(&process));
        assert!(!is_alive(&ProcessId { start_time: process.start_time + 1, ..process }));
    }

    #[test]
    fn a_zombie_counts_as_gone() {
        let (child, id) = sleeper();
        let process = Process::open(id.pid).unwrap();
        assert!(process.id() == id && process.pidfd().is_some());
        process.signal(Signal::KILL).unwrap();
        let gone = || !is_alive(&id);
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while !gone() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        assert!(gone() && Process::open(id.pid).is_none());
        drop(child);
        process.signal(Signal::KILL).unwrap();
    }

    /// The kernel's own answers, on which this module is built.
    #[test]
    fn a_process_lives_on_when_its_first_thread_has_ended() {
        let mut child = Spawned::leaderless();
        let pid = child.pid();
        let stat = Stat::of(pid).unwrap();
        assert!(stat.state == 'Z' && stat.threads == 2 && stat.is_exiting(), "{stat:?}");
        let id = identify(pid).unwrap();
        let process = Process::open(pid).unwrap();
        assert!(is_alive(&id) && process.id() == id && process.pidfd().is_some());
        let link = |thread: &Path| std::fs::read_link(thread.join("exe")).ok();
        assert_eq!(link(Path::new(&format!("/proc/{pid}"))), None, "what a leader shows");
        assert!(shown(pid, link).unwrap().ends_with("cuda-client"));
        let own = crate::cgroup::text_of(std::process::id()).unwrap();
        assert_eq!(crate::cgroup::text_of(pid), Some(own));
        assert_eq!(uid(pid), uid(std::process::id()));
        assert!(counts_as_we_do(pid));
        process.signal(Signal::KILL).unwrap();
        child.0.wait().unwrap();
        assert!(!is_alive(&id) && shown(pid, link).is_none());
    }

    /// The kernel writes the name as it is, and the process chooses it.
    #[test]
    fn a_process_whose_name_is_no_text_is_a_process_like_others() {
        let child = Spawned::renamed();
        let pid = child.pid();
        let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap();
        assert!(String::from_utf8(stat).is_err(), "what the kernel shows");
        let id = identify(pid).unwrap();
        assert!(is_alive(&id) && is_seen(&id) && Process::open(pid).unwrap().id() == id);
        let own = std::process::id();
        assert_eq!((uid(pid), parent(pid)), (uid(own), Some(own)));
        assert_eq!(crate::cgroup::text_of(pid), crate::cgroup::text_of(own));
        assert!(shown(pid, |thread| std::fs::read_link(thread.join("exe")).ok()).is_some());
        // Any bytes, and a text that looks like the end of a name.
        let raw = b"7 (\xff) Z 9 (\n) S 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 1 19 4711 20";
        let stat = Stat::parse(&String::from_utf8_lossy(raw));
        assert_eq!(stat.map(|stat| (stat.state, stat.start_time)), Some(('S', 4711)));
    }

    #[test]
    fn what_cannot_be_read_has_not_ended_and_is_not_seen() {
        let (child, process) = sleeper();
        let found = |errno: Errno| living(process.pid, Err(io::Error::from(errno)));
        for errno in [Errno::MFILE, Errno::NOMEM, Errno::ACCESS] {
            assert!(found(errno).is_err() && may_live(&process, found(errno)), "{errno}");
        }
        let torn = || living(process.pid, Err(io::ErrorKind::InvalidData.into()));
        assert!(torn().is_err() && may_live(&process, torn()), "a torn line");
        for errno in [Errno::NOENT, Errno::SRCH] {
            assert_eq!(found(errno).unwrap(), None, "{errno}");
            assert!(!may_live(&process, found(errno)), "{errno}");
        }
        let stat = Stat::of(process.pid).unwrap();
        assert_eq!(living(process.pid, Ok(stat)).unwrap(), Some(process));
        assert_eq!(living(process.pid, Ok(Stat { state: 'Z', ..stat })).unwrap(), None);
        let pid = process.pid;
        assert_eq!(find(pid).unwrap(), Some(process));
        assert_eq!(Process::find(pid).unwrap().map(|found| found.id()), Some(process));
        drop(child);
        assert!(find(pid).unwrap().is_none_or(|other| other != process));
        assert!(Process::find(0).unwrap().is_none(), "the kernel's name for one not to be seen");
        assert!(!is_seen(&ProcessId { start_time: process.start_time + 1, ..process }));
    }

    #[test]
    fn we_are_in_our_own_pid_namespace_with_our_own_uid() {
        let own = std::process::id();
        assert!(counts_as_we_do(own) && all().contains(&own));
        assert_eq!(uid(own), Some(rustix::process::geteuid().as_raw()));
    }
}
