//! What is shown on the node's object. Pure.

use std::collections::BTreeMap;

use mpsgate_kubernetes::{ConditionReport, NodeReport, Pods};
use mpsgate_model::printable::plain;
use mpsgate_model::{CLAIM, CardReport, Guarantee, Handed, Mib};
use mpsgate_node::card::Card;
use mpsgate_node::{Backend, Node};
use mpsgate_policy::GuaranteeLevel;
use mpsgate_policy::schedule::Word;

use super::Around;
use super::handler_status::Handlers;

/// Of the node as it is now. `pods` are those that the API server has bound to it, `serves` says
/// whether kubelet is to have its devices from here.
pub(crate) fn of(node: &Node, around: &Around, pods: &Pods, serves: bool) -> NodeReport {
    let managed = || node.cards().iter().filter(|card| card.is_managed());
    let mut cards: Vec<CardReport> = managed().map(|card| card_of(node, card, pods)).collect();
    let level = managed().map(|card| node.level_of_card(card));
    let level = level.map(|level| (level.guarantee, level.is_proven)).min();
    let away = if cards.is_empty() { None } else { away(around, serves) };
    if away.is_some() {
        // Kubelet fails a pod for good that comes now, so no scheduler is to send one.
        cards.iter_mut().for_each(|card| card.healthy = false);
    }
    let ready = match (&node.driver.trouble, cards.iter().filter(|card| card.healthy).count()) {
        (Some(trouble), _) => not(
            "NVMLNotReady",
            format!("the NVIDIA driver does not answer: {}; {}", trouble.why, trouble.hint),
        ),
        (None, 0) if cards.is_empty() => {
            let message =
                "no card of this node is handed to mpsgate; mpsgate enable GPU".to_owned();
            not("NoManagedCard", message)
        }
        (None, _) if let Some(away) = away => away,
        (None, 0) => {
            let why = managed()
                .find_map(|card| Some(format!("{} {}", card.label(), why_no_pod(node, card)?)));
            not("NoCardReady", why.unwrap_or_default())
        }
        (None, ready) => ConditionReport {
            holds: Some(true),
            reason: "CardsReady".to_owned(),
            message: format!(
                "{ready} of {} cards take GPU memory requests; {}",
                cards.len(),
                in_words(level)
            ),
        },
    };
    // An empty list would be taken for the end of sharing here.
    let known = !cards.is_empty() || node.knows_its_cards();
    // A node without cards of ours has nothing that anybody could reach by a bypass.
    let handlers = around.handlers.as_ref().filter(|_| !known || !cards.is_empty());
    // Its cards are another system's, and nothing of ours is to be left on it.
    let leaves = cards.is_empty() && node.schedule.wanted() == Some(Word::Off);
    NodeReport {
        cards: known.then_some(cards),
        level,
        handlers: handlers.map(|handlers| handlers.report.clone()),
        ready: (!leaves).then_some(ready),
        bypass: handlers.map(Handlers::condition),
    }
}

/// Why kubelet could not give out a card now, however well it is.
fn away(around: &Around, serves: bool) -> Option<ConditionReport> {
    if around.ending {
        let message = "mpsgated ends, as for an update: pods with GPU memory wait for the next one. Where none comes: \
                       kubectl get pods -A -l app.kubernetes.io/name=mpsgate -o wide";
        return Some(not("Ending", message.to_owned()));
    }
    let unread = around.served.iter().find_map(|(resource, served)| {
        let status = served.status(resource);
        status.registered_ms.is_none().then(|| {
            let why = status.problem.unwrap_or_default();
            let hint = status.hint.unwrap_or_default();
            format!("kubelet does not know {resource}: {why}; {hint}")
        })
    });
    let none = || "kubelet was not told of the cards yet; mpsgate doctor".to_owned();
    let why = unread.or_else(|| (serves && around.served.is_empty()).then(none))?;
    Some(not("NotRegistered", why))
}

/// The level that each card has at least.
fn in_words(level: Option<(Guarantee, bool)>) -> String {
    match level {
        None | Some((Guarantee::None, _)) => "guarantee level none: by agreement alone".to_owned(),
        Some((level, true)) => format!("guarantee level {}, proven here", level.as_str()),
        Some((level, false)) => {
            format!("guarantee level {}, not proven on each of them", level.as_str())
        }
    }
}

/// Why no pod is to be sent to a card. Kubelet's devices of it may be well all the same: those that
/// come wait.
pub(crate) fn why_no_pod(node: &Node, card: &Card) -> Option<String> {
    let asked = card.qualified();
    let asking = asked.asking.as_ref().map(|asking| &asking.trouble);
    node.trouble(card)
        .or_else(|| asking.map(|trouble| format!("{}; {}", trouble.why, trouble.hint)))
        .or_else(|| {
            let what = "is to be asked what holds on it before kubelet is told of it; mpsgate status shows when it was";
            asked.is_awaited.then(|| what.to_owned())
        })
}

fn not(reason: &str, message: String) -> ConditionReport {
    ConditionReport { holds: Some(false), reason: reason.to_owned(), message: plain(&message) }
}

fn card_of(node: &Node, card: &Card, pods: &Pods) -> CardReport {
    let on_card = || node.ledger().on_card(&card.uuid);
    // No pod's limits speak of claims, so a scheduler that counts limits has to leave them out.
    let is_claimed = |handed: &Handed| handed.resource == CLAIM;
    let others = on_card().filter(|entry| entry.handed.as_ref().is_none_or(is_claimed));
    let local = others.map(|entry| entry.grant.memory.0);
    let claimed = node.ledger().claimed(&card.uuid).0;
    let mut held = BTreeMap::<String, Mib>::new();
    for (memory, handed) in
        on_card().filter_map(|entry| Some((entry.grant.memory.0, entry.handed.as_ref()?)))
    {
        if is_claimed(handed) {
            continue;
        }
        // A static pod's containers carry another uid than its mirror at the API server.
        let uid = pods.get(&handed.pod.uid).map_or(&handed.pod.uid, |pod| &pod.uid);
        let sum = held.entry(uid.clone()).or_default();
        sum.0 = sum.0.saturating_add(memory);
    }
    let serves = on_card().map(|entry| entry.grant.uid).next();
    let one_uid = !node.backend().serves_any_uid(card);
    let GuaranteeLevel { guarantee, proof, .. } = node.level_of_card(card);
    CardReport {
        uuid: card.uuid.to_string(),
        index: card.index,
        name: card.name.clone(),
        memory: card.memory,
        local: Mib(local.fold(claimed, u64::saturating_add)),
        healthy: node.driver.trouble.is_none() && why_no_pod(node, card).is_none(),
        // A card without grants takes any.
        uid: serves.filter(|_| one_uid),
        one_uid,
        max_clients: node.backend().max_clients(card),
        held,
        guarantee: guarantee.as_str().to_owned(),
        proof: plain(&proof),
    }
}
