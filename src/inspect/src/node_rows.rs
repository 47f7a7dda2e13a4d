//! Nodes with the memory that their pods have of each card. Pure.
//!
//! A node without mpsgate's annotation, in a cluster without mpsgate's placements, is counted as
//! the published tool counts: memory in the resource's unit, cards of equal size, pods by V2 or V1.
//! With them everything is MiB, and exact.

use std::collections::{BTreeMap, HashMap, HashSet};

use mpsgate_kubernetes::{Container, LeftOut, Limits, Pod, Seen, SeenNode};
use mpsgate_model::{CardReport, Kind, Layout};

use crate::annotations::{self, MOST_CARDS};
use crate::beyond::{self, Beyond};

/// MiB.
const GIB: i64 = 1024;
/// A larger number of the resource for one card is MiB, not GiB.
const MOST_GIB: i64 = 100;
/// The index for memory of an unknown card.
pub(crate) const PENDING: i64 = -1;

/// All nodes, by name.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) nodes: Vec<NodeView>,
    /// Whether amounts are MiB; else they are in the resource's unit.
    exact: bool,
    /// The unit of amounts, for a heading.
    pub(crate) unit: &'static str,
    /// What is asked for and no card of the node has, where cards are known one by one.
    pub(crate) beyond: Vec<Beyond>,
}

/// One node.
#[derive(Debug, Clone)]
pub(crate) struct NodeView {
    pub(crate) name: String,
    pub(crate) address: Option<String>,
    pub(crate) schedule: Option<String>,
    /// Whether its annotation lists its cards.
    pub(crate) exact: bool,
    /// MiB of one unit of its resource.
    pub(crate) unit_mib: i64,
    /// The number of columns: the highest index of a card, plus one.
    pub(crate) columns: usize,
    pub(crate) total: i64,
    /// By index, with indices of annotations that no card has, as in the published tool.
    pub(crate) devices: BTreeMap<i64, Device>,
    pub(crate) pods: Vec<PodView>,
}

/// One card, or an index in place of one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Device {
    pub(crate) total: i64,
    pub(crate) used: i64,
    /// Indices into [`NodeView::pods`].
    pub(crate) pods: Vec<usize>,
    /// The card, if the annotation lists it.
    pub(crate) card: Option<CardReport>,
}

/// One pod with GPU memory.
#[derive(Debug, Clone)]
pub(crate) struct PodView {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// By card.
    pub(crate) amounts: BTreeMap<i64, i64>,
    pub(crate) source: Source,
}

/// The source of a pod's cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// mpsgate-scheduler, exactly.
    Placement,
    /// V2.
    Allocation,
    /// V1.
    Index,
    /// mpsgated, which sees the pod's containers on the card.
    Held,
    /// No source.
    Unknown,
}

impl Source {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Placement => "placement",
            Self::Allocation => "allocation",
            Self::Index => "index",
            Self::Held => "held",
            Self::Unknown => "unknown",
        }
    }
}

impl View {
    /// `all` keeps nodes without GPU memory, for a node that was asked for by name. Returns also
    /// the mistakes in annotations, and the objects that cannot be read.
    pub(crate) fn of(seen: &Seen, all: bool) -> (Self, Vec<String>) {
        let mut warnings: Vec<String> = seen.left_out.iter().map(LeftOut::to_string).collect();
        let mut nodes: Vec<(&SeenNode, Option<BTreeMap<u32, CardReport>>)> = Vec::new();
        for node in &seen.nodes {
            let cards = node.cards.as_deref().map(annotations::parse_cards).transpose();
            let cards = cards.unwrap_or_else(|error| {
                warnings.push(format!(
                    "node {}: annotation {} cannot be read ({error}); its cards are taken for equal ones",
                    node.name,
                    mpsgate_kubernetes::CARDS
                ));
                None
            });
            let cards = cards.filter(|cards| !cards.is_empty());
            if all || node.gpu_memory > 0 || cards.is_some() {
                nodes.push((node, cards));
            }
        }
        nodes.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let mut pods: HashMap<&str, Vec<&Pod>> = HashMap::new();
        for pod in &seen.pods {
            pods.entry(pod.node.as_deref().unwrap_or_default()).or_default().push(pod);
        }
        let of = |node: &SeenNode| pods.get(node.name.as_str()).map_or(&[][..], Vec::as_slice);
        let exact = nodes.iter().any(|(node, cards)| {
            let placed = |pod: &&Pod| annotations::placement(pod, &node.name).is_some();
            cards.is_some() || of(node).iter().any(placed)
        });
        let beyond = nodes.iter().flat_map(|(node, cards)| {
            let cards = cards.iter().flat_map(BTreeMap::values);
            let largest = cards.map(|card| card.memory).max().filter(|most| most.0 > 0);
            let pods = of(node).iter().filter(|pod| !pod.finished);
            pods.flat_map(move |pod| largest.map(|most| beyond::of(pod, &node.name, most)))
        });
        let beyond: Vec<Beyond> = beyond.flatten().collect();
        warnings.extend(beyond.iter().map(Beyond::to_string));
        let nodes: Vec<_> = (nodes.into_iter())
            .map(|(node, cards)| NodeView::of(node, cards, of(node), exact))
            .collect();
        let mut view = Self { nodes, exact, unit: "", beyond };
        view.unit = view.unit();
        (view, warnings)
    }

    /// Whether the view has no node.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.iter().all(|node| node.total <= 0)
    }

    fn unit(&self) -> &'static str {
        let mut shown = self.nodes.iter().filter(|node| node.total > 0);
        let name = |unit_mib: i64| if unit_mib == GIB { "GiB" } else { "MiB" };
        if !self.exact {
            // The unit of the first node that has cards, as in the published tool.
            let first = shown.find(|node| node.columns > 0);
            return first.map_or("", |node| name(node.unit_mib));
        }
        let whole = |node: &NodeView| {
            let mut amounts = node.pods.iter().flat_map(|pod| pod.amounts.values());
            let mut cards = node.devices.values().filter(|device| device.total > 0);
            amounts.all(|amount| amount % GIB == 0) && cards.all(|card| card.total >= GIB)
        };
        name(if shown.all(whole) { GIB } else { 1 })
    }

    /// The view in the unit of the heading. The last part of a GiB of a card is not offered to
    /// pods, and is left out.
    pub(crate) fn in_units(&self) -> Self {
        let mut view = self.clone();
        if !view.exact || view.unit != "GiB" {
            return view;
        }
        for node in &mut view.nodes {
            for device in node.devices.values_mut() {
                device.total /= GIB;
                device.used /= GIB;
            }
            for amount in node.pods.iter_mut().flat_map(|pod| pod.amounts.values_mut()) {
                *amount /= GIB;
            }
            let cards = node.devices.values().filter(|device| device.card.is_some());
            node.total =
                if node.exact { cards.map(|card| card.total).sum() } else { node.total / GIB };
        }
        view
    }

    /// An amount of `node` in MiB.
    pub(crate) fn mib(&self, node: &NodeView, amount: i64) -> i64 {
        if self.exact { amount } else { amount.saturating_mul(node.unit_mib) }
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.nodes.iter().any(NodeView::has_pending)
    }
}

impl NodeView {
    fn of(
        node: &SeenNode,
        cards: Option<BTreeMap<u32, CardReport>>,
        pods: &[&Pod],
        exact: bool,
    ) -> Self {
        // A count that no node can have is ignored.
        let count = i64::try_from(node.gpu_count.min(MOST_CARDS + 1)).unwrap_or(0);
        let count = if node.gpu_count > MOST_CARDS { 0 } else { count };
        let memory = i64::try_from(node.gpu_memory).unwrap_or(i64::MAX);
        let each = memory.checked_div(count).unwrap_or(0);
        let unit_mib = if each > MOST_GIB { 1 } else { GIB };
        let scale = if exact { unit_mib } else { 1 };
        let equal = Device { total: each.saturating_mul(scale), ..Device::default() };
        let mut view = Self {
            name: node.name.clone(),
            address: node.address.clone(),
            schedule: node.labels.schedule.clone(),
            exact: cards.is_some(),
            unit_mib,
            columns: usize::try_from(count).unwrap_or(0),
            total: memory.saturating_mul(scale),
            devices: (0..count).map(|index| (index, equal.clone())).collect(),
            pods: Vec::new(),
        };
        if let Some(cards) = &cards {
            let device = |card: &CardReport| {
                // Memory of local containers is not for pods.
                let total = mib(card.memory.saturating_sub(card.local).0);
                Device { total, card: Some(card.clone()), ..Device::default() }
            };
            view.devices =
                cards.iter().map(|(index, card)| (i64::from(*index), device(card))).collect();
            view.columns = cards.keys().next_back().map_or(0, |last| *last as usize + 1);
            view.total = view.devices.values().map(|device| device.total).sum();
        }
        if view.total <= 0 {
            return view;
        }
        let beyond = if cards.is_some() { Device::default() } else { equal };
        let cards = cards.unwrap_or_default();
        for pod in pods {
            if let Some(pod) = pod_view(pod, &node.name, &cards, exact.then_some(unit_mib)) {
                view.add(pod, &beyond);
            }
        }
        let known: HashSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        for pod in gone(&cards, &known) {
            view.add(pod, &beyond);
        }
        view
    }

    fn add(&mut self, pod: PodView, beyond: &Device) {
        for (index, amount) in &pod.amounts {
            let device = self.devices.entry(*index).or_insert_with(|| beyond.clone());
            device.used = device.used.saturating_add(*amount);
            device.pods.push(self.pods.len());
        }
        self.pods.push(pod);
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.devices.contains_key(&PENDING)
    }

    /// The InternalIP, or the published tool's text without one.
    pub(crate) fn address(&self) -> &str {
        self.address.as_deref().unwrap_or("unknown")
    }

    /// Cards in their order; memory of an unknown card comes last.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (i64, &Device)> {
        let cards = self.devices.range(0..).chain(self.devices.range(..0));
        cards.map(|(index, device)| (*index, device))
    }
}

/// A pod's memory of each card; `None` if it has none. `unit_mib`: amounts are MiB, and this is one
/// unit of the resource. The sources are, in this order: mpsgate's placement, V2, V1, and what
/// mpsgated sees.
fn pod_view(
    pod: &Pod,
    node: &str,
    cards: &BTreeMap<u32, CardReport>,
    unit_mib: Option<i64>,
) -> Option<PodView> {
    let scale = unit_mib.unwrap_or(1);
    let held: BTreeMap<i64, i64> = (cards.iter())
        .filter_map(|(index, card)| Some((i64::from(*index), mib(card.held.get(&pod.uid)?.0))))
        .filter(|(_, held)| *held > 0)
        .collect();
    let placed = unit_mib.and_then(|_| annotations::placement(pod, node));
    let asked = if cards.is_empty() {
        resource(pod).saturating_mul(scale)
    } else {
        most(pod, |container| limits(container).memory().map(|(_, memory)| mib(memory)).sum())
    };
    let scaled = |units: BTreeMap<i64, i64>| -> BTreeMap<i64, i64> {
        units.into_iter().map(|(card, units)| (card, units.saturating_mul(scale))).collect()
    };
    let (mut amounts, source) = match placed {
        Some(layout) => (peaks(pod, &layout), Source::Placement),
        None if asked <= 0 => (BTreeMap::new(), Source::Held),
        None => match (scaled(annotations::allocation(pod)), annotations::index(pod)) {
            (units, _) if !units.is_empty() => (units, Source::Allocation),
            (_, PENDING) if !held.is_empty() => (BTreeMap::new(), Source::Held),
            (_, PENDING) => (BTreeMap::from([(PENDING, asked)]), Source::Unknown),
            (_, index) => (BTreeMap::from([(index, asked)]), Source::Index),
        },
    };
    for (card, held) in held {
        let amount = amounts.entry(card).or_default();
        *amount = held.max(*amount);
    }
    (!amounts.is_empty()).then(|| PodView {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        amounts,
        source,
    })
}

/// Pods that have ended, or that the API server no longer has, and whose containers still hold
/// memory.
fn gone(cards: &BTreeMap<u32, CardReport>, known: &HashSet<&str>) -> Vec<PodView> {
    let mut amounts: BTreeMap<&str, BTreeMap<i64, i64>> = BTreeMap::new();
    for (index, card) in cards {
        for (uid, held) in
            card.held.iter().filter(|(uid, held)| held.0 > 0 && !known.contains(uid.as_str()))
        {
            amounts.entry(uid).or_default().insert(i64::from(*index), mib(held.0));
        }
    }
    let view = |(uid, amounts): (&str, _)| PodView {
        namespace: "-".to_owned(),
        name: uid.to_owned(),
        uid: uid.to_owned(),
        amounts,
        source: Source::Held,
    };
    amounts.into_iter().map(view).collect()
}

fn mib(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}

/// A limit that is not a count gives nothing: mpsgated refuses its container.
fn limits(container: &Container) -> Limits {
    container.limits.clone().unwrap_or_default()
}

/// `aliyun.com/gpu-mem` of the main containers together, as the published tool counts.
fn resource(pod: &Pod) -> i64 {
    let mains = pod.containers.iter().filter(|container| container.kind == Kind::Main);
    mains.map(|container| mib(limits(container).gpu_mem)).fold(0, i64::saturating_add)
}

/// MiB of each card, at the pod's peak.
fn peaks(pod: &Pod, layout: &Layout) -> BTreeMap<i64, i64> {
    let on = |card: u32| {
        let of = |name: &str| layout.0.get(name).and_then(|cards| cards.get(&card));
        most(pod, |container| of(&container.name).map_or(0, |amount| mib(amount.0)))
    };
    let cards = layout.0.values().flat_map(BTreeMap::keys);
    cards.map(|card| (i64::from(*card), on(*card))).filter(|(_, amount)| *amount > 0).collect()
}

/// Counts as Kubernetes does: an init container with the sidecars before it, then the sidecars and
/// main containers together.
fn most(pod: &Pod, amount: impl Fn(&Container) -> i64) -> i64 {
    let (mut sidecars, mut most, mut mains) = (0_i64, 0_i64, 0_i64);
    for container in &pod.containers {
        let amount = amount(container);
        match container.kind {
            Kind::Init => most = most.max(sidecars.saturating_add(amount)),
            Kind::Sidecar => sidecars = sidecars.saturating_add(amount),
            Kind::Main => mains = mains.saturating_add(amount),
        }
    }
    most.max(sidecars.saturating_add(mains))
}

#[cfg(test)]
mod tests;
