//! The driver's own memory limit on a container's cgroup (r615 and newer, cgroup v2): the highest
//! guarantee, `cgroup`.
//!
//! ```text
//!  activate ─► dmem on the way down ─► hard = grant, soft = 0 ─► read back ─► held ─► told: `cgroup`
//!                                                   every 10 s ─────┘  │
//!                                          grant ended ─► cleared ◄────┘
//! ```
//!
//! One task does all of it, one after the other: so a clearing that comes late never meets the next
//! container under the same path. A limit is recorded in the ledger, and told only while a look of
//! this process has seen it hold; whatever fails leaves the grant with the level below, and the
//! reason stands in the log once per card and in `mpsgate status`. It counts what is below the
//! cgroup too: processes of `exec`, and cgroups that the container makes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mpsgate_gpu::{GpuError, MemoryLimit, Nvml};
use mpsgate_model::ledger::{CgroupId, Entry, State};
use mpsgate_model::{GpuUuid, GrantKey, Mib};
use mpsgate_node::card::Trouble;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::DaemonError;
use crate::cgroup::{self, dmem};
use crate::daemon::Daemon;
use crate::hardware::{Hardware, gpu_trouble};
use crate::orders::LimitOrder;

/// Between two looks at the limits that are recorded.
const LOOK: Duration = Duration::from_secs(10);

const BYTES_PER_MIB: u64 = 1 << 20;

/// One cgroup on one card.
#[derive(Debug, Clone)]
struct Target {
    key: GrantKey,
    uuid: GpuUuid,
    cgroup: CgroupId,
    grant: Mib,
    /// Of the card.
    total: Mib,
    /// The ledger has a limit for it.
    recorded: bool,
}

/// Carries orders out and looks at what is recorded, for as long as the process lives.
pub(crate) async fn watch(
    daemon: Arc<Daemon>,
    mut orders: mpsc::UnboundedReceiver<LimitOrder>,
) -> Result<(), DaemonError> {
    // Before NVML has answered there is nothing to look at.
    daemon.started().await;
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut first = true;
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(LimitOrder::Hold { entry, reply }) => {
                    limit(&daemon, &entry).await?;
                    // Who has stopped waiting needs no answer.
                    let _ = reply.send(());
                }
                Some(LimitOrder::Clear(entry)) => clear(&daemon, &entry).await?,
                None => return Ok(()),
            },
            _ = look.tick() => audit(&daemon, std::mem::take(&mut first)).await?,
        }
    }
}

async fn limit(daemon: &Daemon, entry: &Entry) -> Result<(), DaemonError> {
    let Some(card) = entry.grant.cards.first() else { return Ok(()) };
    let Some(target) = target(daemon, entry) else {
        let why = "the runtime's hook named no cgroup of a container";
        publish(daemon, &card.uuid, Err(Trouble::new(why, "journalctl -u mpsgated -n 50")));
        return Ok(());
    };
    let root = daemon.paths.cgroups.clone();
    let asked = target.clone();
    let set = move |hardware: &Hardware| set(hardware, &root, &asked);
    let set = daemon.blocking("limit a cgroup", set).await?;
    let held = set.as_ref().ok().copied();
    if let Some(hard) = held {
        log::info!(
            container = target.key.container_id.as_str(), uuid = target.uuid.as_str(),
            cgroup = target.cgroup.path.as_str(), hard_mib = hard.0; "cgroup limited by the driver"
        );
    }
    let kept = daemon.node().set_held(&target.key, held);
    publish(daemon, &target.uuid, set.map(drop));
    if held.is_some() {
        daemon.unwritten.notify_one();
        if !kept {
            // It has ended meanwhile.
            daemon.blocking("clear a limit", move |h| take_away(h, &target)).await?;
        }
    }
    Ok(())
}

async fn clear(daemon: &Daemon, entry: &Entry) -> Result<(), DaemonError> {
    let Some(target) = target(daemon, entry) else { return Ok(()) };
    daemon.blocking("clear a limit", move |hardware| take_away(hardware, &target)).await
}

/// Reads every recorded limit back, and sets one again that is gone. The `first` time also what a
/// crash may have kept from being recorded.
async fn audit(daemon: &Daemon, first: bool) -> Result<(), DaemonError> {
    let targets: Vec<Target> = {
        let entries = daemon.node().entries();
        let limited = entries.iter().filter(|entry| first || entry.cgroup_limit.is_some());
        limited.filter_map(|entry| target(daemon, entry)).collect()
    };
    if targets.is_empty() {
        return Ok(());
    }
    let root = daemon.paths.cgroups.clone();
    let look = move |hardware: &Hardware| {
        let one = |target: Target| {
            let held = match held(hardware, &root, &target) {
                Err(_) if target.recorded => set(hardware, &root, &target).inspect(|hard| {
                    log::warn!(
                        container = target.key.container_id.as_str(),
                        cgroup = target.cgroup.path.as_str(), hard_mib = hard.0;
                        "the cgroup's limit had gone and was set again"
                    );
                }),
                other => other,
            };
            (target, held)
        };
        targets.into_iter().map(one).collect::<Vec<_>>()
    };
    for (target, held) in daemon.blocking("read limits back", look).await? {
        let changed = {
            let mut node = daemon.node();
            let was_held = node.is_held(&target.key);
            let hard = held.as_ref().ok().copied();
            if hard.is_some() || target.recorded {
                node.set_held(&target.key, hard);
            }
            was_held != hard.is_some()
        };
        if changed {
            daemon.unwritten.notify_one();
        }
        // A grant from before this level was there is no news.
        if held.is_ok() || target.recorded {
            publish(daemon, &target.uuid, held.map(drop));
        }
    }
    Ok(())
}

fn target(daemon: &Daemon, entry: &Entry) -> Option<Target> {
    let State::Active { cgroup: Some(cgroup), .. } = &entry.state else { return None };
    // Memory that is shared by agreement alone is not limited.
    if !entry.grant.uses_mps() {
        return None;
    }
    let uuid = entry.grant.cards.first()?.uuid.clone();
    let total = daemon.node().card(&uuid)?.total;
    Some(Target {
        key: entry.grant.key.clone(),
        uuid,
        cgroup: cgroup.clone(),
        grant: entry.grant.memory,
        total,
        recorded: entry.cgroup_limit.is_some(),
    })
}

/// For `status`; and in the log, once for as long as the card has a grant without. What another
/// grant has does not take a reason away.
fn publish(daemon: &Daemon, uuid: &GpuUuid, outcome: Result<(), Trouble>) {
    let mut node = daemon.node();
    let all_held = node.all_held(uuid);
    let Some(card) = node.card_mut(uuid) else { return };
    match outcome {
        Ok(()) if all_held => card.unlimited = None,
        Ok(()) => {}
        Err(trouble) => {
            if card.unlimited.is_none() {
                log::info!(
                    uuid = uuid.as_str(), reason = trouble.why.as_str(), hint = trouble.hint.as_str();
                    "the driver does not limit containers of the card by cgroup: the guarantee is the next lower one"
                );
            }
            card.unlimited = Some(trouble);
        }
    }
}

/// Sets the limit and reads it back. Blocks. What cannot be seen to hold is taken away again, so
/// that no container has a limit that nobody knows.
fn set(hardware: &Hardware, root: &Path, target: &Target) -> Result<Mib, Trouble> {
    let nvml = offered(hardware, root, target)?;
    let enabled = dmem::enable(root, Path::new(&target.cgroup.path))
        .map_err(|error| Trouble::new(crate::error::chain(&error), error.hint()))?;
    if !enabled.is_empty() {
        log::info!(directories:? = enabled; "dmem controller enabled, which the runtime had not");
    }
    let path = Path::new(&target.cgroup.path);
    let limits = nvml.memory_limits().ok_or_else(|| absent(&nvml))?;
    let uuid = target.uuid.as_str();
    limits.set(uuid, path, target.grant.0).map_err(|error| refused(&nvml, &error))?;
    let read = limits.get(uuid, path).map_err(|error| refused(&nvml, &error));
    let held = read.and_then(|read| holds(&read, target));
    if held.is_err()
        && let Err(error) = limits.clear(uuid, path)
    {
        log::warn!(reason = crate::error::chain(&error); "a limit that does not hold is left");
    }
    held
}

/// Reads the limit back. Blocks.
fn held(hardware: &Hardware, root: &Path, target: &Target) -> Result<Mib, Trouble> {
    let nvml = offered(hardware, root, target)?;
    let limits = nvml.memory_limits().ok_or_else(|| absent(&nvml))?;
    let read = limits.get(target.uuid.as_str(), Path::new(&target.cgroup.path));
    holds(&read.map_err(|error| refused(&nvml, &error))?, target)
}

/// Takes the limit away while its cgroup is there; with `dmem` removing that has done so, too. A
/// driver that counts by itself keeps an entry by the cgroup's address in the kernel, which nobody
/// can name any more (r615's `memacct.c`). Blocks.
fn take_away(hardware: &Hardware, target: &Target) {
    let there = || cgroup::is_same(&target.cgroup).unwrap_or(false);
    if !there() {
        return;
    }
    let Ok(nvml) = hardware.nvml() else { return };
    let Some(limits) = nvml.memory_limits() else { return };
    let cleared = limits.clear(target.uuid.as_str(), Path::new(&target.cgroup.path));
    // The runtime removes it at this very time.
    if let Err(error) = cleared
        && there()
    {
        let (reason, container) = (crate::error::chain(&error), target.key.container_id.as_str());
        log::warn!(container, reason; "the cgroup was removed before its limit was cleared");
    }
}

/// NVML, where node and cgroup are such that a limit can be asked for.
fn offered(hardware: &Hardware, root: &Path, target: &Target) -> Result<Arc<Nvml>, Trouble> {
    let path = PathBuf::from(&target.cgroup.path);
    if !dmem::is_v2(root) {
        return Err(Trouble::new(
            "the driver's memory limits need cgroup v2, and this node has v1 or both",
            "boot with systemd.unified_cgroup_hierarchy=1",
        ));
    }
    if path == root || !path.starts_with(root) {
        let why = format!("{} is no cgroup of a container", path.display());
        return Err(Trouble::new(why, "journalctl -u mpsgated -n 50"));
    }
    if !cgroup::is_same(&target.cgroup).unwrap_or(false) {
        let why = format!("{} is not the cgroup any more that it was", path.display());
        return Err(Trouble::new(why, "journalctl -u mpsgated -n 50"));
    }
    hardware.nvml()
}

fn absent(nvml: &Nvml) -> Trouble {
    let driver = nvml.driver_version().unwrap_or_else(|_| "of this node".to_owned());
    Trouble::new(
        format!("driver {driver} offers no memory limits for cgroups"),
        "a driver of r615 or newer does",
    )
}

fn refused(nvml: &Nvml, error: &GpuError) -> Trouble {
    if error.is_no_limits() { absent(nvml) } else { gpu_trouble(error) }
}

/// Whether what was read back holds the container to its grant. The driver may round up: 4000 MiB
/// were read back as 4096 (NVIDIA MPS documentation, r615).
fn holds(read: &MemoryLimit, target: &Target) -> Result<Mib, Trouble> {
    let hard = Mib(read.hard_bytes.div_ceil(BYTES_PER_MIB));
    let shown = if read.hard_bytes == u64::MAX { "none".to_owned() } else { hard.to_string() };
    let soft = read.soft_bytes / BYTES_PER_MIB;
    let why = if read.soft_bytes != 0 {
        format!("shows a soft limit of {soft} MiB, which mpsgate never sets")
    } else if read.hard_bytes / BYTES_PER_MIB < target.grant.0 {
        format!("shows a hard limit of {shown}, less than the {} granted", target.grant)
    } else if hard >= target.total {
        format!("shows a hard limit of {shown}, which holds nobody on a card of {}", target.total)
    } else {
        return Ok(hard);
    };
    Err(Trouble::new(
        format!("for {} the driver {why}", target.cgroup.path),
        format!("nvidia-smi memory-limits --get -n {} -i {}", target.cgroup.path, target.uuid),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_model::{ContainerId, Instance};

    use super::*;

    fn target() -> Target {
        Target {
            key: GrantKey {
                runtime_root: "/run/runc".to_owned(),
                container_id: ContainerId::parse("web").unwrap(),
                instance: Instance::from_bytes([1; 16]),
            },
            uuid: GpuUuid::parse("GPU-00000000-0000-0000-0000-000000000000").unwrap(),
            cgroup: CgroupId { path: "/sys/fs/cgroup/web".to_owned(), inode: 1 },
            grant: Mib(4000),
            total: Mib(16384),
            recorded: false,
        }
    }

    #[test]
    fn only_a_hard_limit_from_the_grant_up_to_below_the_card_holds() {
        let read = |soft_bytes, hard_bytes| {
            holds(&MemoryLimit { soft_bytes, hard_bytes, used_bytes: 0 }, &target())
        };
        let mib = |mib: u64| mib << 20;
        assert_eq!(read(0, mib(4000)).unwrap(), Mib(4000));
        assert_eq!(read(0, mib(4096)).unwrap(), Mib(4096), "rounded up");
        assert_eq!(read(0, mib(16384) - mib(1)).unwrap(), Mib(16383));
        for (soft, hard, why) in [
            (0, u64::MAX, "shows a hard limit of none, which holds nobody"),
            (0, mib(16384), "which holds nobody on a card of 16 GiB"),
            (0, mib(4000) - 1, "less than the 4000 MiB granted"),
            (0, 0, "less than the 4000 MiB granted"),
            (mib(1), mib(4000), "a soft limit of 1 MiB, which mpsgate never sets"),
        ] {
            let trouble = read(soft, hard).unwrap_err();
            assert!(trouble.why.contains(why), "{trouble:?}");
            assert!(
                trouble.hint.starts_with("nvidia-smi memory-limits --get -n /sys/fs/cgroup/web ")
            );
        }
    }
}
