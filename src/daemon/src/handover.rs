//! Hands a card over to mpsgate and takes it back, for whoever wants that: an operator's command,
//! the settings, the node's label. All take turns.

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use mpsgate_host::crash_point;
use mpsgate_model::printable::few;
use mpsgate_model::{Code, Refusal};
use mpsgate_node::card::{Card, CardEvent, CardId, Closing, Health, ManagedBy, Trouble};
use tokio::sync::{MutexGuard, oneshot};

use crate::daemon::Daemon;
use crate::files::FileKind;
use crate::hardware::Objection;
use crate::line::Line;
use crate::orders::Order;
use crate::{cards, managed, process_end, snapshot};

/// Holders that a refusal names.
const NAMED: usize = 10;
/// What is waited for before a card is anybody's.
pub(crate) const PUBLISHING: &str = "the shim is being told of the card";

/// Who is told what is waited for.
pub(crate) enum Told<'a> {
    /// Whoever called.
    Caller(&'a mut Line),
    /// Nobody: the settings file did, at SIGHUP.
    Nobody,
}

impl Told<'_> {
    /// Waits for `work`.
    pub(crate) async fn wait<T>(&mut self, doing: &str, work: impl Future<Output = T>) -> T {
        match self {
            Self::Caller(line) => line.wait(doing, work).await,
            Self::Nobody => work.await,
        }
    }

    /// Waits for the end of what another operator has begun.
    pub(crate) async fn turn<'d>(&mut self, daemon: &'d Daemon) -> MutexGuard<'d, ()> {
        self.wait("another command is at work", daemon.operator.lock()).await
    }
}

/// Hands over a card that is not managed, in the caller's turn.
pub(crate) async fn hand_over(
    daemon: &Arc<Daemon>,
    told: &mut Told<'_>,
    card: &CardId,
    by: ManagedBy,
) -> Result<String, Refusal> {
    let label = label(daemon, card);
    if let Some(refusal) = in_use(daemon, told, card).await {
        return Err(refusal);
    }
    if by == ManagedBy::Operator {
        let card = card.uuid.clone();
        write_down(daemon, told, move |path| managed::change(path, &card, true)).await?;
    }
    crash_point!("enable.recorded");
    // Before the card is managed: whoever looks at the cards meanwhile starts no second one.
    let card_task = cards::CardTask::new(daemon, &card.uuid);
    daemon.happened(&card.uuid, CardEvent::HandedOver(by));
    // Before anything is started: from now on nobody reaches the card without a grant.
    told.wait(PUBLISHING, snapshot::publish(daemon)).await;
    crash_point!("enable.published");
    let changes = daemon.changes();
    card_task.start();
    let health = told.wait(&format!("preparing {label}"), settled(daemon, card, changes)).await;
    let Some(trouble) = health.trouble() else {
        crash_point!("enable.ready");
        log::info!(uuid = card.uuid.as_str(); "card enabled");
        return Ok(format!("{label} is managed now: {} to give", card.memory));
    };
    let undone = take_back(daemon, told, card, &label).await;
    let mut sentence = format!("{label} {}", trouble.why);
    if let Err(refusal) = undone {
        sentence = format!("{sentence}; and it could not be given back: {}", refusal.sentence);
    }
    let code = match health {
        Health::Unfit(_) => Code::GpuUnfit,
        _ => Code::GpuUnhealthy,
    };
    Err(Refusal::new(code, sentence, trouble.hint.clone()))
}

/// Why a card is not for us alone: processes use it that are no servers of ours, or it cannot be
/// shared.
pub(crate) async fn in_use(
    daemon: &Arc<Daemon>,
    told: &mut Told<'_>,
    card: &CardId,
) -> Option<Refusal> {
    let label = label(daemon, card);
    let asked = card.clone();
    let schedule = daemon.node().schedule.now();
    let look = daemon.blocking(move |h| {
        h.objections(asked.uuid.as_str(), schedule)
            .map_err(|objection| (objection, h.own_servers(&asked)))
    });
    let looked = told.wait(&format!("looking at {label}"), look).await;
    looked.err().and_then(|(objection, own)| object(objection, &own, &label))
}

/// Takes a managed card back, in the caller's turn.
pub(crate) async fn give_back(
    daemon: &Arc<Daemon>,
    told: &mut Told<'_>,
    card: &CardId,
) -> Result<String, Refusal> {
    let label = label(daemon, card);
    // Under the same lock as the count: no grant can slip in.
    daemon.change(|node, effects| {
        let holders: Vec<String> = node
            .ledger()
            .on_card(&card.uuid)
            .map(|entry| format!("{} ({})", entry.grant.name(), entry.grant.memory))
            .collect();
        if !holders.is_empty() {
            return Err(Refusal::new(
                Code::GpuInUse,
                format!("{label} has grants: {}", few(holders, NAMED)),
                "stop these containers first; mpsgate status shows when the last grant has ended",
            ));
        }
        node.apply(&card.uuid, CardEvent::Closed(Closing::TakeBack), Instant::now(), effects);
        Ok(())
    })?;
    crash_point!("disable.fenced");
    take_back(daemon, told, card, &label).await?;
    crash_point!("disable.forgotten");
    log::info!(uuid = card.uuid.as_str(); "card disabled");
    Ok(format!("{label} is not managed any more"))
}

/// Stops the card task and what it kept, then forgets that the card was handed over.
async fn take_back(
    daemon: &Arc<Daemon>,
    told: &mut Told<'_>,
    card: &CardId,
    label: &str,
) -> Result<(), Refusal> {
    let (reply, answer) = oneshot::channel();
    let stop = async {
        // Both fail only where the card task has ended by itself: then there is nothing to stop.
        if !daemon.order(&card.uuid, Order::Stop { reply }) {
            return Ok(());
        }
        answer.await.unwrap_or(Ok(()))
    };
    let stopped = told.wait(&format!("stopping the MPS control daemon of {label}"), stop).await;
    if let Err(Trouble { why, hint }) = stopped {
        daemon.happened(&card.uuid, CardEvent::Reopened);
        return Err(Refusal::new(
            Code::GpuUnhealthy,
            format!("{label} could not be taken back: {why}"),
            hint,
        ));
    }
    crash_point!("disable.stopped");
    daemon.card_tasks().remove(&card.uuid);
    daemon.happened(&card.uuid, CardEvent::TakenBack);
    told.wait(PUBLISHING, snapshot::publish(daemon)).await;
    crash_point!("disable.published");
    let card = card.uuid.clone();
    write_down(daemon, told, move |path| managed::change(path, &card, false)).await
}

/// Waits until the first attempt to bring a card up has ended.
pub(crate) async fn settled(
    daemon: &Daemon,
    card: &CardId,
    mut changes: tokio::sync::watch::Receiver<u64>,
) -> Health {
    loop {
        let health = daemon.node().card(&card.uuid).map(|card| card.health().clone());
        match health {
            Some(Health::Starting) => {}
            Some(health) => return health,
            None => {
                let hint = "look at what the driver sees: nvidia-smi -L";
                return Health::Unhealthy(Trouble::new("is gone", hint));
            }
        }
        // The sender lives as long as the daemon.
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn label(daemon: &Daemon, card: &CardId) -> String {
    daemon.node().card(&card.uuid).map_or_else(|| card.uuid.to_string(), Card::label)
}

fn object(objection: Objection, own: &[u32], label: &str) -> Option<Refusal> {
    match objection {
        Objection::Unfit(Trouble { why, hint }) => {
            Some(Refusal::new(Code::GpuUnfit, format!("{label} {why}"), hint))
        }
        Objection::Failed(Trouble { why, hint }) => Some(Refusal::new(
            Code::GpuUnhealthy,
            format!("{label} cannot be looked at: {why}"),
            hint,
        )),
        Objection::InUse(pids) => {
            let foreign: Vec<u32> = pids.into_iter().filter(|pid| !own.contains(pid)).collect();
            let named = few(foreign.iter().map(|pid| process_end::describe(*pid)), NAMED);
            (!foreign.is_empty()).then(|| {
                let pids: Vec<String> = foreign.iter().take(NAMED).map(u32::to_string).collect();
                Refusal::new(
                    Code::GpuInUse,
                    format!("{label} is in use by {named}"),
                    format!("end these processes first: ps -fp {}", pids.join(",")),
                )
            })
        }
    }
}

/// Changes the file of what operators have set.
pub(crate) async fn write_down(
    daemon: &Daemon,
    told: &mut Told<'_>,
    change: impl FnOnce(&Path) -> io::Result<()> + Send + 'static,
) -> Result<(), Refusal> {
    let path = daemon.paths.managed();
    let changed = daemon.files.run(FileKind::Managed, move || change(&path));
    let changed = told.wait("what the operator wants is being written down", changed).await;
    changed.map_err(|error| not_written(daemon, &daemon.paths.managed(), &error))
}

/// Below the state directory.
pub(crate) fn not_written(daemon: &Daemon, path: &Path, error: &io::Error) -> Refusal {
    Refusal::new(
        Code::Ledger,
        format!("{} cannot be changed: {error}", path.display()),
        format!("ls -ld {0}; df {0}", daemon.paths.state.display()),
    )
}
