//! Ends every process of a container's cgroup, and none outside it. Of a Slurm job's cgroup
//! everything but Slurm's own, which sees its tasks end and ends the job.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mpsgate_host::cgroup::{self, CgroupId, MOUNT, Membership};
use mpsgate_host::process::ProcessId;
use mpsgate_model::Grant;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::{contains, is_same, own_processes};
use crate::process_end::{self, identify, is_alive, is_seen};

/// Processes may fork faster than they are killed, and one in the driver dies late.
const LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// Which of a cgroup's processes are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meant {
    /// None in directories below it with these inodes.
    pub(crate) others: BTreeSet<u64>,
    /// None of Slurm's own in a job of this user's.
    pub(crate) job_of: Option<u32>,
}

impl Meant {
    /// Those of a grant, below whose cgroup other grants' have these inodes.
    pub(crate) fn of(grant: &Grant, others: BTreeSet<u64>) -> Self {
        Self { others, job_of: grant.key.is_job().then_some(grant.uid) }
    }

    fn processes(&self, cgroup: &CgroupId) -> io::Result<BTreeSet<u32>> {
        let mut found = own_processes(cgroup, &self.others)?;
        if let Some(user) = self.job_of {
            found.retain(|pid| !is_slurms(*pid, user));
        }
        Ok(found)
    }
}

/// slurmstepd, and what it starts for itself, are root's. A process of the user's has the user's
/// real uid, whatever it executes.
fn is_slurms(pid: u32, user: u32) -> bool {
    let name = || process_end::shown(pid, |thread| std::fs::read_link(thread.join("exe")).ok());
    let is_slurmstepd = |path: PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("slurmstepd"))
    };
    process_end::real_uid(pid) == Some(0) && (user != 0 || name().is_some_and(is_slurmstepd))
}

/// Kills all processes of `cgroup` that are `meant`, the cgroup of a container whose init is
/// `init`, and waits until they are gone. Blocks for at most 5 s.
///
/// # Errors
/// Where it holds more than a container (the first process of the node, or this one), is not the
/// directory that it was, or is not empty in the end.
pub(crate) fn kill(cgroup: &CgroupId, init: &ProcessId, meant: &Meant) -> io::Result<()> {
    if meant.processes(cgroup)?.is_empty() {
        return Ok(());
    }
    for (pid, who) in [(1, "the first process of this node"), (std::process::id(), "mpsgated")] {
        if contains(cgroup, pid)? {
            return Err(io::Error::other(format!("its cgroup {} holds {who} too", cgroup.path)));
        }
    }
    let path = Path::new(&cgroup.path);
    // Since kernel 5.14, v2 only: no process can fork its way out.
    if meant.others.is_empty() && meant.job_of.is_none() && is_same(cgroup)? {
        let _ = std::fs::write(path.join("cgroup.kill"), "1");
    }
    let until = Instant::now() + LIMIT;
    loop {
        kill_once(cgroup, meant)?;
        thaw(init);
        let left = meant.processes(cgroup)?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            let left: Vec<String> = left.iter().map(u32::to_string).collect();
            return Err(io::Error::other(format!("pid {} lives after SIGKILL", left.join(", "))));
        }
        std::thread::sleep(PAUSE);
    }
}

/// One signal to whoever is in it. A process is named first and seen in the cgroup after that, so
/// that one which has its pid later is not meant.
fn kill_once(cgroup: &CgroupId, meant: &Meant) -> io::Result<()> {
    let found = meant.processes(cgroup)?;
    let named: Vec<(u32, Named)> =
        found.into_iter().filter_map(|pid| Some((pid, Named::of(pid)?))).collect();
    let still = meant.processes(cgroup)?;
    for (pid, process) in named.iter().filter(|(pid, _)| still.contains(pid)) {
        if let Err(error) = process.kill() {
            log::warn!(pid = *pid, reason:% = error; "process not killed");
        }
    }
    Ok(())
}

/// Kills one process and waits for its end.
///
/// # Errors
/// Where it lives after 5 s, or could not be sent a signal for as long.
pub(crate) fn kill_process(process: &ProcessId) -> io::Result<()> {
    kill_within(LIMIT, process, send)
}

fn kill_within(
    limit: Duration,
    process: &ProcessId,
    send: impl Fn(&ProcessId) -> io::Result<()>,
) -> io::Result<()> {
    let until = Instant::now() + limit;
    let mut sent = Ok(());
    let mut is_sent = false;
    while is_alive(process) {
        if !is_sent {
            sent = send(process);
            is_sent = sent.is_ok();
        }
        if Instant::now() >= until {
            let pid = process.pid;
            return Err(io::Error::other(match sent {
                Ok(()) => format!("pid {pid} lives after SIGKILL"),
                Err(error) => format!("pid {pid} lives, and SIGKILL cannot be sent: {error}"),
            }));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Sends SIGKILL to exactly this process. It is named first, and seen to live after that.
fn send(process: &ProcessId) -> io::Result<()> {
    let named = Named::of(process.pid).ok_or_else(unseen)?;
    if is_seen(process) { named.kill() } else { Err(unseen()) }
}

fn unseen() -> io::Error {
    io::Error::other("it is not seen")
}

/// A process that a signal can be sent to without meeting another.
enum Named {
    PidFd(OwnedFd),
    /// The kernel has no pidfds (before 5.3).
    Id(ProcessId),
}

impl Named {
    fn of(pid: u32) -> Option<Self> {
        let raw = Pid::from_raw(pid.try_into().ok()?)?;
        match rustix::process::pidfd_open(raw, PidfdFlags::empty()) {
            Ok(fd) => Some(Self::PidFd(fd)),
            Err(Errno::NOSYS) => identify(pid).map(Self::Id),
            Err(_) => None,
        }
    }

    /// One that has ended counts as killed.
    fn kill(&self) -> io::Result<()> {
        let sent = match self {
            Self::PidFd(fd) => rustix::process::pidfd_send_signal(fd, Signal::KILL),
            Self::Id(process) => match process.pid.try_into().ok().and_then(Pid::from_raw) {
                Some(pid) if is_seen(process) => rustix::process::kill_process(pid, Signal::KILL),
                _ if is_alive(process) => return Err(unseen()),
                _ => Ok(()),
            },
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Under v1 a frozen process dies when it is thawed (`docker pause` freezes); under v2 at once.
fn thaw(init: &ProcessId) {
    let Some(text) = cgroup::text_of(init.pid) else { return };
    let mut lines = text.lines().filter_map(Membership::parse);
    let freezer = lines.find(|line| line.has("freezer")).and_then(|line| line.below());
    if let Some(below) = freezer
        && is_seen(init)
    {
        let state = Path::new(MOUNT).join("freezer").join(below).join("freezer.state");
        if std::fs::read_to_string(&state).is_ok_and(|state| state.trim() != "THAWED") {
            let _ = std::fs::write(state, "THAWED");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    #![allow(clippy::disallowed_types, reason = "the tests start processes to kill")]
    use std::os::unix::fs::MetadataExt;

    use mpsgate_testing::{Spawned, need};

    use super::*;

    /// A cgroup of our own, where this machine has one to give.
    struct Cgroup {
        root: &'static str,
        path: PathBuf,
    }

    impl Cgroup {
        fn new(name: &str) -> Result<Self, &'static str> {
            let name = format!("mpsgated-unit-{name}-{}", std::process::id());
            let mut roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/freezer"].into_iter();
            let made = roots.find_map(|root| {
                let path = Path::new(root).join(&name);
                std::fs::create_dir(&path).ok()?;
                let made = Self { root, path };
                made.path.join("cgroup.procs").exists().then_some(made)
            });
            made.ok_or("needs root and a cgroup hierarchy")
        }

        fn id(&self) -> CgroupId {
            let inode = self.path.metadata().unwrap().ino();
            CgroupId { path: self.path.to_str().unwrap().to_owned(), inode }
        }

        fn sleeper(&self, below: &str) -> Spawned {
            let sleeper = Spawned::new();
            std::fs::create_dir_all(self.path.join(below)).unwrap();
            add(&self.path.join(below), sleeper.pid());
            sleeper
        }
    }

    impl Drop for Cgroup {
        fn drop(&mut self) {
            for _ in 0..500 {
                let _ = std::fs::remove_dir(self.path.join("below"));
                if std::fs::remove_dir(&self.path).is_ok() {
                    return;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn all() -> Meant {
        Meant { others: BTreeSet::new(), job_of: None }
    }

    fn add(cgroup: &Path, pid: u32) {
        std::fs::write(cgroup.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn id(process: &Spawned) -> ProcessId {
        identify(process.pid()).unwrap()
    }

    #[test]
    fn ends_all_of_a_cgroup_and_nobody_else_even_where_it_is_frozen() {
        let cgroup = need!(Cgroup::new("all"));
        let (mut init, mut below) = (cgroup.sleeper(""), cgroup.sleeper("below"));
        let mut outside = Spawned::new();
        let _ = std::fs::write(cgroup.path.join("freezer.state"), "FROZEN");
        let _ = std::fs::write(cgroup.path.join("cgroup.freeze"), "1");
        kill(&cgroup.id(), &id(&init), &all()).unwrap();
        assert!(!init.lives() && !below.lives() && outside.lives());
        kill(&cgroup.id(), &id(&outside), &all()).unwrap();
        assert!(outside.lives(), "an empty one has nothing to end");
        let other = CgroupId { inode: cgroup.id().inode + 1, ..cgroup.id() };
        let mut later = cgroup.sleeper("");
        kill(&other, &id(&later), &all()).unwrap();
        assert!(later.lives(), "a directory made anew is another container's");
    }

    #[test]
    fn of_a_job_roots_own_processes_stay_and_roots_own_jobs_end() {
        let cgroup = need!(Cgroup::new("job"));
        let mut roots = cgroup.sleeper("");
        let users = std::os::unix::process::CommandExt::uid(
            std::process::Command::new("sleep").arg("1000"),
            12_345,
        )
        .spawn();
        let mut users = users.unwrap();
        add(&cgroup.path, users.id());
        let meant = |user| Meant { job_of: Some(user), ..all() };
        kill(&cgroup.id(), &id(&roots), &meant(12_345)).unwrap();
        assert!(roots.lives() && users.try_wait().unwrap().is_some());
        kill(&cgroup.id(), &id(&roots), &meant(0)).unwrap();
        assert!(!roots.lives(), "no slurmstepd");
    }

    #[test]
    fn never_touches_a_cgroup_that_holds_mpsgated_or_the_first_process() {
        let cgroup = need!(Cgroup::new("own"));
        let mut sleeper = cgroup.sleeper("");
        add(&cgroup.path, std::process::id());
        let refused = kill(&cgroup.id(), &id(&sleeper), &all());
        add(Path::new(cgroup.root), std::process::id());
        assert!(refused.unwrap_err().to_string().contains("holds mpsgated too"));
        assert!(sleeper.lives());
        let inode = Path::new(cgroup.root).metadata().unwrap().ino();
        let root = CgroupId { path: cgroup.root.to_owned(), inode };
        // Where the first process is in a cgroup of its own, as under systemd, mpsgated is not in
        // the root.
        if contains(&root, 1).unwrap() {
            let refused = kill(&root, &id(&sleeper), &all()).unwrap_err();
            assert!(refused.to_string().contains("holds the first process"), "{refused}");
        }
    }

    #[test]
    fn a_process_is_ended_and_one_that_only_has_its_pid_is_not() {
        let mut sleeper = Spawned::new();
        let id = id(&sleeper);
        kill_process(&ProcessId { start_time: id.start_time + 1, ..id }).unwrap();
        assert!(sleeper.lives());
        kill_process(&id).unwrap();
        assert!(!sleeper.lives());
    }

    #[test]
    fn a_signal_that_cannot_be_sent_is_tried_again_and_named() {
        let mut sleeper = Spawned::new();
        let tries = std::cell::Cell::new(0);
        let third = |process: &ProcessId| {
            tries.set(tries.get() + 1);
            if tries.get() < 3 { Err(unseen()) } else { send(process) }
        };
        kill_within(LIMIT, &id(&sleeper), third).unwrap();
        assert!(!sleeper.lives() && tries.get() == 3);
        let other = Spawned::new();
        let fails = |_: &ProcessId| Err(io::Error::from(Errno::PERM));
        let error = kill_within(PAUSE, &id(&other), fails).unwrap_err().to_string();
        assert!(error.contains("SIGKILL cannot be sent: "), "{error}");
    }
}
