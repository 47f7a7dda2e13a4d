//! What is done about a container that takes more than its grant, and what is said about others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_api::Reply;
use mpsgate_model::ledger::{Entry, State};
use mpsgate_model::{GpuUuid, GrantKey};
use mpsgate_node::overuse::{Action, Overrun};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::daemon::Daemon;
use crate::enforce::{enforce, report};
use crate::orders::Order;
use crate::owner::Culprit;
use crate::{container_cgroup, process_end, terminate};

/// For the list of the card's clients, before and after: a healthy channel answers in milliseconds.
const LIST_LIMIT: Duration = Duration::from_millis(200);

/// Carries one action out, beside the looks: they do not wait for it.
pub(super) fn start(daemon: &Arc<Daemon>, card: &GpuUuid, action: Action, entries: &[Entry]) {
    let entry = |key: &GrantKey| entries.iter().find(|entry| entry.grant.key == *key).cloned();
    let (own, card) = (Arc::clone(daemon), card.clone());
    match action {
        Action::End(over) => {
            let Some(entry) = entry(&over.key) else { return };
            let name = format!("ends container {}", entry.grant.name());
            daemon.spawn(name, async move {
                end(&own, &card, entry, &over).await;
                Ok(())
            });
        }
        Action::Report(over) => {
            report(daemon, &card, entry(&over.key).as_ref(), over.to_string());
        }
        Action::Outsider { process, used } => {
            let entries = entries.to_vec();
            daemon.spawn("names a process", async move {
                let find = move |_: &_| Culprit::find(process, &entries);
                let Some(culprit) = own.blocking(find).await else {
                    return Ok(());
                };
                let used = used.map_or_else(|| "memory".to_owned(), |mib| format!("{} MiB", mib.0));
                let but = match &culprit.entry {
                    // Its grant came while NVML was looked at: the next look counts it.
                    Some(entry) if entry.grant.cards.iter().any(|of| of.uuid == card) => {
                        return Ok(());
                    }
                    Some(_) => "and has its grant on another card",
                    None => "and is in no container with a grant",
                };
                let why = format!("{} uses {used} of the card {but}", culprit.label());
                report(&own, &card, culprit.entry.as_ref(), why);
                Ok(())
            });
        }
        Action::Unnamed { pid, used } => {
            let used = used.map_or_else(|| "memory".to_owned(), |mib| format!("{} MiB", mib.0));
            let why = format!(
                "{used} of the card are listed under pid {pid}, whose process has ended or cannot be \
                 seen, and was seen in no container that is there: nobody's memory"
            );
            report(daemon, &card, None, why);
        }
        Action::NoClient { process, key } => {
            let words = process_end::describe_it(&process);
            let culprit = Culprit { words, entry: entry(&key) };
            let why =
                format!("{} uses the card past MPS, whose limit does not hold it", culprit.label());
            report(daemon, &card, culprit.entry.as_ref(), why);
        }
    }
}

/// Ends the GPU work of the container's clients, and then the container; what its neighbours had
/// before and after stands in the log.
async fn end(daemon: &Daemon, card: &GpuUuid, entry: Entry, over: &Overrun) {
    // What has ended meanwhile needs nothing, and another instance of it is not meant.
    if daemon.node().ledger().get(&over.key).is_none_or(|now| now.state != entry.state) {
        return;
    }
    let before = neighbours(daemon, card, &entry).await;
    let terminated = terminate::clients(daemon, &over.key).await;
    let first = match terminated {
        Ok(Reply::Done { text }) if text.is_empty() => "it had no MPS clients".to_owned(),
        Ok(Reply::Done { text }) => text,
        Ok(_) => "its clients were asked to end".to_owned(),
        Err(refusal) => format!("its GPU work was not ended first: {}", refusal.sentence),
    };
    enforce(daemon, card, &entry, format!("{over}; {first}")).await;
    let after = neighbours(daemon, card, &entry).await;
    log::info!(
        container = entry.grant.name().as_str(), uuid = card.as_str(), before:? = before, after:? = after;
        "clients of its neighbours before and after"
    );
}

/// Clients on the card that are not the container's. `None` where the control daemon does not say
/// at once.
async fn neighbours(daemon: &Daemon, card: &GpuUuid, entry: &Entry) -> Option<BTreeSet<u32>> {
    let (reply, answer) = oneshot::channel();
    if !daemon.order(card, Order::Clients { reply }) {
        return None;
    }
    let Ok(Ok(Ok(servers))) = timeout(LIST_LIMIT, answer).await else { return None };
    let State::Active { init, cgroup } = entry.state.clone() else { return None };
    let others = daemon.node().nested(entry);
    let own = move |_: &_| match &cgroup {
        Some(cgroup) => container_cgroup::own_processes(cgroup, &others).unwrap_or_default(),
        None => BTreeSet::from([init.pid]),
    };
    let own = daemon.blocking(own).await;
    let clients = servers.into_iter().flat_map(|(_, clients)| clients);
    let clients = clients.filter_map(|pid| u32::try_from(pid).ok());
    Some(clients.filter(|pid| !own.contains(pid)).collect())
}
