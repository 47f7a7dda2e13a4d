//! `mpsgate mps stop` and `mpsgate mps restart`: the only ways in which a healthy control daemon is
//! ended.
//!
//! ```text
//!                 not confirmed: the processes that would be terminated, and nothing is done
//!  stop     fenced, written down ─► MPS ended, compute mode restored ─► grants broken ─► stays fenced
//!  restart  fenced ─► MPS ended, compute mode kept ─► grants broken ─► brought up ─► open
//! ```
//!
//! A container that holds a grant on the card has lost its clients for good: its directory belongs
//! to the control daemon that ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_api::{ClientProcess, Json, Mps, MpsAction, Reply, ServerClients, WouldEnd};
use mpsgate_config::Schedule;
use mpsgate_host::crash_point;
use mpsgate_model::ledger::State;
use mpsgate_model::{Code, Refusal};
use mpsgate_node::card::{CardEvent, CardId, Closing, Trouble};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Answer, done};
use crate::daemon::Daemon;
use crate::handover::{PUBLISHING, Told, settled, write_down};
use crate::line::Line;
use crate::orders::{Clients, Order};
use crate::{cards, container_cgroup, managed, process_end, snapshot};

/// How long the list of clients is waited for: some commands of at most 3 s each.
const LIST_LIMIT: Duration = Duration::from_secs(8);

/// Ends a card's MPS, or ends it and starts it again, once the operator has seen who dies with it.
pub(crate) async fn mps(daemon: &Arc<Daemon>, line: &mut Line, call: &Mps) -> Answer {
    let mut told = Told::Caller(line);
    let _turn = told.turn(daemon).await;
    let (card, label, is_stopped) = {
        let node = daemon.node();
        let card = node.find_card(&call.gpu)?;
        if !card.is_managed() {
            return Err(Refusal::new(
                Code::GpuUnmanaged,
                format!("{} is not managed, so it has no MPS of mpsgate's", card.label()),
                format!("mpsgate enable {}", card.index),
            ));
        }
        let is_stopped = node.stopped.contains(&card.uuid);
        if node.schedule.now() == Schedule::Share && !is_stopped {
            return Err(Refusal::new(
                Code::GpuUnfit,
                format!("{} is shared without MPS, so there is none to end", card.label()),
                "to take the card back: mpsgate disable GPU; to have MPS: gpus.schedule = \"mps\"",
            ));
        }
        (node.card_id(card), card.label(), is_stopped)
    };
    if is_stopped && call.action == MpsAction::Stop {
        return done(format!("{label} is stopped already"));
    }
    if !call.confirmed {
        let doing = format!("listing the clients of {label}");
        let list = told.wait(&doing, list(daemon, &card)).await;
        return Ok(list.into_reply(daemon, &card, call.action));
    }
    let ended = match call.action {
        MpsAction::Stop => stop(daemon, &mut told, &card, &label).await,
        MpsAction::Restart if is_stopped => start(daemon, &mut told, &card, &label).await,
        MpsAction::Restart => restart(daemon, &mut told, &card, &label).await,
    };
    ended.and_then(done)
}

async fn stop(
    daemon: &Arc<Daemon>,
    told: &mut Told<'_>,
    card: &CardId,
    label: &str,
) -> Result<String, Refusal> {
    // Written down first: what a crash leaves half stopped is stopped at the next start.
    remember(daemon, told, card, true).await?;
    crash_point!("mps_stop.recorded");
    let stopped = order(daemon, told, card, label, |reply| Order::Stop { reply }).await;
    if let Err(refusal) = stopped {
        // Its card task brings it up again.
        remember(daemon, told, card, false).await?;
        return Err(refusal);
    }
    crash_point!("mps_stop.ended");
    let broken = broken(daemon, card);
    daemon.card_tasks().remove(&card.uuid);
    daemon.happened(&card.uuid, CardEvent::Stopped);
    log::warn!(uuid = card.uuid.as_str(), grants_broken = broken; "MPS stopped by the operator");
    Ok(format!(
        "the MPS of {label} is stopped{}; no container gets memory of it until: mpsgate mps restart {}",
        and_broken(broken),
        card.uuid
    ))
}

async fn restart(
    daemon: &Arc<Daemon>,
    told: &mut Told<'_>,
    card: &CardId,
    label: &str,
) -> Result<String, Refusal> {
    // A container that is created meanwhile would lose what it is given.
    daemon.happened(&card.uuid, CardEvent::Closed(Closing::Restart));
    let restarted = order(daemon, told, card, label, |reply| Order::Restart { reply }).await;
    crash_point!("mps_restart.ended");
    daemon.happened(&card.uuid, CardEvent::Reopened);
    restarted?;
    let broken = broken(daemon, card);
    log::warn!(uuid = card.uuid.as_str(), grants_broken = broken; "MPS restarted by the operator");
    come_up(daemon, told, card, label).await?;
    Ok(format!("the MPS of {label} is restarted{}", and_broken(broken)))
}

/// Starts what was stopped.
async fn start(
    daemon: &Arc<Daemon>,
    told: &mut Told<'_>,
    card: &CardId,
    label: &str,
) -> Result<String, Refusal> {
    remember(daemon, told, card, false).await?;
    crash_point!("mps_start.recorded");
    cards::start(daemon, &card.uuid);
    come_up(daemon, told, card, label).await?;
    log::info!(uuid = card.uuid.as_str(); "MPS started by the operator");
    Ok(format!("the MPS of {label} is started"))
}

/// Waits until the card is ready again, or has failed to be.
async fn come_up(
    daemon: &Daemon,
    told: &mut Told<'_>,
    card: &CardId,
    label: &str,
) -> Result<(), Refusal> {
    let changes = daemon.changes();
    let health = told.wait(&format!("preparing {label}"), settled(daemon, card, changes)).await;
    match health.trouble() {
        None => Ok(()),
        Some(Trouble { why, hint }) => {
            Err(Refusal::new(Code::GpuUnhealthy, format!("{label} {why}"), hint.clone()))
        }
    }
}

/// Gives an order to the card's task and waits until it is carried out.
async fn order(
    daemon: &Daemon,
    told: &mut Told<'_>,
    card: &CardId,
    label: &str,
    order: impl FnOnce(oneshot::Sender<Result<(), Trouble>>) -> Order,
) -> Result<(), Refusal> {
    let (reply, answer) = oneshot::channel();
    let order = order(reply);
    let carried_out = async {
        // Both fail only where the card task has ended by itself: then there is nothing to end.
        if daemon.order(&card.uuid, order) { answer.await.unwrap_or(Ok(())) } else { Ok(()) }
    };
    told.wait(&format!("stopping the MPS control daemon of {label}"), carried_out).await.map_err(
        |Trouble { why, hint }| {
            let sentence = format!("the MPS of {label} could not be stopped: {why}");
            Refusal::new(Code::GpuUnhealthy, sentence, hint)
        },
    )
}

/// Grants on the card that have lost its MPS; its card task has marked them.
fn broken(daemon: &Daemon, card: &CardId) -> usize {
    let node = daemon.node();
    node.ledger().on_card(&card.uuid).filter(|entry| entry.broken_ms.is_some()).count()
}

/// Keeps the card stopped over a restart of mpsgated, or forgets that.
async fn remember(
    daemon: &Arc<Daemon>,
    told: &mut Told<'_>,
    card: &CardId,
    stopped: bool,
) -> Result<(), Refusal> {
    let uuid = card.uuid.clone();
    write_down(daemon, told, move |path| managed::set_stopped(path, &uuid, stopped)).await?;
    let wanted = if stopped { CardEvent::StopWanted } else { CardEvent::StartWanted };
    daemon.happened(&card.uuid, wanted);
    told.wait(PUBLISHING, snapshot::publish(daemon)).await;
    Ok(())
}

fn and_broken(grants: usize) -> String {
    match grants {
        0 => String::new(),
        1 => ", and 1 grant is broken: restart that container".to_owned(),
        more => format!(", and {more} grants are broken: restart those containers"),
    }
}

/// What dies with a card's MPS, as far as its control daemon tells.
struct List {
    servers: Vec<ServerClients>,
    unknown: Option<String>,
}

/// Servers and clients of a card; where its control daemon does not tell, the servers that are
/// seen.
async fn list(daemon: &Daemon, card: &CardId) -> List {
    match clients(daemon, card).await {
        Ok(clients) => List { servers: name(daemon, card, clients), unknown: None },
        Err(why) => {
            let asked = card.clone();
            let seen = daemon.blocking(move |h| h.own_servers(&asked)).await;
            let server = |pid| ServerClients { pid, uid: None, clients: Vec::new() };
            List { servers: seen.into_iter().map(server).collect(), unknown: Some(why) }
        }
    }
}

/// What the control daemon tells, or why it does not.
async fn clients(daemon: &Daemon, card: &CardId) -> Result<Clients, String> {
    let (reply, answer) = oneshot::channel();
    if !daemon.order(&card.uuid, Order::Clients { reply }) {
        return Err("it is stopped".to_owned());
    }
    let answer = timeout(LIST_LIMIT, answer)
        .await
        .map_err(|_| format!("it did not answer in {} s", LIST_LIMIT.as_secs()))?;
    let clients = answer.map_err(|_| "it is being taken back".to_owned())?;
    clients.map_err(|trouble| trouble.why)
}

/// Puts containers and command lines to pids.
fn name(daemon: &Daemon, card: &CardId, clients: Clients) -> Vec<ServerClients> {
    let mut containers: BTreeMap<u32, String> = BTreeMap::new();
    for entry in daemon.node().ledger().on_card(&card.uuid) {
        let State::Active { init, cgroup } = &entry.state else { continue };
        let id = entry.grant.name();
        // One that cannot be read leaves its processes without a name in the list.
        let pids = cgroup.as_ref().and_then(|cgroup| container_cgroup::processes(cgroup).ok());
        containers.extend(pids.into_iter().flatten().map(|pid| (pid, id.clone())));
        containers.insert(init.pid, id);
    }
    let pid = |pid| u32::try_from(pid).unwrap_or_default();
    let client = |client| ClientProcess {
        pid: pid(client),
        container_id: containers.get(&pid(client)).cloned(),
        command: process_end::command(pid(client)),
    };
    clients
        .into_iter()
        .map(|(server, clients)| ServerClients {
            pid: pid(server.pid),
            uid: server.uid,
            clients: clients.into_iter().map(client).collect(),
        })
        .collect()
}

impl List {
    fn into_reply(self, daemon: &Daemon, card: &CardId, action: MpsAction) -> Reply {
        let status = daemon.node().status();
        let grants = status.grants.into_iter().filter(|grant| grant.card == card.uuid.as_str());
        let index = status.cards.iter().find(|known| known.uuid == card.uuid.as_str());
        let list = WouldEnd {
            action,
            card: card.uuid.to_string(),
            card_index: index.map(|card| card.index).unwrap_or_default(),
            grants: grants.collect(),
            servers: self.servers,
            unknown: self.unknown,
        };
        Reply::WouldEnd { list: Json::of(&list) }
    }
}
