//! Counts the descriptors of a control daemon, beside its card task, which may be waiting for an
//! answer: a container that costs too many is ended while somebody can still be named. A flood
//! takes them all within 0.3 s, so they are counted 20 times a second, and looked at only where
//! their number grows. Behind doors no container can cost any: there they are counted once a
//! second, for operators.
//!
//! ```text
//!   count ─► many, and more? ─► new connections: whose? ─► over 256 of one container ─► still so after 10 ms ─► end it
//!                                   └ makers that have ended ─► watch for those to come, to see some that live
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mpsgate_api::DescriptorStatus;
use mpsgate_model::ledger::{Entry, State};
use mpsgate_model::{GpuUuid, GrantKey};
use mpsgate_mps::{Connection, ControlDaemon, Descriptors, MpsInstance};
use mpsgate_node::channel::{Cost, DESCRIPTORS, Seen, costs, needs_restart};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::daemon::Daemon;
use crate::enforce::enforce;
use crate::owner::Culprit;
use crate::{DaemonError, process};

/// Between two counts, which cost microseconds.
const OFTEN: Duration = Duration::from_millis(50);
/// Between two looks at the connections where nothing grows.
const EACH: Duration = Duration::from_secs(1);
/// More descriptors than at the last look, from which on the connections are looked at at once.
const GROWTH: u64 = 32;
/// Between the two counts that have to agree: the daemon closes what a client left within
/// milliseconds.
const AGAIN: Duration = Duration::from_millis(10);
/// Descriptors up to which no connection is looked at: no container can have cost too many.
const FEW: u64 = DESCRIPTORS / 2;
/// Descriptors from which on each new connection counts whose maker has ended, and how many must be
/// new up to there, before some makers are looked for that live.
const MANY: u64 = DESCRIPTORS * 2;
const UNSEEN: usize = 16;
/// For how long they are looked for.
const BURST: Duration = Duration::from_millis(200);
/// The log lies in memory. A card task cuts it sooner; this is for one that waits for a daemon
/// meanwhile.
const LOG_BYTES: u64 = 16 << 20;

/// Ends the count when it is dropped.
pub(super) struct Guard {
    _ends: oneshot::Sender<()>,
}

/// Starts counting.
pub(super) fn guard(
    daemon: &Arc<Daemon>,
    uuid: &GpuUuid,
    mps: &Arc<MpsInstance>,
    control: &Arc<ControlDaemon>,
) -> Guard {
    let (ends, mut ended) = oneshot::channel();
    let mut guard = Counting {
        daemon: Arc::clone(daemon),
        uuid: uuid.clone(),
        mps: Arc::clone(mps),
        control: Arc::clone(control),
        book: Book::default(),
        told: BTreeMap::new(),
        looked: None,
        warned: false,
    };
    daemon.spawn(format!("counts descriptors of {uuid}"), async move {
        let mut next = Instant::now();
        loop {
            tokio::select! {
                // Dropped: its card task has done with this control daemon.
                _ = &mut ended => return Ok(()),
                () = sleep_until(next) => {}
            }
            if !guard.count().await? {
                return Ok(());
            }
            next = Instant::now() + guard.pause();
        }
    });
    Guard { _ends: ends }
}

struct Counting {
    daemon: Arc<Daemon>,
    uuid: GpuUuid,
    mps: Arc<MpsInstance>,
    control: Arc<ControlDaemon>,
    book: Book,
    /// What each container cost when something was done about it.
    told: BTreeMap<GrantKey, u64>,
    /// When the connections were looked at, and how many descriptors there were.
    looked: Option<(Instant, u64)>,
    warned: bool,
}

/// What is known of each connection, by inode.
#[derive(Debug, Default)]
struct Book {
    seen: BTreeMap<u64, Seen<GrantKey>>,
}

/// One look: the totals, and what each container costs.
struct Count {
    used: u64,
    limit: u64,
    costs: BTreeMap<GrantKey, Cost>,
}

impl Counting {
    /// Until the next count. A container that shares the daemon's socket comes from settings of
    /// before, or by those of now.
    fn pause(&self) -> Duration {
        let has_doors = self.daemon.settings.now().mps.channel.has_doors()
            && self.daemon.node().ledger().on_card(&self.uuid).all(|entry| entry.grant.has_door());
        if has_doors { EACH } else { OFTEN }
    }

    /// `false` once the daemon has ended.
    async fn count(&mut self) -> Result<bool, DaemonError> {
        let Ok(used) = self.mps.descriptors_open(&self.control) else {
            // Whoever waits for its end acts on it.
            return Ok(self.control.process.is_alive());
        };
        let due = self
            .looked
            .is_none_or(|(at, then)| at.elapsed() >= EACH || (used > FEW && used >= then + GROWTH));
        if !due {
            return Ok(true);
        }
        self.looked = Some((Instant::now(), used));
        self.look(used).await
    }

    async fn look(&mut self, used: u64) -> Result<bool, DaemonError> {
        let Ok(limit) = self.mps.descriptor_limit(&self.control) else {
            return Ok(self.control.process.is_alive());
        };
        if used <= FEW && !needs_restart(used, limit) {
            // The usual case: no container can have cost too many, so none is looked for.
            self.book = Book::default();
            self.show(&Count { used, limit, costs: BTreeMap::new() });
            let mps = Arc::clone(&self.mps);
            self.daemon.blocking("trim a control log", move |_: &_| trim(&mps)).await?;
            return Ok(true);
        }
        let (entries, clients) = {
            let node = self.daemon.node();
            let entries: Vec<Entry> = node.ledger().on_card(&self.uuid).cloned().collect();
            let clients = node.card(&self.uuid).map(|card| card.max_clients).unwrap_or_default();
            (entries, u64::from(clients))
        };
        let mut book = std::mem::take(&mut self.book);
        let (mps, control, of) =
            (Arc::clone(&self.mps), Arc::clone(&self.control), entries.clone());
        let work = move |_: &_| {
            let _urgent = Urgent::begin();
            let count = book.count(&mps, &control, &of, clients);
            trim(&mps);
            (book, count)
        };
        let (book, count) = self.daemon.blocking("count descriptors", work).await?;
        self.book = book;
        let Ok(count) = count else {
            // Whoever waits for its end acts on it.
            return Ok(self.control.process.is_alive());
        };
        self.show(&count);
        self.told.retain(|key, _| entries.iter().any(|entry| entry.grant.key == *key));
        for (key, cost) in &count.costs {
            let now = cost.descriptors(clients);
            let before = self.told.get(key).copied().unwrap_or_default();
            // Said again only when it has become twice as much: it should have ended.
            if !cost.is_too_much(clients) || now < before * 2 {
                continue;
            }
            let Some(entry) = entries.iter().find(|entry| entry.grant.key == *key) else {
                continue;
            };
            self.told.insert(key.clone(), now);
            self.end(entry, now).await?;
        }
        Ok(true)
    }

    async fn end(&self, entry: &Entry, cost: u64) -> Result<(), DaemonError> {
        let State::Active { init, .. } = &entry.state else { return Ok(()) };
        let culprit = Culprit {
            process: *init,
            words: process::describe(init.pid),
            entry: Some(entry.clone()),
        };
        let why = format!(
            "it cost the card's MPS control daemon {cost} descriptors; a container may cost {DESCRIPTORS}, \
             and without them no container could use the card"
        );
        enforce(&self.daemon, &self.uuid, &culprit, why).await.map(drop)
    }

    /// What status, doctor and the metrics tell.
    fn show(&mut self, count: &Count) {
        let restart_needed = needs_restart(count.used, count.limit);
        let status = DescriptorStatus { used: count.used, limit: count.limit, restart_needed };
        let index = {
            let mut node = self.daemon.node();
            let Some(card) = node.card_mut(&self.uuid) else { return };
            if let Some(mps) = &mut card.mps {
                mps.descriptors = Some(status);
            }
            card.index
        };
        if restart_needed && !self.warned {
            let names: Vec<&str> =
                count.costs.keys().map(|key| key.container_id.as_str()).collect();
            log::error!(
                uuid = self.uuid.as_str(), gpu = index, used = count.used, limit = count.limit,
                connected = names.join(","), hint = restart_hint(index).as_str();
                "restart needed: the MPS control daemon has lost half of its descriptors"
            );
        }
        self.warned = restart_needed;
    }
}

/// This thread comes before all others that are not of real time, as long as this lives: whoever
/// floods the daemon can also keep every processor busy.
struct Urgent(i32);

impl Urgent {
    /// Where the kernel does not allow that, nothing changes.
    fn begin() -> Option<Self> {
        let before = rustix::process::getpriority_process(None).ok()?;
        rustix::process::setpriority_process(None, -20).ok()?;
        Some(Self(before))
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        // To less everybody may go back.
        let _ = rustix::process::setpriority_process(None, self.0);
    }
}

/// Keeps the daemon's log within its bounds.
fn trim(mps: &MpsInstance) {
    if let Err(error) = mps.dirs().log_file().trim(LOG_BYTES) {
        log::warn!(card = mps.card(), reason:% = error; "control log not trimmed");
    }
}

/// What an operator does about a control daemon that loses its descriptors.
fn restart_hint(gpu: u32) -> String {
    format!("once its containers have ended: mpsgate mps restart {gpu}")
}

impl Book {
    fn count(
        &mut self,
        mps: &MpsInstance,
        control: &ControlDaemon,
        entries: &[Entry],
        clients: u64,
    ) -> std::io::Result<Count> {
        let mut found = self.look(mps, control, entries)?;
        let ends =
            |all: &BTreeMap<GrantKey, Cost>| all.values().any(|cost| cost.is_too_much(clients));
        let enough = if found.used > MANY { 1 } else { UNSEEN };
        if self.news(&found) >= enough && !ends(&costs(self.seen.values(), clients)) {
            let mut owners = Owners::default();
            mps.watch_connections(control, BURST, |one| self.note(one, entries, &mut owners));
            found = self.look(mps, control, entries)?;
        }
        let mut all = costs(self.seen.values(), clients);
        if ends(&all) {
            std::thread::sleep(AGAIN);
            // Those that the daemon has not closed since. Nothing new is looked at: the flood goes
            // on meanwhile.
            let open = mps.connections(control);
            let stay =
                self.seen.iter().filter(|(inode, seen)| !seen.over || open.contains(**inode));
            all = costs(stay.map(|(_, seen)| seen), clients);
            found.used = mps.descriptors_open(control)?;
        }
        Ok(Count { used: found.used, limit: found.limit, costs: all })
    }

    /// Connections of nobody that this look has shown, but for those that were known to be over.
    fn news(&self, found: &Descriptors) -> usize {
        let of_nobody = |inode: &u64| self.seen.get(inode).is_some_and(|seen| seen.owner.is_none());
        found.connections.iter().filter(|one| of_nobody(&one.inode)).count()
    }

    fn over(&self) -> impl Iterator<Item = u64> {
        self.seen.iter().filter(|(_, seen)| seen.over).map(|(inode, _)| *inode)
    }

    /// Takes what is there now. What is over stays so, and is not looked at again.
    fn look(
        &mut self,
        mps: &MpsInstance,
        control: &ControlDaemon,
        entries: &[Entry],
    ) -> std::io::Result<Descriptors> {
        let known: BTreeSet<u64> = self.over().collect();
        let found = mps.descriptors(control, &known)?;
        self.seen.retain(|inode, _| found.sockets.contains(inode));
        let mut owners = Owners::default();
        for one in &found.connections {
            self.note(one, entries, &mut owners);
        }
        Ok(found)
    }

    /// Whose it is stays as it was first seen.
    fn note(&mut self, one: &Connection, entries: &[Entry], owners: &mut Owners) {
        if let Some(seen) = self.seen.get_mut(&one.inode) {
            seen.over = one.over;
            return;
        }
        let owner = one.maker.and_then(|maker| {
            owners.entry(maker.pid).or_insert_with(|| container(maker.pid, entries)).clone()
        });
        self.seen.insert(one.inode, Seen { owner, network: one.network, over: one.over });
    }
}

/// The containers of processes that live, for a moment: a flood has one maker, or a few.
type Owners = BTreeMap<i32, Option<GrantKey>>;

/// The container that a process is in.
fn container(pid: i32, entries: &[Entry]) -> Option<GrantKey> {
    let process = process::identify(u32::try_from(pid).ok()?)?;
    Some(Culprit::find(process, entries)?.entry?.grant.key)
}
