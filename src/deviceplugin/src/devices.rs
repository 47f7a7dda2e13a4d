//! Turns the node's cards into the list that kubelet counts. Pure.
//!
//! A card's units are numbered from zero. Units that no container can have are Unhealthy, from the
//! top: kubelet then counts fewer, and the ids that it gave out, which [`prefer`](crate::prefer)
//! takes from the bottom, stay healthy. The numbers are a count and not addresses: no memory of a
//! card belongs to an id.

use std::collections::BTreeMap;

use mpsgate_kubelet::MESSAGE_LIMIT;
use mpsgate_model::{GpuUuid, Mib, Resource};
use prost::Message;

use crate::api::{Device, ListAndWatchResponse, NumaNode, TopologyInfo};
use crate::{DeviceId, DevicesError};

/// Bytes of one device in a list: at least those of a healthy device without NUMA node and with a
/// number of one digit, at most those of an unhealthy device with both at their longest.
const LEAST_BYTES: u64 = 55;
const MOST_BYTES: u64 = 80;

const HEALTHY: &str = "Healthy";
const UNHEALTHY: &str = "Unhealthy";

/// The node's cards as one resource sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// By UUID, so that a list does not depend on the order of indices.
    pub cards: BTreeMap<GpuUuid, Stock>,
    /// Whether containers are to be spread over the cards instead of packed
    /// (`ack.node.gpu.placement`).
    pub spread: bool,
}

/// The part of one card that the resource has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stock {
    /// NVML's index.
    pub index: u32,
    /// All memory that may be granted of it.
    pub memory: Mib,
    /// The part of it that this resource cannot have: grants of local engines, and what was given
    /// out through other resources of the node.
    pub withheld: Mib,
    /// Why none of it can be granted now.
    pub trouble: Option<String>,
    /// Its NUMA node, where it has one.
    pub numa: Option<u32>,
}

impl Stock {
    /// The number of all units, and of those that can be granted.
    fn units(&self, unit: Option<Mib>) -> (u64, u64) {
        let healthy = |units| if self.trouble.is_none() { units } else { 0 };
        let Some(unit) = unit else { return (1, healthy(1)) };
        let units = |memory: Mib| memory.0 / unit.0;
        (units(self.memory), healthy(units(self.memory.saturating_sub(self.withheld))))
    }
}

/// The devices of a resource: the same for the same cards, in whatever order they were found.
///
/// # Errors
/// More devices than fit into a message that kubelet accepts. The error names a unit that fits.
pub fn list(resource: &Resource, inventory: &Inventory) -> Result<Vec<Device>, DevicesError> {
    let unit = resource.unit();
    let count =
        inventory.cards.values().fold(0_u64, |sum, card| sum.saturating_add(card.units(unit).0));
    let too_many = || DevicesError::TooMany {
        resource: resource.to_string(),
        devices: count,
        fits_mib: unit_that_fits(unit, count),
    };
    let limit = u64::try_from(MESSAGE_LIMIT).unwrap_or(u64::MAX);
    // Checked before millions of devices are made.
    if count > limit / LEAST_BYTES {
        return Err(too_many());
    }
    let mut message = ListAndWatchResponse::default();
    for (uuid, card) in &inventory.cards {
        let (all, healthy) = card.units(unit);
        let node = card.numa.map(|id| NumaNode { id: i64::from(id) });
        let topology = node.map(|node| TopologyInfo { nodes: vec![node] });
        for number in 0..u32::try_from(all).map_err(|_| too_many())? {
            let health = if u64::from(number) < healthy { HEALTHY } else { UNHEALTHY };
            message.devices.push(Device {
                id: DeviceId { card: uuid.clone(), number }.to_string(),
                health: health.to_owned(),
                topology: topology.clone(),
            });
        }
    }
    if message.encoded_len() > MESSAGE_LIMIT { Err(too_many()) } else { Ok(message.devices) }
}

/// The smallest unit, by doubling, with which so much memory surely fits.
fn unit_that_fits(unit: Option<Mib>, count: u64) -> u64 {
    let Some(unit) = unit else { return 0 };
    let limit = u64::try_from(MESSAGE_LIMIT).unwrap_or(u64::MAX);
    let (mut mib, mut left) = (unit.0, count);
    while left > limit / MOST_BYTES {
        mib = mib.saturating_mul(2);
        left /= 2;
    }
    mib
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "their failure is the test's")]
    use mpsgate_model::example_gpu as uuid;

    use super::*;

    fn card(memory: u64, withheld: u64) -> Stock {
        let (memory, withheld) = (Mib(memory), Mib(withheld));
        Stock { index: 0, memory, withheld, trouble: None, numa: None }
    }

    fn inventory(cards: impl IntoIterator<Item = Stock>) -> Inventory {
        let cards = cards.into_iter().enumerate().map(|(n, card)| (uuid(n), card)).collect();
        Inventory { cards, spread: false }
    }

    fn health(resource: &Resource, card: Stock) -> String {
        let devices = list(resource, &inventory([card])).unwrap();
        devices.iter().map(|device| if device.health == HEALTHY { '+' } else { '-' }).collect()
    }

    #[test]
    fn what_local_containers_hold_is_unhealthy_from_the_top() {
        let gib = Resource::Memory;
        assert_eq!(health(&gib, card(4 * 1024, 0)), "++++");
        assert_eq!(health(&gib, card(4 * 1024 + 1023, 0)), "++++");
        assert_eq!(health(&gib, card(4 * 1024, 1)), "+++-");
        assert_eq!(health(&gib, card(4 * 1024, 2048)), "++--");
        // Never more than the card: a grant may be larger than the rest of a card that shrank.
        assert_eq!(health(&gib, card(4 * 1024, u64::MAX)), "----");
        let slice = Resource::slice(3).unwrap();
        assert_eq!(health(&slice, card(10 * 1024, 0)), "+++");
        assert_eq!(health(&slice, card(10 * 1024, 2048)), "++-");
        assert_eq!(health(&Resource::slice(11).unwrap(), card(10 * 1024, 0)), "");
    }

    #[test]
    fn a_card_in_trouble_keeps_its_ids_and_none_is_healthy() {
        let ill = Stock { trouble: Some("Xid 79".to_owned()), ..card(2048, 0) };
        assert_eq!(health(&Resource::Memory, ill.clone()), "--");
        assert_eq!(health(&Resource::Cards, ill), "-");
        assert_eq!(health(&Resource::Cards, card(2048, 2048)), "+");
    }

    #[test]
    fn ids_do_not_depend_on_indices_or_health() {
        let gib = Resource::Memory;
        let ids = |cards: [Stock; 2]| -> Vec<String> {
            let devices = list(&gib, &inventory(cards)).unwrap();
            devices.into_iter().map(|device| device.id).collect()
        };
        let before = ids([card(2048, 0), card(1024, 0)]);
        assert_eq!(before[2], "GPU-00000001-0000-0000-0000-000000000000-0");
        let swapped = |index, card| Stock { index, ..card };
        assert_eq!(before, ids([swapped(1, card(2048, 9)), swapped(0, card(1024, 0))]));
    }

    #[test]
    fn a_device_has_its_numa_node() {
        let on_one = Stock { numa: Some(1), ..card(1024, 0) };
        let devices = list(&Resource::Memory, &inventory([on_one])).unwrap();
        let nodes = devices[0].topology.clone().unwrap().nodes;
        assert_eq!(nodes, [NumaNode { id: 1 }]);
    }

    /// The largest node that is tested for gpushare's issue with messages.
    fn largest() -> Inventory {
        let ill = Stock { numa: Some(u32::MAX), ..card(192 * 1024, 192 * 1024) };
        inventory(std::iter::repeat_n(ill, 16))
    }

    fn encoded(devices: Vec<Device>) -> usize {
        ListAndWatchResponse { devices }.encode_to_vec().len()
    }

    #[test]
    fn lists_of_the_largest_node_fit_a_message() {
        for (mib, devices) in [(1024, 3072), (256, 12_288), (64, 49_152)] {
            let found = list(&Resource::by(mib).unwrap(), &largest()).unwrap();
            assert_eq!(found.len(), devices);
            let bytes = encoded(found);
            assert!(bytes <= MESSAGE_LIMIT, "{mib} MiB: {bytes} bytes");
        }
    }

    #[test]
    fn what_does_not_fit_names_a_unit_that_does() {
        for mib in [1, 32] {
            let resource = Resource::by(mib).unwrap();
            let error = list(&resource, &largest()).unwrap_err();
            let DevicesError::TooMany { fits_mib, .. } = error.clone();
            let fits = Resource::by(fits_mib).unwrap();
            assert!(encoded(list(&fits, &largest()).unwrap()) <= MESSAGE_LIMIT, "{error}");
            assert_eq!(fits_mib, 64);
        }
        // One device per MiB is possible with small cards.
        assert!(list(&Resource::by(1).unwrap(), &inventory([card(16_384, 0)])).is_ok());
        let absurd = inventory([card(u64::MAX, 0), card(u64::MAX, 0)]);
        assert!(list(&Resource::by(1).unwrap(), &absurd).is_err());
    }

    #[test]
    fn the_bytes_of_a_device_are_within_the_estimates() {
        let bytes = |numa: Option<i64>, number| {
            let id = DeviceId { card: uuid(0), number }.to_string();
            let topology = numa.map(|id| TopologyInfo { nodes: vec![NumaNode { id }] });
            let health = if topology.is_some() { UNHEALTHY } else { HEALTHY }.to_owned();
            u64::try_from(encoded(vec![Device { id, health, topology }])).unwrap()
        };
        assert_eq!(bytes(None, 0), LEAST_BYTES);
        assert!(bytes(Some(i64::from(u32::MAX)), u32::MAX) <= MOST_BYTES);
    }
}
