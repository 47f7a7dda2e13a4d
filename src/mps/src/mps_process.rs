//! Facts of a process, identified so that a reused pid is never taken for it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mpsgate_host::process::{self, Signal, Stat};

use crate::root::Root;

/// The pause between two looks of a wait.
pub(crate) const POLL: Duration = Duration::from_millis(5);

/// A process that was alive when it was opened.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    handle: process::Process,
}

impl Process {
    /// `None` when no such process lives (a zombie does not).
    ///
    /// # Errors
    /// If it cannot be read, as when no more files can be opened: the process may live.
    pub fn find(pid: i32) -> io::Result<Option<Self>> {
        let Ok(raw) = u32::try_from(pid) else { return Ok(None) };
        Ok(process::Process::find(raw)?.map(|handle| Self { pid, handle }))
    }

    /// The same, if it is seen. Use [`Self::find`] for a process that must not be taken for ended.
    #[must_use]
    pub fn open(pid: i32) -> Option<Self> {
        Self::find(pid).ok().flatten()
    }

    /// The pid in this process's pid namespace.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Start time in clock ticks since boot. With the pid it identifies the process across restarts
    /// of mpsgated.
    #[must_use]
    pub fn start_ticks(&self) -> u64 {
        self.handle.id().start_time
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        process::is_alive(&self.handle.id())
    }

    /// Sends a signal; a process that is gone counts as signalled.
    ///
    /// # Errors
    /// The kernel's error, usually `EPERM`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.handle.signal(signal)
    }

    /// Waits for its end; `false` if the time is over first.
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

    /// The program it runs, without the suffix of a replaced file.
    pub(crate) fn exe(&self) -> Option<PathBuf> {
        self.program().map(|(path, _)| path)
    }

    /// What `look` finds in its directory of `/proc`, or if its first thread has ended, in another
    /// thread's: a thread that hangs in the driver outlives the others, and holds the card.
    fn shown<T>(&self, look: impl Fn(&Path) -> Option<T>) -> Option<T> {
        let pid = self.handle.id().pid;
        look(&PathBuf::from(format!("/proc/{pid}"))).or_else(|| process::shown(pid, look))
    }

    /// The program it runs, and whether its file is no longer there.
    fn program(&self) -> Option<(PathBuf, bool)> {
        let target = self.shown(|thread| fs::read_link(thread.join("exe")).ok())?;
        let text = target.into_os_string().into_string().ok()?;
        Some(match text.strip_suffix(" (deleted)") {
            Some(path) => (PathBuf::from(path), true),
            None => (PathBuf::from(text), false),
        })
    }

    /// Whether it runs `binary`, or the file that had this name before a package upgrade removed
    /// it. A path alone proves nothing, because a container has paths of its own. So the inode is
    /// compared, and for a removed file the pid namespace.
    pub(crate) fn runs(&self, binary: &Path) -> bool {
        let was_upgraded = || {
            let (exe, removed) = self.program()?;
            // An upgrade may use a directory of the new version.
            Some(removed && exe.file_name() == binary.file_name() && self.counts_as_we_do())
        };
        self.runs_file(binary) || was_upgraded() == Some(true)
    }

    /// Whether its `/` is one of these: a container has another one, unless it has the host's.
    pub(crate) fn has_root_of(&self, trusted: &[Root]) -> bool {
        let root = self.shown(Root::of);
        self.counts_as_we_do() && root.is_some_and(|root| trusted.contains(&root))
    }

    /// Whether it is in this process's user namespace, in which no user is root.
    pub(crate) fn is_of_our_users(&self) -> bool {
        let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
        let own = namespace("self");
        own.is_some() && namespace(&self.pid.to_string()) == own
    }

    /// Whether a tmpfs is mounted on that directory, as the process sees it. This reads the
    /// kernel's list and opens no path of the process.
    pub(crate) fn has_tmpfs_at(&self, directory: &Path) -> bool {
        let mounts = self.shown(|thread| fs::read(thread.join("mountinfo")).ok());
        let mounts = mounts.unwrap_or_default();
        has_tmpfs_at(&mounts, directory.as_os_str().as_bytes())
    }

    /// Whether it is in this process's pid namespace, where no container with a grant is.
    fn counts_as_we_do(&self) -> bool {
        process::counts_as_we_do(self.handle.id().pid)
    }

    /// Whether it runs the file that `binary` names now.
    pub(crate) fn runs_file(&self, binary: &Path) -> bool {
        let file = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let running = self.shown(|thread| file(&thread.join("exe")));
        running.is_some() && running == file(binary)
    }

    /// A variable of its initial environment.
    pub(crate) fn env(&self, name: &str) -> Option<OsString> {
        let prefix = [name.as_bytes(), b"="].concat();
        self.shown(|thread| {
            let environ = fs::read(thread.join("environ")).ok()?;
            let value = environ
                .split(|byte| *byte == 0)
                .find_map(|entry| entry.strip_prefix(prefix.as_slice()))?;
            Some(OsString::from_vec(value.to_vec()))
        })
    }

    /// The time since its start.
    pub(crate) fn age(&self) -> Option<Duration> {
        process::age(&self.handle.id())
    }

    /// Whether it has a living child.
    pub(crate) fn has_child(&self) -> bool {
        let parent = self.handle.id().pid;
        let is_child = |stat: Stat| stat.parent == parent && !stat.has_ended();
        process::all().into_iter().filter_map(Stat::of).any(is_child)
    }

    /// Whether all its user ids are this one.
    pub(crate) fn is_of(&self, uid: u32) -> bool {
        process::is_of(self.handle.id().pid, uid)
    }

    /// Effective uid.
    pub(crate) fn uid(&self) -> Option<u32> {
        process::uid(self.handle.id().pid)
    }

    /// Whether a signal has stopped it: it then answers no request.
    pub(crate) fn is_stopped(&self) -> bool {
        Stat::of(self.handle.id().pid).is_some_and(|stat| stat.state == 'T')
    }
}

/// Reads proc_pid_mountinfo(5): the last mount on a directory is the visible one. The directory has
/// none of the characters that the kernel escapes.
fn has_tmpfs_at(mounts: &[u8], directory: &[u8]) -> bool {
    let at = |line: &&[u8]| line.split(|byte| *byte == b' ').nth(4) == Some(directory);
    let last = mounts.split(|byte| *byte == b'\n').rfind(at);
    let kind = last.and_then(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip_while(|field| *field != b"-");
        fields.nth(1)
    });
    kind == Some(b"tmpfs")
}

/// A path as that process sees it.
pub(crate) fn seen_by(pid: i32, path: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path))
}

/// Pids of all processes that this process can see.
pub(crate) fn all_pids() -> Vec<i32> {
    process::all().into_iter().map(u32::cast_signed).collect()
}

/// All processes that run a file of that name. One link tells the others, which are most of a
/// node's; whoever shows none is looked at closely.
pub(crate) fn all_running(program: &OsStr) -> impl Iterator<Item = Process> {
    let runs = |exe: &Path| {
        let name = exe.file_name().unwrap_or_default().as_bytes();
        name.strip_suffix(b" (deleted)").unwrap_or(name) == program.as_bytes()
    };
    all_pids()
        .into_iter()
        .filter(move |pid| fs::read_link(format!("/proc/{pid}/exe")).map_or(true, |exe| runs(&exe)))
        .filter_map(Process::open)
        .filter(move |process| process.exe().is_some_and(|exe| exe.file_name() == Some(program)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    #![allow(clippy::disallowed_methods, reason = "tests make what they look at")]
    use super::*;

    #[test]
    fn a_tmpfs_counts_where_it_is_the_last_mount_on_the_very_directory() {
        let line = |at: &str, kind: &str| {
            format!("36 35 0:52 / {at} rw,nosuid shared:7 master:1 - {kind} mpsgate rw\n")
        };
        let pipe = "/run/mpsgate/mps/0/pipe";
        let table = |mounts: &[(&str, &str)]| {
            mounts.iter().map(|(at, kind)| line(at, kind)).collect::<String>()
        };
        for (mounts, is_there) in [
            (table(&[("/", "ext4"), (pipe, "tmpfs")]), true),
            (table(&[(pipe, "tmpfs"), (pipe, "fuse")]), false),
            (table(&[(pipe, "fuse"), (pipe, "tmpfs")]), true),
            (
                table(&[("/run/mpsgate/mps/1/pipe", "tmpfs"), ("/run/mpsgate/mps/0", "tmpfs")]),
                false,
            ),
            (table(&[("/run/mpsgate/mps/0/pipe2", "tmpfs")]), false),
            (String::new(), false),
            ("36 35 0:52 / /run/mpsgate/mps/0/pipe".to_owned(), false),
        ] {
            assert_eq!(has_tmpfs_at(mounts.as_bytes(), pipe.as_bytes()), is_there, "{mounts}");
        }
        let many: String = (0..5000).map(|n| line(&format!("/mnt/{n}"), "tmpfs")).collect();
        assert!(has_tmpfs_at((many + &line(pipe, "tmpfs")).as_bytes(), pipe.as_bytes()));
    }

    #[test]
    fn what_a_process_is_outlives_its_first_thread() {
        let child = mpsgate_testing::Spawned::leaderless();
        let process = Process::open(child.pid().cast_signed()).unwrap();
        assert!(process.exe().unwrap().ends_with("cuda-client"));
        assert!(process.runs(&process.exe().unwrap()) && !process.runs(Path::new("/bin/sh")));
        assert!(process.has_root_of(&[Root::of(Path::new("/proc/self")).unwrap()]));
        assert!(process.is_of_our_users() && !process.has_tmpfs_at(Path::new("/no/such")));
        assert_eq!(process.env("PATH"), std::env::var_os("PATH"));
    }

    #[test]
    fn knows_its_own_program_and_environment() {
        let myself = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(myself.runs(&std::env::current_exe().unwrap()));
        assert!(!myself.runs(Path::new("/bin/sh")));
        assert_eq!(myself.env("PATH"), std::env::var_os("PATH"));
    }
}
