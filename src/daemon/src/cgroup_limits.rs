//! The driver's own memory limit on a container's cgroup (r615 and newer, cgroup v2): the highest
//! guarantee, `cgroup`.
//!
//! ```text
//!  activate ─► dmem on the way down ─► hard = grant, soft = 0 ─► read back ─► held ─► told: `cgroup`
//!                                                   every 10 s ─────┘  │
//!                                 grant ended, or `delete` ─► cleared ◄┘
//! ```
//!
//! One task does all of it, one after the other: so a clearing that comes late never meets the next
//! container under the same path. A limit is recorded in the ledger, and told only while a look of
//! this process has seen it hold; whatever fails leaves the grant with the level below, and the
//! reason stands in the log once per card and in `mpsgate status`.
//!
//! Where the kernel has no `dmem` the driver counts by itself, from the limit on, and by the
//! nearest directory alone that has one ([`driver_limit`] says what it does). So there a limit that
//! came when a program may have run is told only while the driver counts all that NVML shows, and
//! no cgroup below may have one of its own. A limit that no grant stands for is cleared
//! ([`strays`]).

mod driver_limit;
mod strays;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_host::crash_point;
use mpsgate_model::ledger::{CgroupId, Entry, State};
use mpsgate_model::{Code, GpuUuid, GrantKey, Mib, Refusal};
use mpsgate_node::card::{CardEvent, Trouble};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use self::driver_limit::Lack;
use self::strays::Strays;
use crate::daemon::Daemon;
use crate::hardware::Hardware;
use crate::orders::LimitOrder;
use crate::{DaemonError, exec_record};

/// Between two looks at the limits that are recorded.
const LOOK: Duration = Duration::from_secs(10);
/// Between two parts of a search for limits of nobody.
const SEARCH_LOOK: Duration = Duration::from_secs(1);

/// One container's cgroup, on all its cards.
#[derive(Debug, Clone)]
struct Target {
    key: GrantKey,
    /// How it is shown.
    name: String,
    cgroup: CgroupId,
    /// Inodes of other grants' below it.
    others: BTreeSet<u64>,
    grant: Mib,
    cards: Vec<CardTarget>,
    /// The ledger has a limit for it.
    recorded: bool,
    /// It was set when a program of the container may have run.
    late: bool,
}

/// What of a container's card decides.
#[derive(Debug, Clone)]
struct CardTarget {
    uuid: GpuUuid,
    total: Mib,
    /// What the watchdog saw the container use of it.
    seen: Option<Mib>,
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
    let mut search = interval(SEARCH_LOOK);
    search.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut first = true;
    let mut strays = Strays::default();
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(LimitOrder::Hold { entry, reply }) => {
                    // The program starts when the hook has its answer, and it waits for that so
                    // long as this end is open.
                    limit(&daemon, &entry, || reply.is_closed()).await;
                    // Who has stopped waiting needs no answer.
                    let _ = reply.send(());
                }
                Some(LimitOrder::Clear(entry)) => clear(&daemon, &entry).await,
                Some(LimitOrder::Resize { key, each, held, reply }) => {
                    // Who has stopped waiting needs no answer.
                    let _ = reply.send(resize(&daemon, &key, each, held).await);
                }
                Some(LimitOrder::Done { reply }) => {
                    let _ = reply.send(());
                }
                None => return Ok(()),
            },
            _ = look.tick() => audit(&daemon, std::mem::take(&mut first)).await,
            _ = search.tick() => strays.look(&daemon).await,
        }
    }
}

async fn limit(daemon: &Daemon, entry: &Entry, is_late: impl Fn() -> bool) {
    let Some(mut target) = target(daemon, entry) else {
        let why = "the runtime's hook named no cgroup of a container";
        for card in &entry.grant.cards {
            let trouble = Trouble::new(why, "journalctl -u mpsgated -n 50");
            daemon.happened(&card.uuid, CardEvent::CgroupLimit(Some(trouble)));
        }
        return;
    };
    let root = daemon.paths.cgroups.clone();
    let asked = target.clone();
    let set = move |hardware: &Hardware| driver_limit::set(hardware, &root, &asked);
    let hard = match daemon.blocking(set).await {
        Ok(hard) => hard,
        Err(lack) => return tell(daemon, &target, &Err(lack)),
    };
    target.late = is_late();
    log::info!(
        container = target.name.as_str(), cgroup = target.cgroup.path.as_str(),
        hard_mib = hard.0, late = target.late; "cgroup limited by the driver"
    );
    if !daemon.node().record_limit(&target.key, hard, target.late) {
        // It has ended meanwhile.
        target.recorded = true;
        return clear_at(daemon, target).await;
    }
    daemon.unwritten.notify_one();
    let root = daemon.paths.cgroups.clone();
    let judge = move |h: &Hardware| (driver_limit::held(h, &root, &target), target);
    let (held, target) = daemon.blocking(judge).await;
    daemon.node().set_held(&target.key, held.is_ok());
    tell(daemon, &target, &held.map(drop));
}

/// More is the ledger's first, so that nobody else gets it; less is the driver's first, so that it
/// is free when the ledger says so.
async fn resize(daemon: &Daemon, key: &GrantKey, each: Mib, held: bool) -> Result<(), Refusal> {
    let Some(before) = daemon.node().ledger().get(key).cloned() else {
        let why = format!("container {} has ended", key.name(None));
        return Err(Refusal::new(Code::Resize, why, "mpsgate status lists those that run"));
    };
    let refuse = |why: &str, hint: &str| {
        let why = format!("container {} stays as it is: {why}", before.grant.name());
        Err(Refusal::new(Code::Resize, why, hint))
    };
    let has = before.grant.memory;
    let change = |each| daemon.change(|node, effects| node.resize(key, each, effects));
    if each > has {
        change(each)?;
    }
    crash_point!("daemon.resize.grown");
    let target = before.cgroup_limit.and_then(|_| target(daemon, &before));
    if target.is_none() && held {
        // It was there when that was decided.
        return refuse("the driver has no limit of its cgroup any more", "mpsgate status -o wide");
    }
    if let Some(target) = target {
        let target = Target { grant: each, ..target };
        let (root, asked) = (daemon.paths.cgroups.clone(), target.clone());
        let set = move |hardware: &Hardware| driver_limit::change(hardware, &root, &asked, has);
        match daemon.blocking(set).await {
            Ok(hard) => {
                daemon.node().record_limit(key, hard, target.late);
            }
            Err(Lack { trouble, .. }) => {
                if each > has {
                    let _ = change(has);
                }
                // Whether the limit of before is there again.
                let (root, target) =
                    (daemon.paths.cgroups.clone(), Target { grant: has, ..target });
                let look =
                    move |hardware: &Hardware| driver_limit::held(hardware, &root, &target).is_ok();
                let held = daemon.blocking(look).await;
                daemon.node().set_held(key, held);
                return refuse(&trouble.why, &trouble.hint);
            }
        }
    }
    crash_point!("daemon.resize.limited");
    if each < has {
        change(each)?;
    }
    Ok(())
}

async fn clear(daemon: &Daemon, entry: &Entry) {
    if let Some(target) = target(daemon, entry) {
        clear_at(daemon, target).await;
    }
    let key = entry.grant.key.clone();
    daemon.records(move |at| exec_record::remove(at, &key));
}

async fn clear_at(daemon: &Daemon, target: Target) {
    let root = daemon.paths.cgroups.clone();
    daemon.blocking(move |h| driver_limit::clear(h, &root, &target)).await;
}

/// Evaluates every recorded limit anew, and sets one again that is gone. The `first` time also what
/// a crash may have kept from being recorded.
async fn audit(daemon: &Daemon, first: bool) {
    let targets: Vec<Target> = {
        let entries = daemon.node().entries();
        let limited = entries.iter().filter(|entry| first || entry.cgroup_limit.is_some());
        limited.filter_map(|entry| target(daemon, entry)).collect()
    };
    if targets.is_empty() {
        return;
    }
    let root = daemon.paths.cgroups.clone();
    let look = move |hardware: &Hardware| {
        let one = |mut target: Target| {
            // Nobody knows when one was set that is not recorded.
            target.late |= !target.recorded;
            let mut held = driver_limit::held(hardware, &root, &target);
            if target.recorded && matches!(&held, Err(lack) if lack.is_gone()) {
                target.late = true;
                held = driver_limit::set(hardware, &root, &target)
                    .and_then(|_| driver_limit::held(hardware, &root, &target));
                if held.is_ok() {
                    log::warn!(
                        container = target.name.as_str(),
                        cgroup = target.cgroup.path.as_str();
                        "the cgroup's limit had gone and was set again"
                    );
                }
            }
            (target, held)
        };
        targets.into_iter().map(one).collect::<Vec<_>>()
    };
    for (target, held) in daemon.blocking(look).await {
        {
            let mut node = daemon.node();
            let hard = held.as_ref().map_or_else(|lack| lack.hard, |hard| Some(*hard));
            if let Some(hard) = hard {
                node.record_limit(&target.key, hard, target.late);
            }
            node.set_held(&target.key, held.is_ok());
        }
        // A grant from before this level was there is no news.
        if held.is_ok() || target.recorded {
            tell(daemon, &target, &held.map(drop));
        }
    }
    daemon.unwritten.notify_one();
}

fn target(daemon: &Daemon, entry: &Entry) -> Option<Target> {
    let State::Active { cgroup: Some(cgroup), .. } = &entry.state else { return None };
    let node = daemon.node();
    let key = &entry.grant.key;
    let card = |uuid: &GpuUuid| {
        let total = node.card(uuid)?.total;
        Some(CardTarget { uuid: uuid.clone(), total, seen: node.seen(key, uuid) })
    };
    Some(Target {
        key: key.clone(),
        name: entry.grant.name(),
        cgroup: cgroup.clone(),
        others: node.nested(entry),
        grant: entry.grant.memory,
        cards: entry
            .grant
            .cards
            .iter()
            .map(|granted| card(&granted.uuid))
            .collect::<Option<_>>()?,
        recorded: entry.cgroup_limit.is_some(),
        late: entry.limited_late,
    })
}

/// Publishes for each card of the container what became of its limit.
fn tell(daemon: &Daemon, target: &Target, held: &Result<(), Lack>) {
    for card in &target.cards {
        match held {
            Ok(()) => daemon.happened(&card.uuid, CardEvent::CgroupLimit(None)),
            Err(lack) if lack.uuid.as_ref().is_none_or(|uuid| *uuid == card.uuid) => {
                let trouble = Some(lack.trouble.clone());
                daemon.happened(&card.uuid, CardEvent::CgroupLimit(trouble));
            }
            Err(_) => {}
        }
    }
}
