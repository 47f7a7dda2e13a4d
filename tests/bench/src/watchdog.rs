//! What the watchdog costs, and how soon it acts.

use std::time::{Duration, Instant};

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};

use crate::cases::cpu_percent;
use crate::node::{GpuProcess, Held, Node, list_processes, status, wait_for};
use crate::{Failure, Workplace};

/// Containers that take too much, one after the other.
const OVERRUNS: usize = 5;
/// MiB of each process that stays within its grant.
const WITHIN_MIB: u64 = 100;
/// MiB of one that does not: beyond every grant and tolerance here.
const BEYOND_MIB: u64 = 8192;
/// Added to a pid: above the kernel's largest, so nobody's.
const NOBODY: u32 = 1 << 22;

/// The figures.
pub(crate) struct Watchdog {
    /// Share of a core with as many processes listed, none of which lives: NVML's part, and the
    /// loop's.
    pub(crate) listed_percent: f64,
    /// The same with living ones, each in a container with a grant.
    pub(crate) watched_percent: f64,
    /// From the moment that NVML shows an overrun to the end of the process.
    pub(crate) actions: Vec<Duration>,
}

impl Watchdog {
    pub(crate) fn worst(&self) -> Duration {
        self.actions.iter().copied().max().unwrap_or_default()
    }
}

/// Each of the `live` grants has one process on its card.
pub(crate) fn measure(at: &Workplace, node: &Node, live: &[Held]) -> Result<Watchdog, Failure> {
    let processes: Vec<_> = status()?
        .grants
        .iter()
        .map(|grant| {
            let card = usize::try_from(grant.card_index)?;
            Ok(GpuProcess { card, pid: grant.pid, used_mib: WITHIN_MIB })
        })
        .collect::<Result<_, Failure>>()?;
    let nobody = |process: &GpuProcess| GpuProcess { pid: process.pid + NOBODY, ..*process };
    eprintln!("measuring: the watchdog beside {} processes", processes.len());
    list_processes(at, &processes.iter().map(nobody).collect::<Vec<_>>())?;
    // Three looks, for what is found out once.
    std::thread::sleep(Duration::from_secs(3));
    let listed_percent = cpu_percent(node)?;
    list_processes(at, &processes)?;
    wait_for("the watchdog to see all processes", || {
        Ok(status()?.grants.iter().all(|grant| grant.used_mib == Some(WITHIN_MIB)))
    })?;
    let watched_percent = cpu_percent(node)?;
    let actions = live.iter().take(OVERRUNS).map(|held| {
        let mut processes = processes.clone();
        let pid = u32::try_from(held.0.as_raw())?;
        let greedy = processes.iter_mut().find(|process| process.pid == pid);
        greedy.ok_or("a process without a grant")?.used_mib = BEYOND_MIB;
        list_processes(at, &processes)?;
        let shown = Instant::now();
        wait_for("the end of a container over its grant", || {
            // It stays to be reaped by who holds it.
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
            Ok(waitid(Id::Pid(held.0), flags)? != WaitStatus::StillAlive)
        })?;
        Ok(shown.elapsed())
    });
    let actions = actions.collect::<Result<Vec<_>, Failure>>()?;
    list_processes(at, &[])?;
    Ok(Watchdog { listed_percent, watched_percent, actions })
}
