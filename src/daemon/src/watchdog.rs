//! Adds up what the processes of each container use of its card, and ends who takes more than was
//! granted.
//!
//! ```text
//!  each second: NVML's processes ─► whose (owners) ─► node::watchdog::decide ─► end, report (act)
//! ```
//!
//! MPS limits each process, and a process can unset its limit; nothing but this holds a container
//! of several processes to its grant. A look costs NVML's lists, and two small files of /proc for
//! each process. What a look cannot see is said in `mpsgate status`, once in the log, and takes the
//! grants' guarantee back to `mps`.

mod act;
mod owners;
pub(crate) mod pid_record;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_config::{Enforce, Schedule, Tolerance};
use mpsgate_model::ledger::{Entry, Ledger, State};
use mpsgate_model::{GpuUuid, GrantKey, Mib};
use mpsgate_node::Backend;
use mpsgate_node::card::{Card, CardEvent, CardId, Trouble, Watched};
use mpsgate_node::overuse::{Kind, Limit, Look, Rules, Seen, decide};
use mpsgate_policy::{Conclusion, TOLERANCE};
use tokio::time::Instant;

use self::owners::Owners;
use crate::DaemonError;
use crate::daemon::Daemon;
use crate::files::FileKind;
use crate::hardware::Hardware;
use crate::orders::HandedOver;

/// Between two looks at a card with grants.
const BUSY: Duration = Duration::from_secs(1);
/// Before the look that has to agree where a container has got past its limit: a client without one
/// had 139 GiB of an H200 after 0.4 s (measured, driver 580), and its neighbours nothing.
const URGENT: Duration = Duration::from_millis(100);
/// Between two looks at a managed card without: whoever uses it bypasses mpsgate.
const IDLE: Duration = Duration::from_secs(5);

/// What the looks before have shown.
#[derive(Default)]
struct Memory {
    cards: BTreeMap<GpuUuid, CardMemory>,
    owners: Owners,
}

#[derive(Default)]
struct CardMemory {
    looked: Option<Instant>,
    seen: Seen,
    /// It has been said that its processes' memory is not seen.
    told_blind: bool,
}

/// A card to look at.
struct Due {
    card: CardId,
    limits: Vec<Limit>,
    schedule: Schedule,
}

/// Looks for as long as the process lives.
pub(crate) async fn watch(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    let mut memory = Memory { owners: Owners::open(daemon.paths.holders()), ..Memory::default() };
    let mut is_urgent = false;
    loop {
        tokio::time::sleep(if is_urgent { URGENT } else { BUSY }).await;
        is_urgent = round(&daemon, &mut memory, is_urgent).await;
    }
}

/// One look at each card that is due, `at_once` after the one before; whether the next should come
/// so.
async fn round(daemon: &Arc<Daemon>, memory: &mut Memory, at_once: bool) -> bool {
    let handed_over = std::mem::take(&mut *daemon.handed_over());
    let (due, entries, changes) = {
        let node = daemon.node();
        let lives = |key: &GrantKey| node.ledger().get(key).is_some();
        for HandedOver { card, client, grant } in handed_over {
            memory.owners.hand_over(card, client, grant, lives);
        }
        // One that NVML does not show for a while may come back.
        let is_watched = |uuid: &GpuUuid| node.card(uuid).is_none_or(Card::is_managed);
        memory.owners.keep_cards(is_watched);
        let due = due(node.cards(), node.ledger(), node.schedule.now(), memory);
        // Who is told of `driver.trouble` is told enough.
        if due.is_empty() || node.driver.trouble.is_some() {
            return false;
        }
        (due, node.entries(), node.changes())
    };
    let mut owners = std::mem::take(&mut memory.owners);
    let looked = move |hardware: &Hardware| {
        owners.begin(changes);
        let looks: Vec<_> = due
            .into_iter()
            .map(|Due { card, limits, schedule }| {
                let look = look(hardware, &card, limits, &mut owners, &entries)
                    .map(|look| Look { at_once, ..look });
                (card.uuid, schedule, look)
            })
            .collect();
        let keep = owners.end();
        (looks, owners, entries, keep)
    };
    let (looks, owners, entries, keep) = daemon.blocking(looked).await;
    if let Some(keep) = keep {
        daemon.files.post(FileKind::Holders, keep);
    }
    memory.owners = owners;
    let mut is_urgent = false;
    for (uuid, schedule, look) in looks {
        let card = memory.cards.entry(uuid.clone()).or_default();
        let since = card.looked.replace(Instant::now());
        match look {
            Ok(look) => {
                let (index, granted) = {
                    let node = daemon.node();
                    let index = node.card(&uuid).map(|card| card.index).unwrap_or_default();
                    (index, node.ledger().on_card(&uuid).cloned().collect::<Vec<_>>())
                };
                daemon.usage.add((uuid.as_str(), index), since, &look, &granted);
                is_urgent |= take(daemon, &uuid, schedule, card, look, &entries);
            }
            Err(Trouble { why, .. }) => {
                tell_blind(&uuid, card, Some(&why));
                daemon.happened(&uuid, CardEvent::NotWatched(why, at_once));
            }
        }
    }
    is_urgent
}

/// Managed cards that are there, with their live grants.
fn due(cards: &[Card], ledger: &Ledger, schedule: Schedule, memory: &mut Memory) -> Vec<Due> {
    memory.cards.retain(|uuid, _| cards.iter().any(|card| card.uuid == *uuid));
    let mut due = Vec::new();
    for card in cards {
        if !card.is_managed() || card.is_closed() || card.is_lost() {
            continue;
        }
        let limits: Vec<Limit> = ledger
            .on_card(&card.uuid)
            .filter(|entry| matches!(entry.state, State::Active { .. }))
            .map(|entry| Limit { key: entry.grant.key.clone(), memory: entry.grant.memory })
            .collect();
        let looked = memory.cards.get(&card.uuid).and_then(|memory| memory.looked);
        let is_idle = limits.is_empty() && card.qualified().asking.is_none();
        if is_idle && looked.is_some_and(|looked| looked.elapsed() < IDLE) {
            continue;
        }
        let (uuid, minor, memory) = (card.uuid.clone(), card.minor, card.memory);
        let card = CardId { uuid, minor, memory, default_limit: card.cap() };
        due.push(Due { card, limits, schedule });
    }
    due
}

/// Reads one card. Blocks.
fn look(
    hardware: &Hardware,
    card: &CardId,
    limits: Vec<Limit>,
    owners: &mut Owners,
    entries: &[Entry],
) -> Result<Look, Trouble> {
    // First: whoever has started since is not whom NVML names.
    let before = crate::process_end::ticks_now();
    let list = hardware.users(card.uuid.as_str())?;
    let mut servers = None;
    let is_server = |pid| servers.get_or_insert_with(|| hardware.own_servers(card)).contains(&pid);
    let users = owners.users(&card.uuid, &list.processes, before, &limits, entries, is_server);
    Ok(Look {
        limits,
        users: users.named,
        unnamed: users.unnamed,
        tells_clients: list.tells_clients,
        used: list.used_bytes,
        at_once: false,
    })
}

/// Decides on one look, and starts what follows from it; whether the next should come at once.
fn take(
    daemon: &Arc<Daemon>,
    uuid: &GpuUuid,
    schedule: Schedule,
    memory: &mut CardMemory,
    mut look: Look,
    entries: &[Entry],
) -> bool {
    let policy = daemon.settings.now().policy.clone();
    let enforce = schedule.enforce(policy.enforce);
    look.tells_clients &= schedule.tells_clients();
    let rules = rules(daemon, uuid, policy.tolerance_mib, enforce);
    let outcome = decide(&memory.seen, &look, rules);
    memory.seen = outcome.seen;
    // Before it is told that there was a look.
    note_others(daemon, uuid, &look, &memory.seen);
    let watched = Watched {
        enforced: outcome.blind.is_none() && enforce == Enforce::Kill,
        blind: outcome.blind.map(|blind| blind.to_string()),
        used: outcome.used,
        parts: mpsgate_node::memory::parts(&look),
        looks: 0,
    };
    tell_blind(uuid, memory, watched.blind.as_deref());
    daemon.happened(uuid, CardEvent::Watched(Box::new(watched), look.at_once));
    for action in outcome.actions {
        act::start(daemon, uuid, action, entries);
    }
    outcome.is_urgent
}

/// Who uses a card without a grant, for whoever asks what holds on it. What is only drawn with it
/// counts by its memory.
fn note_others(daemon: &Daemon, uuid: &GpuUuid, look: &Look, seen: &Seen) {
    let others = look.others(seen).map(|other| other.used).sum();
    let outsiders = look.others(seen).filter(|other| other.kind != Kind::Graphics);
    let outsiders: Vec<u32> = outsiders.map(|other| other.pid).collect();
    daemon.happened(uuid, CardEvent::Others(outsiders, others));
}

/// What the operator has set, and what follows from the card's answers.
fn rules(daemon: &Daemon, uuid: &GpuUuid, set: Tolerance, enforce: Enforce) -> Rules {
    let node = daemon.node();
    let answers = node.card(uuid).map(|card| &card.qualified().conclusion);
    let tolerance = match set {
        Tolerance::Mib(mib) => Mib(mib.into()),
        Tolerance::Auto => answers.map_or(TOLERANCE, |answers| answers.tolerance),
    };
    Rules { tolerance, enforce, counts_clients: answers.is_some_and(Conclusion::counts_clients) }
}

/// In the log, once for as long as it lasts.
fn tell_blind(uuid: &GpuUuid, memory: &mut CardMemory, blind: Option<&str>) {
    let was_told = std::mem::replace(&mut memory.told_blind, blind.is_some());
    match blind {
        Some(reason) if !was_told => {
            log::warn!(
                uuid = uuid.as_str(), reason;
                "memory of the card's processes is not seen: nobody's sum is compared with his grant"
            );
        }
        None if was_told => {
            log::info!(uuid = uuid.as_str(); "memory of the card's processes is seen again");
        }
        _ => {}
    }
}
