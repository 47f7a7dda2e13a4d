//! Where a scheduler put a pod's containers, as annotations of the pod: ours, exact, and those of
//! ACK and gpushare, for their tools. Pure. Whoever makes a pod can write them, so they are a
//! claim.

use std::collections::BTreeMap;

use mpsgate_model::{Kind, Layout, Mib};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::pod::{PLACEMENT, Pod};
use crate::time::{ms_of, text_of};

const VERSION: u64 = 1;
const GIB: u64 = 1024;

/// V1, of the whole pod (gpushare `pkg/utils/const.go`).
const V1_INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";
const V1_POD: &str = "ALIYUN_COM_GPU_MEM_POD";
const V1_DEV: &str = "ALIYUN_COM_GPU_MEM_DEV";
const V1_ASSIGNED: &str = "ALIYUN_COM_GPU_MEM_ASSIGNED";
const V1_TIME: &str = "ALIYUN_COM_GPU_MEM_ASSUME_TIME";
/// V2, by the container's place in `spec.containers`, then by the card's index (ACK;
/// `kubectl inspect cgpu`).
const V2_ALLOCATION: &str = "scheduler.framework.gpushare.allocation";
const V2_ASSIGNED: &str = "scheduler.framework.gpushare.assigned";
const V2_TIME: &str = "scheduler.framework.gpushare.assume-time";

/// All that [`Placed::annotations`] writes on a pod.
pub const WRITTEN: [&str; 9] = [
    PLACEMENT,
    V1_INDEX,
    V1_POD,
    V1_DEV,
    V1_ASSIGNED,
    V1_TIME,
    V2_ALLOCATION,
    V2_ASSIGNED,
    V2_TIME,
];

/// By container, by card: units, of which only the ratio counts.
type Shares = BTreeMap<String, BTreeMap<u32, u64>>;

/// Where a pod's containers were put, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The node whose cards they are.
    pub node: String,
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// By container, init containers too.
    pub containers: Layout,
    /// By container, the percentage of a card's compute that it was given.
    pub core: BTreeMap<String, u64>,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    version: u64,
    node: String,
    time: String,
    containers: Layout,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    core: BTreeMap<String, u64>,
}

impl Placed {
    /// `None` for what is not of this version, or no placement at all.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let wire: Wire = serde_json::from_str(text).ok()?;
        let time_ms = ms_of(&wire.time)?;
        (wire.version == VERSION).then_some(Self {
            node: wire.node,
            time_ms,
            containers: wire.containers,
            core: wire.core,
        })
    }

    /// What [`parse`](Self::parse) reads.
    #[must_use]
    pub fn render(&self) -> String {
        json!({
            "version": VERSION,
            "node": self.node,
            "time": text_of(self.time_ms),
            "containers": self.containers,
            "core": self.core,
        })
        .to_string()
    }

    /// All annotations of a pod that is put there. `card_mib` is the memory of each of the node's
    /// cards.
    #[must_use]
    pub fn annotations(
        &self,
        pod: &Pod,
        card_mib: &BTreeMap<u32, u64>,
    ) -> BTreeMap<String, String> {
        let mains = || pod.containers.iter().filter(|one| one.kind == Kind::Main);
        let cards = |name: &str| self.containers.0.get(name).filter(|cards| !cards.is_empty());
        let first = mains().chain(&pod.containers).find_map(|one| cards(&one.name)?.keys().next());
        let total: u64 = mains()
            .filter_map(|one| cards(&one.name))
            .map(|cards| cards.values().map(|mib| mib.0).fold(0, u64::saturating_add).div_ceil(GIB))
            .fold(0, u64::saturating_add);
        let v2: BTreeMap<String, BTreeMap<u32, u64>> = mains()
            .enumerate()
            .filter_map(|(place, one)| {
                let units =
                    cards(&one.name)?.iter().map(|(card, mib)| (*card, mib.0.div_ceil(GIB)));
                Some((place.to_string(), units.collect()))
            })
            .collect();
        let nanoseconds = u128::from(self.time_ms).saturating_mul(1_000_000).to_string();
        let mut all = BTreeMap::from([
            (PLACEMENT, self.render()),
            (V2_ALLOCATION, json!(v2).to_string()),
            (V2_ASSIGNED, "false".to_owned()),
            (V2_TIME, nanoseconds.clone()),
            (V1_POD, total.to_string()),
            (V1_ASSIGNED, "false".to_owned()),
            (V1_TIME, nanoseconds),
        ]);
        if let Some(index) = first {
            all.insert(V1_INDEX, index.to_string());
            let card = card_mib.get(index).copied().unwrap_or_default();
            all.insert(V1_DEV, (card / GIB).to_string());
        }
        all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

impl Pod {
    /// Our own annotation. `None` where there is none that can be read.
    #[must_use]
    pub fn placed(&self) -> Option<Placed> {
        Placed::parse(self.annotations.get(PLACEMENT)?)
    }

    /// Where the containers of a bound pod are said to be: our annotation if it is of the pod's
    /// node, else V2, else V1. These two say cards; how much of each is told by the limits. `None`
    /// where nothing can be read.
    #[must_use]
    pub fn allocation(&self) -> Option<Layout> {
        let ours = self.placed().filter(|placed| Some(&placed.node) == self.node.as_ref());
        if let Some(placed) = ours {
            return Some(placed.containers);
        }
        let shares = self.shares_of_v2().or_else(|| self.shares_of_v1())?;
        let all = self.containers.iter().filter_map(|container| {
            let limits = container.limits.as_ref().ok()?;
            let memory = limits.memory().map(|(_, mib)| mib).fold(0, u64::saturating_add);
            let shares = shares.get(&container.name).filter(|_| memory > 0)?;
            Some((container.name.clone(), split(memory, shares)))
        });
        Some(Layout(all.collect()))
    }

    /// Init containers are where the first main one is.
    fn shares_of_v2(&self) -> Option<Shares> {
        let text = self.annotations.get(V2_ALLOCATION)?;
        let by_place: BTreeMap<usize, BTreeMap<u32, u64>> = serde_json::from_str(text).ok()?;
        let first = by_place.values().find(|cards| !cards.is_empty())?;
        let mains = self.containers.iter().filter(|one| one.kind == Kind::Main).enumerate();
        let mains = mains.filter_map(|(place, one)| Some((one, by_place.get(&place)?)));
        let others = self.containers.iter().filter(|one| one.kind != Kind::Main);
        let others = others.map(|one| (one, first));
        Some(mains.chain(others).map(|(one, cards)| (one.name.clone(), cards.clone())).collect())
    }

    fn shares_of_v1(&self) -> Option<Shares> {
        let index: u32 = self.annotations.get(V1_INDEX)?.parse().ok()?;
        let on_it = |name: &String| (name.clone(), BTreeMap::from([(index, 1)]));
        Some(self.containers.iter().map(|one| on_it(&one.name)).collect())
    }
}

/// `memory` in the ratio of `shares`; what a division leaves is on the last card.
fn split(memory: u64, shares: &BTreeMap<u32, u64>) -> BTreeMap<u32, Mib> {
    let mut units: u128 = shares.values().copied().map(u128::from).sum();
    let mut left = memory;
    let part = |(card, share): (&u32, &u64)| {
        let share = u128::from(*share);
        let mib = if share == 0 { 0 } else { u128::from(left) * share / units };
        let mib = u64::try_from(mib).unwrap_or(left);
        units = units.saturating_sub(share);
        left = left.saturating_sub(mib);
        (*card, Mib(mib))
    };
    shares.iter().map(part).filter(|(_, mib)| mib.0 > 0).collect()
}

#[cfg(test)]
mod tests;
