//! A process, named so that a reused pid is never taken for it: pidfd where the kernel has one,
//! pid and start time elsewhere.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mpsgate_hold::Root;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::sys;

/// How often a wait looks again.
pub(crate) const POLL: Duration = Duration::from_millis(5);

/// A process that was alive when it was opened.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    start_ticks: u64,
    pidfd: Option<OwnedFd>,
}

impl Process {
    /// `None` when no such process lives (a zombie does not).
    #[must_use]
    pub fn open(pid: i32) -> Option<Self> {
        // The pidfd first: if the start time can then be read, both mean the same process.
        let pidfd = sys::pidfd_open(Pid::from_raw(pid)).ok();
        let start_ticks = living_since(pid)?;
        Some(Self { pid, start_ticks, pidfd })
    }

    /// The pid, as our own pid namespace counts.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Start time in clock ticks since boot; with the pid it names the process across restarts of
    /// ours.
    #[must_use]
    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        living_since(self.pid) == Some(self.start_ticks)
    }

    /// Sends a signal; a process that is gone counts as signalled.
    ///
    /// # Errors
    /// What the kernel says, usually `EPERM`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let sent = match &self.pidfd {
            Some(fd) => sys::pidfd_send_signal(fd.as_fd(), signal),
            None if self.is_alive() => {
                kill(Pid::from_raw(self.pid), signal).map_err(io::Error::from)
            }
            None => Ok(()),
        };
        match sent {
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => Ok(()),
            other => other,
        }
    }

    /// Waits for its end; `false` when the time is over first.
    #[must_use]
    pub fn wait_gone(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }

    /// The program it runs, without the mark of a replaced file.
    pub(crate) fn exe(&self) -> Option<PathBuf> {
        self.program().map(|(path, _)| path)
    }

    /// The program it runs, and whether its file is no longer there.
    fn program(&self) -> Option<(PathBuf, bool)> {
        let target = fs::read_link(format!("/proc/{}/exe", self.pid)).ok()?;
        let text = target.into_os_string().into_string().ok()?;
        Some(match text.strip_suffix(" (deleted)") {
            Some(path) => (PathBuf::from(path), true),
            None => (PathBuf::from(text), false),
        })
    }

    /// Whether it runs `binary`, or what had its name before a package upgrade removed that file. A
    /// path alone proves nothing, because a container has paths of its own: hence the inode, and for
    /// a removed file the pid namespace.
    pub(crate) fn runs(&self, binary: &Path) -> bool {
        let was_upgraded = || {
            let (exe, removed) = self.program()?;
            // An upgrade may move it to a directory of the new version.
            Some(removed && exe.file_name() == binary.file_name() && self.shares_our_pids()?)
        };
        self.runs_file(binary) || was_upgraded() == Some(true)
    }

    /// Whether it is in our own pid namespace, where no container of ours is.
    fn shares_our_pids(&self) -> Option<bool> {
        let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/pid")).ok();
        Some(namespace(&self.pid.to_string())? == namespace("self")?)
    }

    /// Whether it sees one of these as its `/`: a container has another one, unless it holds the host's.
    pub(crate) fn has_root_of(&self, trusted: &[Root]) -> bool {
        let root = Root::of(&self.pid.to_string());
        self.shares_our_pids() == Some(true) && root.is_some_and(|root| trusted.contains(&root))
    }

    /// Whether it runs the very file that `binary` names now.
    pub(crate) fn runs_file(&self, binary: &Path) -> bool {
        let running = fs::metadata(format!("/proc/{}/exe", self.pid));
        let Ok((running, wanted)) = running.and_then(|r| Ok((r, fs::metadata(binary)?))) else {
            return false;
        };
        (running.dev(), running.ino()) == (wanted.dev(), wanted.ino())
    }

    /// A variable of the environment it was started with.
    pub(crate) fn env(&self, name: &str) -> Option<OsString> {
        let environ = fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let prefix = [name.as_bytes(), b"="].concat();
        let value = environ
            .split(|byte| *byte == 0)
            .find_map(|entry| entry.strip_prefix(prefix.as_slice()))?;
        Some(OsString::from_vec(value.to_vec()))
    }

    /// How long ago it was started.
    pub(crate) fn age(&self) -> Option<Duration> {
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        let hertz = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten()?;
        let hertz = u32::try_from(hertz).ok()?;
        let started = Duration::from_secs(self.start_ticks) / hertz;
        Duration::try_from_secs_f64(uptime).ok()?.checked_sub(started)
    }

    /// Whether it has a living child.
    pub(crate) fn has_child(&self) -> bool {
        let parent = self.pid.to_string();
        let is_child = |pid: &i32| {
            stat_fields(*pid).is_some_and(|fields| {
                fields.get(1) == Some(&parent) && start_ticks(&fields).is_some()
            })
        };
        all_pids().iter().any(is_child)
    }

    /// Effective uid.
    pub(crate) fn uid(&self) -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }

    /// Short name, at most 15 bytes.
    pub(crate) fn comm(&self) -> String {
        let comm = fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        comm.trim_end().to_owned()
    }

    /// Whether it was stopped by a signal: it then answers nobody.
    pub(crate) fn is_stopped(&self) -> bool {
        stat_fields(self.pid).is_some_and(|fields| fields.first().is_some_and(|state| state == "T"))
    }

    pub(crate) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }
}

/// Fields of /proc/PID/stat after the name, which may itself hold spaces and brackets.
fn stat_fields(pid: i32) -> Option<Vec<String>> {
    fields_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn fields_of(stat: &str) -> Option<Vec<String>> {
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}

fn living_since(pid: i32) -> Option<u64> {
    start_ticks(&stat_fields(pid)?)
}

/// `None` for a process that has ended.
fn start_ticks(fields: &[String]) -> Option<u64> {
    if matches!(fields.first()?.as_str(), "Z" | "X" | "x") {
        return None;
    }
    // Field 22 of proc_pid_stat(5); the state is field 3.
    fields.get(19)?.parse().ok()
}

/// Door for `tests/fuzz`: the start time in the text of `/proc/PID/stat`.
#[doc(hidden)]
#[must_use]
pub fn fuzz_start_ticks(stat: &str) -> Option<u64> {
    start_ticks(&fields_of(stat)?)
}

/// Pids of all processes that can be seen.
pub(crate) fn all_pids() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn a_zombie_counts_as_gone() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let process = Process::open(pid).unwrap();
        assert!(process.is_alive() && process.start_ticks() > 0);
        process.signal(Signal::SIGKILL).unwrap();
        assert!(process.wait_gone(Duration::from_secs(10)));
        assert!(Process::open(pid).is_none());
        child.wait().unwrap();
    }

    #[test]
    fn knows_its_own_program_and_environment() {
        let myself = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(myself.runs(&std::env::current_exe().unwrap()));
        assert!(!myself.runs(Path::new("/bin/sh")));
        assert_eq!(myself.env("PATH"), std::env::var_os("PATH"));
        assert_eq!(myself.uid(), Some(nix::unistd::geteuid().as_raw()));
    }
}
