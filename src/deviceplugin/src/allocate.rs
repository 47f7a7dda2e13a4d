//! `Allocate`: turns kubelet's devices for a container into a question to the daemon, and the
//! daemon's answer into kubelet's.
//!
//! Kubelet does not name the pod. It asks once for each container, keeps the answer in its
//! checkpoint, and gives it to every restart of that container.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mpsgate_model::{GpuUuid, Mib, Resource};

use crate::api::ContainerAllocateResponse;
use crate::resource_kind::{has_seeds_env, most};
use crate::{DeviceId, Inventory};

/// The annotation with the token. Any other annotation counts no more than a pod author's own.
const GRANT: &str = "mpsgate.io/grant";
/// Applications of gpushare size themselves by these. Amounts are in units of the resource.
const INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";
const POD: &str = "ALIYUN_COM_GPU_MEM_POD";
const CONTAINER: &str = "ALIYUN_COM_GPU_MEM_CONTAINER";
const CARD: &str = "ALIYUN_COM_GPU_MEM_DEV";

/// The devices of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// The resource's name.
    pub resource: String,
    /// How many devices.
    pub devices: usize,
    /// The memory of these devices. `None` if the resource counts cards.
    pub memory: Option<Mib>,
    /// How many devices kubelet took from which card. This is a hint: the ledger decides when the
    /// container is created.
    pub cards: BTreeMap<GpuUuid, usize>,
}

impl Allocation {
    /// Parses kubelet's ids.
    ///
    /// # Errors
    /// No id, an id that is not mpsgate's or comes twice, or more than a container may have.
    pub(crate) fn of(resource: &Resource, ids: &[String]) -> Result<Self, Denied> {
        let name = resource.to_string();
        if ids.is_empty() {
            return Err(Denied::new(format!("kubelet asks for no device of {name}")));
        }
        if let Some(most) = most(*resource).filter(|most| ids.len() > *most) {
            return Err(Denied::new(format!(
                "a container can have {most} of {name} and asks for {}: set {name}: {most} in resources.limits, \
                 and ask for a larger one where it needs more memory",
                ids.len()
            )));
        }
        let mut seen = BTreeSet::new();
        let mut cards: BTreeMap<GpuUuid, usize> = BTreeMap::new();
        for text in ids {
            let id = DeviceId::parse(text)
                .map_err(|error| Denied::new(format!("kubelet gave out {name}, but {error}")))?;
            *cards.entry(id.card.clone()).or_default() += 1;
            if !seen.insert(id) {
                return Err(Denied::new(format!("kubelet gave out {text} of {name} twice")));
            }
        }
        let (devices, memory) =
            (ids.len(), resource.memory(u64::try_from(ids.len()).unwrap_or(u64::MAX)));
        Ok(Self { resource: name.to_owned(), devices, memory, cards })
    }

    /// The card, if kubelet took all devices from one.
    #[must_use]
    pub fn card(&self) -> Option<&GpuUuid> {
        let mut cards = self.cards.keys();
        cards.next().filter(|_| cards.next().is_none())
    }
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.devices, self.resource)
    }
}

/// The daemon's refusal: a sentence with the remedy, for `kubectl describe pod`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(String);

impl Denied {
    /// A refusal with this sentence.
    #[must_use]
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

/// What kubelet puts on the container. `call` is the number of devices in kubelet's whole call:
/// nothing more is known of the pod, and kubelet's calls are for one container.
pub(crate) fn answer(
    resource: &Resource,
    inventory: &Inventory,
    allocation: &Allocation,
    call: usize,
    token: String,
) -> ContainerAllocateResponse {
    let mut response = ContainerAllocateResponse::default();
    response.annotations.insert(GRANT.to_owned(), token);
    if !has_seeds_env(*resource) {
        return response;
    }
    let card = allocation.card().and_then(|uuid| inventory.cards.get(uuid));
    let units = |memory: Mib| resource.unit().map_or(0, |unit| memory.0 / unit.0);
    let mut sizes: BTreeSet<u64> =
        inventory.cards.values().map(|card| units(card.memory)).collect();
    // The size of one card if all are alike, whichever card it will be.
    let size = card.map(|card| units(card.memory)).or_else(|| {
        let size = sizes.pop_first()?;
        sizes.is_empty().then_some(size)
    });
    let mut set = |name: &str, value: String| response.envs.insert(name.to_owned(), value);
    // gpushare's value for an unknown card.
    set(INDEX, card.map_or_else(|| "-1".to_owned(), |card| card.index.to_string()));
    set(POD, call.to_string());
    set(CONTAINER, allocation.devices.to_string());
    if let Some(size) = size {
        set(CARD, size.to_string());
    }
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "their failure is the test's")]
    use super::*;
    use crate::Stock;

    const ONE: &str = "GPU-00000001-0000-4000-8000-00000000beef";
    const TWO: &str = "GPU-00000002-0000-4000-8000-00000000beef";

    fn node(sizes: [u64; 2]) -> Inventory {
        let card = |index, gib: u64| {
            let (memory, withheld) = (Mib(gib * 1024), Mib(0));
            Stock { index, memory, withheld, trouble: None, numa: None }
        };
        let cards = [(ONE, card(3, sizes[0])), (TWO, card(0, sizes[1]))];
        let cards = cards.map(|(uuid, card)| (GpuUuid::parse(uuid).unwrap(), card)).into();
        Inventory { cards, spread: false }
    }

    fn allocation(resource: &Resource, ids: &[(&str, u32)]) -> Result<Allocation, Denied> {
        let ids: Vec<String> = ids.iter().map(|(card, n)| format!("{card}-{n}")).collect();
        Allocation::of(resource, &ids)
    }

    fn env(resource: &Resource, node: &Inventory, ids: &[(&str, u32)]) -> String {
        let allocation = allocation(resource, ids).unwrap();
        let response = answer(resource, node, &allocation, 9, "t".to_owned());
        assert_eq!(response.annotations["mpsgate.io/grant"], "t");
        let short = |name: &String| name.replace("ALIYUN_COM_GPU_MEM_", "");
        let pairs = response.envs.iter().map(|(name, value)| format!("{}={value}", short(name)));
        pairs.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn applications_of_gpushare_find_their_environment() {
        let gib = Resource::Memory;
        let one_card = [(ONE, 0), (ONE, 4)];
        assert_eq!(env(&gib, &node([15, 79]), &one_card), "CONTAINER=2 DEV=15 IDX=3 POD=9");
        let fine = Resource::by(256).unwrap();
        assert_eq!(env(&fine, &node([15, 79]), &one_card), "CONTAINER=2 DEV=60 IDX=3 POD=9");
        let two_cards = [(ONE, 0), (TWO, 0)];
        assert_eq!(env(&gib, &node([15, 15]), &two_cards), "CONTAINER=2 DEV=15 IDX=-1 POD=9");
        assert_eq!(env(&gib, &node([15, 79]), &two_cards), "CONTAINER=2 IDX=-1 POD=9");
        // The card has gone since kubelet saw it: the ledger will choose another.
        assert_eq!(env(&gib, &Inventory::default(), &one_card), "CONTAINER=2 IDX=-1 POD=9");
        assert_eq!(env(&Resource::slice(10).unwrap(), &node([15, 15]), &[(ONE, 0)]), "");
    }

    #[test]
    fn an_allocation_is_the_units_and_a_hint() {
        let gib = Resource::Memory;
        let one = allocation(&gib, &[(ONE, 0), (ONE, 4)]).unwrap();
        assert_eq!((one.memory, one.card().unwrap().as_str()), (Some(Mib(2048)), ONE));
        let two = allocation(&gib, &[(ONE, 0), (TWO, 4)]).unwrap();
        assert_eq!((two.memory, two.card()), (Some(Mib(2048)), None));
        assert_eq!(allocation(&Resource::Cards, &[(ONE, 0)]).unwrap().memory, None);
    }

    #[test]
    fn what_kubelet_cannot_mean_is_denied_in_a_sentence() {
        let gib = Resource::Memory;
        let denial = |resource: &Resource, ids: &[(&str, u32)]| {
            allocation(resource, ids).unwrap_err().to_string()
        };
        assert_eq!(denial(&gib, &[]), "kubelet asks for no device of aliyun.com/gpu-mem");
        let twice = denial(&gib, &[(ONE, 1), (ONE, 1)]);
        assert_eq!(twice, format!("kubelet gave out {ONE}-1 of aliyun.com/gpu-mem twice"));
        let odd = denial(&gib, &[("odd", 1)]);
        assert!(odd.ends_with("\"odd-1\" is not a device of mpsgate"), "{odd}");
        let two = denial(&Resource::slice(10).unwrap(), &[(ONE, 1), (ONE, 2)]);
        assert!(two.contains("set nvidia.com/gpu-10gb: 1 in resources.limits"), "{two}");
    }
}
