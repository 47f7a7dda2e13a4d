//! Keeps the list of cards as NVML shows it: cards come and go, drivers are replaced, NVML may be
//! missing when the daemon starts. Starts the card tasks of managed cards.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpsgate_model::{GpuUuid, Mib};
use mpsgate_node::card::{Card, CardEvent, CardId, Seen, Trouble};
use mpsgate_node::{Effect, NOT_YET, Node};

use crate::daemon::Daemon;
use crate::hardware::{Hardware, Inventory};
use crate::{DaemonError, answer_files, cards, kubelet, snapshot};

/// Between two looks while all is well, and while something has to be tried again.
const QUIET: Duration = Duration::from_secs(10);
const FAILING: Duration = Duration::from_secs(5);
/// When a call counts as hanging. It takes milliseconds while the driver is loaded, and some
/// seconds for each card where the first one has to wake it.
const HANG: Duration = Duration::from_secs(15);

/// Looks for as long as the process lives.
pub(crate) async fn watch(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    daemon.node().driver.trouble = Some(Trouble::new(NOT_YET, "nvidia-smi; mpsgate status"));
    let mut given_back = false;
    // A node may be another system's. Where containers have grants it is ours, and they are not to
    // wait.
    let is_idle = daemon.node().ledger().entries().is_empty();
    if is_idle {
        obey_first_labels(&daemon).await;
    }
    loop {
        let answers = refresh_or_tell(&daemon).await;
        // First, so that a managed card that is known always has a card task.
        start_card_tasks(&daemon);
        if answers && !given_back {
            given_back = give_back_strangers(&daemon).await;
        }
        drop(snapshot::publish(&daemon));
        let wait = if answers && given_back { QUIET } else { FAILING };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = daemon.look.notified() => {}
        }
    }
}

/// Obeys the node's labels before any card is touched, where they can be had soon: else what they
/// said last holds, and where that is not known, the settings.
async fn obey_first_labels(daemon: &Daemon) {
    let Some(api_server) = daemon.api_server.get() else { return };
    if let Some(labels) = api_server.first_labels().await {
        daemon.obey(&labels);
    }
}

/// Reads NVML, however long it takes; meanwhile nobody is granted what may not be there.
async fn refresh_or_tell(daemon: &Arc<Daemon>) -> bool {
    let mut refresh = pin!(refresh(daemon));
    tokio::select! {
        answers = &mut refresh => return answers,
        () = tokio::time::sleep(HANG) => {}
    }
    let why = format!("NVML has not answered for {} s", HANG.as_secs());
    log::error!(reason = why.as_str(); "NVML hangs");
    daemon.node().driver.trouble = Some(Trouble::new(
        why,
        "look for NVRM and Xid lines in dmesg; nvidia-smi probably hangs too",
    ));
    daemon.tell_change();
    refresh.await
}

/// Reads NVML once. `false` where it does not answer.
pub(crate) async fn refresh(daemon: &Arc<Daemon>) -> bool {
    let turn = Arc::clone(&daemon.looking).lock_owned().await;
    let look = move |hardware: &Hardware| {
        // Kept by the call itself: who waits for it may give up.
        let _turn = turn;
        hardware.inventory()
    };
    let found = daemon.blocking(look).await;
    let (known, kept) = (known(daemon, &found), daemon.paths.qualification());
    let read =
        move |hardware: &Hardware| (hardware.control_program(), answer_files::load(&kept, known));
    let (control, answers) = daemon.blocking(read).await;
    let kubelet = kubelet::has_kubelet(&daemon.paths);
    let answers = daemon.change(|node, effects| {
        note_kubelet(daemon, node, kubelet);
        match found {
            Ok(found) => {
                take(daemon, node, found, effects);
                node.driver.control = control;
                take_answers(node, answers);
                true
            }
            Err(trouble) => {
                note_trouble(node, trouble);
                false
            }
        }
    });
    daemon.tell_change();
    answers
}

fn note_kubelet(daemon: &Daemon, node: &mut Node, kubelet: bool) {
    if std::mem::replace(&mut node.kubelet, kubelet) != kubelet {
        log::info!(kubelet; "kubelet looked for");
        // Without a kubelet nobody has looked.
        daemon.look_at_handlers.notify_one();
    }
}

fn note_trouble(node: &mut Node, trouble: Trouble) {
    if node.driver.trouble.as_ref() != Some(&trouble) {
        log::error!(reason = trouble.why.as_str(), hint = trouble.hint.as_str(); "NVML does not answer");
        node.driver.trouble = Some(trouble);
    }
}

/// The managed cards, and new ones: their answers count.
fn known(daemon: &Daemon, found: &Result<Inventory, Trouble>) -> Vec<GpuUuid> {
    let Ok(found) = found else { return Vec::new() };
    let node = daemon.node();
    let all = found.cards.iter().filter_map(|card| GpuUuid::parse(&card.uuid).ok());
    all.filter(|uuid| node.card(uuid).is_none_or(Card::is_managed)).collect()
}

fn take_answers(node: &mut Node, answers: BTreeMap<GpuUuid, answer_files::Found>) {
    for (uuid, found) in answers {
        let why = found.as_ref().err().cloned();
        if node.set_answers(&uuid, found)
            && let Some(why) = why
        {
            log::error!(
                uuid = uuid.as_str(), reason = why.as_str(), hint = "mpsgate qualify asks anew";
                "what the card has answered cannot be read"
            );
        }
    }
    node.conclude();
}

fn take(daemon: &Daemon, node: &mut Node, found: Inventory, effects: &mut Vec<Effect>) {
    if node.driver.trouble.take().is_some() {
        log::info!(
            cards = found.cards.len(), driver = found.driver.as_deref(), simulated = found.simulated;
            "NVML answers"
        );
    }
    node.driver.simulated = found.simulated;
    node.driver.version = found.driver;
    let (manage, now) = (daemon.settings.now().gpus.manage.clone(), Instant::now());
    let mut missing: BTreeSet<GpuUuid> = node.cards().iter().map(|c| c.uuid.clone()).collect();
    for card in found.cards {
        let Ok(uuid) = GpuUuid::parse(&card.uuid) else {
            log::warn!(uuid = card.uuid.as_str(); "card with an unknown form of UUID is left alone");
            continue;
        };
        missing.remove(&uuid);
        let seen = Seen {
            index: card.index,
            minor: card.minor,
            name: card.name,
            total: Mib(card.memory_total_mib),
            memory: daemon.hardware.grantable(card.memory_total_mib),
            used: Mib(card.memory_used_mib),
            compute_mode: card.compute_mode,
            is_named: manage.includes(uuid.as_str()),
        };
        node.apply(&uuid, CardEvent::Seen(Box::new(seen)), now, effects);
    }
    for uuid in missing {
        let told = found.failed.iter().find(|(of, _)| of.as_deref() == Some(uuid.as_str()));
        // NVML does not tell the UUID of every lost card; with one failure it can only be that.
        let told = told.or_else(|| found.failed.first().filter(|(of, _)| of.is_none()));
        let told = told.map(|(_, trouble)| trouble.clone());
        node.apply(&uuid, CardEvent::Vanished(told), now, effects);
    }
}

fn start_card_tasks(daemon: &Arc<Daemon>) {
    let managed: Vec<GpuUuid> = {
        let node = daemon.node();
        let kept = |card: &&Card| card.is_managed() && !card.is_closed();
        node.cards().iter().filter(kept).map(|c| c.uuid.clone()).collect()
    };
    for uuid in managed {
        let kept = daemon.card_tasks().contains_key(&uuid);
        if !kept {
            cards::start(daemon, &uuid);
        }
    }
}

/// Cards that an earlier start of ours had, and that nobody hands over any more: their control
/// daemon is ended and their compute mode restored. Also what a crash in the middle of `disable` or
/// of `mps stop` left. `false` where that failed for one.
async fn give_back_strangers(daemon: &Arc<Daemon>) -> bool {
    let _turn = daemon.operator.lock().await;
    let mut done = true;
    let leased = daemon.blocking(|hardware| hardware.leased()).await;
    for uuid in leased {
        let card = {
            let node = daemon.node();
            let card = node.cards().iter().find(|card| card.uuid.as_str() == uuid);
            match card {
                Some(card) if card.is_managed() && !card.is_closed() => continue,
                Some(card) => CardId {
                    uuid: card.uuid.clone(),
                    minor: card.minor,
                    memory: card.memory,
                    default_limit: card.memory,
                },
                None => {
                    log::warn!(uuid = uuid.as_str(); "a lease of a card that is not there is kept");
                    continue;
                }
            }
        };
        log::info!(uuid = uuid.as_str(); "card is not managed any more and is given back");
        let given = daemon.blocking(move |h| h.take_down(&card)).await;
        if let Err(Trouble { why, hint }) = given {
            log::error!(uuid = uuid.as_str(), reason = why.as_str(), hint = hint.as_str(); "card not given back");
            done = false;
        }
    }
    done
}
