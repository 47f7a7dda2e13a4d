//! SIGHUP and `mpsgate reload`: the settings file is read again. What can be taken is; what cannot
//! is named with what it waits for; a file with a mistake changes nothing.

use std::sync::Arc;
use std::time::Instant;

use mpsgate_api::Reply;
use mpsgate_config::{Change, Config, Manage, Taken};
use mpsgate_edge::logging;
use mpsgate_model::{Code, GpuUuid, Mib, Refusal};
use mpsgate_node::card::{CardEvent, CardId, ManagedBy};
use mpsgate_node::sharing::Want;
use mpsgate_node::{Effect, Node};
use mpsgate_policy::Quota;
use tokio::signal::unix::Signal;

use crate::daemon::Daemon;
use crate::handover::{Told, give_back, hand_over};
use crate::line::Line;
use crate::{DaemonError, error, snapshot};

/// Reloads at each SIGHUP. What comes of it is logged.
pub(crate) async fn on_hangup(daemon: Arc<Daemon>, mut hangup: Signal) -> Result<(), DaemonError> {
    loop {
        if hangup.recv().await.is_none() {
            let source = std::io::Error::other("the signal's stream ended");
            return Err(DaemonError::System { action: "catch SIGHUP", source });
        }
        // Each line and each mistake is logged below.
        let _ = reload(&daemon, &mut Told::Nobody).await;
    }
}

/// `mpsgate reload`.
pub(crate) async fn now(daemon: &Arc<Daemon>, line: &mut Line) -> Result<Reply, Refusal> {
    Ok(Reply::Reloaded { lines: reload(daemon, &mut Told::Caller(line)).await? })
}

/// Reads the file and takes what it says. One line for each key that differs from what is in force.
async fn reload(daemon: &Arc<Daemon>, told: &mut Told<'_>) -> Result<Vec<String>, Refusal> {
    let _turn = told.turn(daemon).await;
    let Some(file) = &daemon.settings.file else { return Ok(Vec::new()) };
    let asked = file.clone();
    let config = daemon.blocking(move |_| Config::load(&asked)).await.map_err(|error| {
        let why = error::chain(&error);
        log::error!(reason = why.as_str(), hint = error.hint(); "settings not reloaded");
        let sentence = format!(
            "{why}; mpsgated goes on with the settings that it has, and containers that ask for GPU \
             memory are refused until the file is right"
        );
        Refusal::new(Code::Config, sentence, error.hint())
    })?;
    daemon.look_at_handlers.notify_one();
    let changes = daemon.settings.adopt(&config);
    let mut lines: Vec<String> = changes.iter().map(render).collect();
    told.wait("the settings are being taken", apply(daemon, &changes)).await;
    if changes.iter().any(|change| change.key == "gpus.manage") {
        lines.extend(manage(daemon, told, &config.gpus.manage).await);
    }
    for line in &lines {
        log::info!(what = line.as_str(); "settings reloaded");
    }
    if lines.is_empty() {
        log::info!("settings reloaded: nothing has changed");
    }
    Ok(lines)
}

fn render(change: &Change) -> String {
    match change.taken {
        Taken::Now => format!("{}: taken", change.key),
        Taken::NextContainer => format!("{}: taken, from the next container on", change.key),
        Taken::After(what) => format!("{}: takes effect after: {what}", change.key),
    }
}

/// What each user may have.
pub(crate) fn quota(config: &Config) -> Quota {
    Quota { memory: Mib(config.run.max_mib), grants: config.run.max_grants }
}

/// Whatever holds a setting in another form gets it anew.
async fn apply(daemon: &Arc<Daemon>, changes: &[Change]) {
    let config = daemon.settings.now();
    for change in changes {
        match change.key {
            "log.level" => logging::set_level(config.log.level),
            "run.max_mib" | "run.max_grants" => daemon.node().quota = quota(&config),
            "trust.local" => daemon.node().trust_local = config.trust.local,
            "gpus.schedule" => daemon.want_schedule(Want::Settings(config.gpus.schedule)),
            "runtime.path" => snapshot::link_runtime(daemon, &config.runtime.path).await,
            // Whoever serves kubelet looks at each change.
            "kubernetes.device_plugin"
            | "kubernetes.memory_units_mib"
            | "kubernetes.slices_gib" => daemon.tell_change(),
            "metrics.listen" => daemon.metrics_moved.notify_one(),
            // Read at the next look at the cards, which is now.
            "gpus.reserve_mib" => daemon.look.notify_one(),
            "mps.max_clients" => {
                // Without NVML no card takes grants; the card tasks ask again when they bring one
                // up.
                if let Ok(clients) = daemon.blocking(|h| h.clients()).await {
                    let cards: Vec<GpuUuid> =
                        daemon.node().cards().iter().map(|card| card.uuid.clone()).collect();
                    for card in cards {
                        daemon.happened(&card, CardEvent::MostClients(clients));
                    }
                }
            }
            // Read where they are used.
            _ => {}
        }
    }
}

/// Hands over the cards that `gpus.manage` names anew, and gives those back that it names no more.
async fn manage(daemon: &Arc<Daemon>, told: &mut Told<'_>, wanted: &Manage) -> Vec<String> {
    let mut lines = Vec::new();
    let (added, removed) = daemon.change(|node, effects| differences(node, wanted, effects));
    if let Manage::Uuids(uuids) = wanted {
        let node = daemon.node();
        let is_there = |uuid: &String| {
            node.cards().iter().any(|card| card.uuid.as_str().eq_ignore_ascii_case(uuid))
        };
        let absent = uuids.iter().filter(|uuid| !is_there(uuid));
        lines.extend(absent.map(|uuid| format!("gpus.manage: {uuid} is not there now")));
    }
    for card in added {
        lines.push(match hand_over(daemon, told, &card, ManagedBy::Settings).await {
            Ok(text) => format!("gpus.manage: {text}"),
            Err(Refusal { sentence, hint, .. }) => {
                format!(
                    "gpus.manage: {sentence}; takes effect after: {hint}; mpsgate enable {}",
                    card.uuid
                )
            }
        });
    }
    for card in removed {
        lines.push(format!("gpus.manage: {}", take_out(daemon, told, &card).await));
    }
    lines
}

/// The cards that `wanted` names anew, and those that it names no more. Whose a managed card is
/// changes at once.
fn differences(
    node: &mut Node,
    wanted: &Manage,
    effects: &mut Vec<Effect>,
) -> (Vec<CardId>, Vec<CardId>) {
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    let cards: Vec<(GpuUuid, Option<ManagedBy>)> =
        node.cards().iter().map(|card| (card.uuid.clone(), card.managed())).collect();
    for (uuid, managed) in cards {
        let handed_over = node.handed_over.contains(&uuid);
        let next = match (wanted.includes(uuid.as_str()), managed) {
            // It is another system's, until the node's label says otherwise.
            (true, None) if node.schedule.leaves(&uuid) => continue,
            (true, None) => {
                added.extend(node.card(&uuid).map(|card| node.card_id(card)));
                continue;
            }
            (false, Some(ManagedBy::Settings)) if !handed_over => {
                removed.extend(node.card(&uuid).map(|card| node.card_id(card)));
                continue;
            }
            (true, Some(_)) => ManagedBy::Settings,
            (false, Some(_)) => ManagedBy::Operator,
            (false, None) => {
                node.schedule.forget(&uuid);
                continue;
            }
        };
        node.apply(&uuid, CardEvent::Kept(next), Instant::now(), effects);
    }
    (added, removed)
}

/// A card with grants stays managed, as it does over a restart, and waits for the operator.
async fn take_out(daemon: &Arc<Daemon>, told: &mut Told<'_>, card: &CardId) -> String {
    match give_back(daemon, told, card).await {
        Ok(text) => text,
        Err(Refusal { sentence, .. }) => {
            daemon.happened(&card.uuid, CardEvent::Kept(ManagedBy::Operator));
            format!(
                "{sentence}; it stays managed, takes effect after: end these containers; mpsgate disable {}",
                card.uuid
            )
        }
    }
}
