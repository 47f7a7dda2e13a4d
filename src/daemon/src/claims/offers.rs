//! What of the cards claims may have, and how well they are. Pure.

use std::collections::BTreeMap;

use mpsgate_dra::{DeviceHealth, Offer, device_name};
use mpsgate_model::CLAIM;
use mpsgate_node::Node;
use mpsgate_node::card::Card;
use mpsgate_policy::GuaranteeLevel;

use crate::around::node_report::why_no_pod;

/// Percent of a card's compute.
const COMPUTE: u8 = 100;

/// Of each managed card what is left beside the device plugin's pods and local containers. None
/// where the node shares its cards without MPS: there no claim's memory would be held.
pub(super) fn of(node: &Node) -> Vec<Offer> {
    if !node.under_mps() {
        return Vec::new();
    }
    let managed = node.cards().iter().filter(|card| card.is_managed());
    managed.map(|card| of_card(node, card)).collect()
}

fn of_card(node: &Node, card: &Card) -> Offer {
    let GuaranteeLevel { guarantee, proof, is_proven } = node.level_of_card(card);
    let on_card = || node.ledger().on_card(&card.uuid);
    let others = on_card()
        .filter(|entry| entry.handed.as_ref().is_none_or(|handed| handed.resource != CLAIM));
    let others = u32::try_from(others.count()).unwrap_or(u32::MAX);
    let serves = on_card().map(|entry| entry.grant.uid).next();
    Offer {
        uuid: card.uuid.clone(),
        model: card.name.clone(),
        driver_version: node.driver.version.clone().unwrap_or_default(),
        guarantee: guarantee.as_str().to_owned(),
        proof,
        proven: is_proven,
        memory: card.memory.saturating_sub(node.ledger().withheld(&card.uuid, CLAIM)),
        clients: card.max_clients().saturating_sub(others),
        compute: COMPUTE,
        multiuser: card.serves_any_uid(),
        // A card without grants takes any.
        uid: serves.filter(|_| !card.serves_any_uid()),
        trouble: match &node.driver.trouble {
            Some(trouble) => Some(format!("the NVIDIA driver does not answer: {}", trouble.why)),
            None => why_no_pod(node, card),
        },
    }
}

/// The health of each card's device; `since` keeps when each last changed.
pub(super) fn health(
    pool: &str,
    offers: &[Offer],
    since: &mut BTreeMap<String, (Option<String>, i64)>,
    now_ms: u64,
) -> Vec<DeviceHealth> {
    let now = i64::try_from(now_ms / 1000).unwrap_or(i64::MAX);
    let all = offers.iter().map(|offer| {
        let device = device_name(&offer.uuid);
        let known = since.entry(device.clone()).or_insert_with(|| (offer.trouble.clone(), now));
        if known.0 != offer.trouble {
            *known = (offer.trouble.clone(), now);
        }
        DeviceHealth {
            pool: pool.to_owned(),
            device,
            healthy: Some(offer.trouble.is_none()),
            message: offer.trouble.clone().unwrap_or_default(),
            since_s: known.1,
        }
    });
    let all: Vec<_> = all.collect();
    since.retain(|device, _| all.iter().any(|one| one.device == *device));
    all
}
