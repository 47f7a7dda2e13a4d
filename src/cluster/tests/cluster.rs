//! The cluster's ledger under any sequence of events: it hands out nothing twice, and equals a
//! rebuild from scratch.
//!
//! Beside the ledger stands a plain copy of what the API server would list, and an account that
//! adds it up anew, by its own rules, each time the ledger gives something.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code fails by panicking")]

use std::collections::BTreeMap;

use mpsgate_cluster::{Container, Ledger, Node, Pod, PodRequest};
use mpsgate_model::{CardReport, Kind, Layout, Mib, Placement};
use mpsgate_policy::schedule::Word;
use proptest::prelude::*;

const NODES: usize = 3;
const PODS: usize = 10;
const LIFE_MS: u64 = 60_000;

/// What happens after a reservation.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    /// The pod could not be bound.
    Failed,
    /// Nobody knows whether it was: it was not.
    Unknown,
    Bound,
    /// mpsgate-scheduler died before the API server had it.
    DiedBefore,
    /// mpsgate-scheduler died after that.
    DiedAfter,
}

#[derive(Debug, Clone)]
enum Event {
    Node(usize, Node),
    NodeGone(usize),
    /// The node reports what its containers hold: of each pod there so much of its layout, in
    /// percent.
    Report(usize, u64),
    /// With cards that whoever made it wrote on it.
    Created(usize, PodRequest, Option<Layout>),
    Bind(usize, usize, Outcome),
    /// Somebody else binds it and says nothing of its cards.
    BoundElsewhere(usize, usize),
    Finished(usize),
    Deleted(usize),
    Time(u64),
    Restart(u64),
}

fn nodes() -> impl Strategy<Value = Node> {
    let card = (4u64..24, 0u64..3, prop::bool::weighted(0.9), prop::option::of(1u32..4));
    let cards = prop::collection::vec(card, 0..4);
    let words = prop::sample::select(vec![Word::Mps, Word::Mps, Word::Share, Word::Off]);
    let placement = prop::sample::select(vec![None, Some(Placement::Spread)]);
    (cards, words, placement, prop::option::of(1u32..4)).prop_map(
        |(cards, schedule, placement, max_pods)| {
            let cards =
                (0u32..).zip(cards).map(|(index, (memory, local, healthy, clients))| CardReport {
                    local: Mib(local),
                    healthy,
                    max_clients: clients.filter(|_| schedule == Word::Mps),
                    ..CardReport::example(format!("GPU-{index}"), index, Mib(memory))
                });
            Node { name: String::new(), schedule, placement, max_pods, cards: cards.collect() }
        },
    )
}

fn requests() -> impl Strategy<Value = PodRequest> {
    let kinds = prop::sample::select(vec![Kind::Main, Kind::Main, Kind::Init, Kind::Sidecar]);
    let cores = prop::sample::select(vec![0u32, 0, 40]);
    let container = (kinds, 1u64..12, cores, prop::sample::select(vec![None, Some(0), Some(7)]));
    (prop::collection::vec(container, 1..4), prop::sample::select(vec![1u32, 1, 1, 2])).prop_map(
        |(mut containers, cards)| {
            containers.sort_by_key(|(kind, ..)| *kind == Kind::Main);
            let containers =
                containers.into_iter().enumerate().map(|(n, (kind, memory, core_percent, uid))| {
                    Container {
                        name: format!("c{n}"),
                        kind,
                        memory: Mib(memory),
                        unit: Mib(1),
                        core_percent,
                        uid,
                    }
                });
            PodRequest { containers: containers.collect(), cards }
        },
    )
}

/// What whoever makes a pod may write on it.
fn forged() -> impl Strategy<Value = Option<Layout>> {
    let cards = prop::collection::btree_map(0u32..4, (0u64..=u64::MAX).prop_map(Mib), 0..3);
    let names = prop::sample::select(vec!["c0", "c1", "other"]).prop_map(ToOwned::to_owned);
    prop::option::of(prop::collection::btree_map(names, cards, 0..3).prop_map(Layout))
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    use Outcome::{Bound, DiedAfter, DiedBefore, Failed, Unknown};
    let outcomes =
        prop::sample::select(vec![Failed, Unknown, Bound, Bound, Bound, DiedBefore, DiedAfter]);
    let event = prop_oneof![
        2 => (0..NODES, nodes()).prop_map(|(n, node)| Event::Node(n, node)),
        1 => (0..NODES).prop_map(Event::NodeGone),
        3 => (0..NODES, 0u64..150).prop_map(|(n, percent)| Event::Report(n, percent)),
        6 => (0..PODS, requests(), forged()).prop_map(|(n, request, forged)| Event::Created(n, request, forged)),
        12 => (0..PODS, 0..NODES, outcomes).prop_map(|(pod, node, what)| Event::Bind(pod, node, what)),
        1 => (0..PODS, 0..NODES).prop_map(|(pod, node)| Event::BoundElsewhere(pod, node)),
        1 => (0..PODS).prop_map(Event::Finished),
        2 => (0..PODS).prop_map(Event::Deleted),
        2 => (0u64..50_000).prop_map(Event::Time),
        1 => any::<u64>().prop_map(Event::Restart),
    ];
    prop::collection::vec(event, 1..60)
}

/// What the API server would list.
#[derive(Debug, Default)]
struct Cluster {
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<String, Pod>,
    /// What the ledger has beside that: by uid, until when, the node and the cards.
    reserved: BTreeMap<String, (u64, String, Layout)>,
    now_ms: u64,
    created: u64,
}

fn node_name(n: usize) -> String {
    format!("n{n}")
}

impl Cluster {
    /// A ledger from scratch, from lists in some order. It knows nothing of what was only reserved.
    fn rebuild(&self, seed: u64) -> Ledger {
        let mut ledger = Ledger::new(Placement::Binpack);
        ledger.expire(self.now_ms);
        let nodes = self.nodes.values().map(|node| (Some(node), None));
        let pods = self.pods.values().map(|pod| (None, Some(pod)));
        let mut all: Vec<_> = nodes.chain(pods).enumerate().collect();
        all.sort_by_key(|(n, _)| {
            (seed ^ u64::try_from(*n).unwrap()).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        });
        for (_, (node, pod)) in all {
            node.cloned().into_iter().for_each(|node| ledger.set_node(node));
            pod.cloned().into_iter().for_each(|pod| ledger.set_pod(pod));
        }
        ledger
    }

    fn restart(&mut self, ledger: &mut Ledger, seed: u64) {
        self.reserved.clear();
        *ledger = self.rebuild(seed);
    }

    fn expire(&mut self, ledger: &mut Ledger, now_ms: u64) {
        self.reserved.retain(|_, (until, ..)| *until > now_ms);
        ledger.expire(now_ms);
    }

    fn pod(&self, n: usize) -> Option<&Pod> {
        self.pods.values().rfind(|pod| pod.name == format!("p{n}"))
    }

    /// Where a pod counts, and with which cards, where they are known.
    fn counts<'a>(&'a self, pod: &'a Pod) -> Option<(&'a str, Option<&'a Layout>)> {
        if pod.finished {
            return None;
        }
        let reserved = self.reserved.get(&pod.uid);
        match &pod.node {
            Some(node) => Some((node, pod.layout.as_ref())),
            None => reserved.map(|(_, node, layout)| (node.as_str(), Some(layout))),
        }
    }

    /// Memory, compute and uids on a card without one pod; the guesses for pods without a placement
    /// left out.
    fn account(&self, node: &str, card: &CardReport, without: &str) -> (u64, u32, Vec<u32>) {
        let mut by_pod: BTreeMap<&str, (u64, u32)> = BTreeMap::new();
        let mut uids = Vec::new();
        for pod in self.pods.values().filter(|pod| pod.uid != without) {
            let Some((at, Some(layout))) = self.counts(pod) else { continue };
            if at != node {
                continue;
            }
            let (memory, core, mut who) = peak(&pod.request, layout, card.index);
            by_pod.insert(&pod.uid, (memory, core));
            uids.append(&mut who);
        }
        for (uid, held) in card.held.iter().filter(|(uid, _)| *uid != without) {
            let on = by_pod.entry(uid).or_default();
            on.0 = on.0.max(held.0);
        }
        let memory: u64 = by_pod.values().map(|(memory, _)| memory).sum();
        (card.local.0 + memory, by_pod.values().map(|(_, core)| core).sum(), uids)
    }

    /// That what was given was free, each container has what it asked for, and the rules of the
    /// cards hold.
    fn check(&self, node: &str, pod: &Pod, layout: &Layout) -> Result<(), TestCaseError> {
        let on = &self.nodes[node];
        prop_assert!(on.schedule != Word::Off);
        for container in &pod.request.containers {
            let cards = &layout.0[&container.name];
            prop_assert_eq!(cards.len(), usize::try_from(pod.request.cards).unwrap());
            prop_assert_eq!(cards.values().map(|memory| memory.0).sum::<u64>(), container.memory.0);
        }
        for card in &on.cards {
            let (memory, core, mut uids) = peak(&pod.request, layout, card.index);
            if memory == 0 {
                continue;
            }
            let (taken, core_taken, others) = self.account(node, card, &pod.uid);
            prop_assert!(card.healthy);
            prop_assert!(
                taken + memory <= card.memory.0,
                "{taken} + {memory} on {card:?} of {node}"
            );
            prop_assert!(core == 0 || core_taken + core <= 100);
            uids.extend(others);
            uids.sort_unstable();
            uids.dedup();
            prop_assert!(on.schedule == Word::Share || uids.len() == 1, "{uids:?} on {card:?}");
        }
        for on_cards in layout.0.values() {
            prop_assert!(on_cards.keys().all(|index| on.cards.iter().any(|c| c.index == *index)));
        }
        Ok(())
    }
}

/// Kubernetes' rule, written as it is told: each init container beside the sidecars before it, then
/// all the rest.
fn peak(request: &PodRequest, layout: &Layout, card: u32) -> (u64, u32, Vec<u32>) {
    let (mut memory, mut core, mut uids) = (0, 0, Vec::new());
    let has = |c: &Container| layout.0.get(&c.name).and_then(|on| on.get(&card)).map(|m| m.0);
    let sum = |of: &[&Container]| {
        let there = || of.iter().filter(|c| has(c).is_some());
        let memory: u64 = there().filter_map(|c| has(c)).sum();
        (memory, there().map(|c| c.core_percent).sum::<u32>())
    };
    for (n, container) in request.containers.iter().enumerate() {
        if has(container).is_some() {
            uids.push(container.uid.unwrap_or(0));
        }
        let before = request.containers[..n].iter().filter(|c| c.kind == Kind::Sidecar);
        let mut step: Vec<&Container> = before.collect();
        step.push(container);
        if container.kind == Kind::Main {
            step = request.containers.iter().filter(|c| c.kind != Kind::Init).collect();
        }
        let (step_memory, step_core) = sum(&step);
        (memory, core) = (memory.max(step_memory), core.max(step_core));
    }
    (memory, core, uids)
}

fn step(cluster: &mut Cluster, ledger: &mut Ledger, event: &Event) -> Result<(), TestCaseError> {
    match event {
        Event::Node(n, node) => {
            let node = Node { name: node_name(*n), ..node.clone() };
            cluster.nodes.insert(node.name.clone(), node.clone());
            ledger.set_node(node);
        }
        Event::NodeGone(n) => {
            cluster.nodes.remove(&node_name(*n));
            ledger.remove_node(&node_name(*n));
        }
        Event::Report(n, percent) => {
            let Some(node) = cluster.nodes.get_mut(&node_name(*n)) else { return Ok(()) };
            let name = node.name.clone();
            for card in &mut node.cards {
                // What is gone from the API server is let go by a report of little.
                card.held.retain(|_, _| *percent > 75);
                let there = cluster.pods.values().filter(|p| p.node.as_deref() == Some(&name));
                for pod in there {
                    let Some(layout) = &pod.layout else { continue };
                    let (memory, ..) = peak(&pod.request, layout, card.index);
                    if memory * percent >= 100 {
                        card.held.insert(pod.uid.clone(), Mib(memory * percent / 100));
                    }
                }
            }
            ledger.set_node(node.clone());
        }
        Event::Created(n, request, forged) => {
            if cluster.pod(*n).is_none() {
                cluster.created += 1;
                let pod = Pod {
                    uid: format!("{:08}", cluster.created),
                    namespace: "default".to_owned(),
                    name: format!("p{n}"),
                    request: request.clone(),
                    node: None,
                    layout: forged.clone(),
                    finished: false,
                };
                cluster.pods.insert(pod.uid.clone(), pod.clone());
                ledger.set_pod(pod);
            }
        }
        Event::Bind(n, node, outcome) => bind(cluster, ledger, *n, &node_name(*node), *outcome)?,
        Event::BoundElsewhere(n, node) => {
            let Some(pod) = cluster.pod(*n).filter(|pod| pod.node.is_none()).cloned() else {
                return Ok(());
            };
            let pod = Pod { node: Some(node_name(*node)), layout: None, ..pod };
            cluster.reserved.remove(&pod.uid);
            cluster.pods.insert(pod.uid.clone(), pod.clone());
            ledger.set_pod(pod);
        }
        Event::Finished(n) => {
            let bound = |pod: &&Pod| pod.node.is_some();
            let Some(mut pod) = cluster.pod(*n).filter(bound).cloned() else { return Ok(()) };
            pod.finished = true;
            cluster.pods.insert(pod.uid.clone(), pod.clone());
            ledger.set_pod(pod);
        }
        Event::Deleted(n) => {
            let Some(uid) = cluster.pod(*n).map(|pod| pod.uid.clone()) else { return Ok(()) };
            cluster.pods.remove(&uid);
            cluster.reserved.remove(&uid);
            ledger.remove_pod(&uid);
        }
        Event::Time(ms) => {
            cluster.now_ms += ms;
            cluster.expire(ledger, cluster.now_ms);
        }
        Event::Restart(seed) => cluster.restart(ledger, *seed),
    }
    Ok(())
}

fn bind(
    cluster: &mut Cluster,
    ledger: &mut Ledger,
    n: usize,
    node: &str,
    outcome: Outcome,
) -> Result<(), TestCaseError> {
    let Some(pod) = cluster.pod(n).cloned() else { return Ok(()) };
    let until = cluster.now_ms + LIFE_MS;
    let asked = Pod { node: None, layout: None, ..pod.clone() };
    let may = ledger.fits(node, &asked);
    let given = ledger.reserve(asked.clone(), node, until);
    prop_assert!(pod.node.is_none() || given.is_err(), "a bound pod is not bound again");
    let Ok(layout) = given else { return Ok(()) };
    prop_assert_eq!(Ok(&layout), may.as_ref());
    cluster.check(node, &pod, &layout)?;
    // A watch that is behind.
    ledger.set_pod(pod.clone());
    let on = ledger.cards(node).unwrap();
    let mine = on.iter().flat_map(|card| &card.pods).filter(|on| on.uid == pod.uid);
    prop_assert!(mine.count() >= 1, "a reservation is not lost to a watch that is behind");
    let written = Pod { node: Some(node.to_owned()), layout: Some(layout.clone()), ..pod.clone() };
    match outcome {
        Outcome::Failed => {
            ledger.release(&pod.uid);
            cluster.reserved.remove(&pod.uid);
            // The API server still has what it had before.
            ledger.set_pod(pod);
        }
        Outcome::Unknown => {
            cluster.reserved.insert(pod.uid, (until, node.to_owned(), layout));
        }
        Outcome::DiedBefore => cluster.restart(ledger, until),
        Outcome::DiedAfter => {
            cluster.pods.insert(pod.uid, written);
            cluster.restart(ledger, until);
        }
        Outcome::Bound => {
            ledger.set_pod(written.clone());
            cluster.reserved.remove(&pod.uid);
            cluster.pods.insert(pod.uid, written);
        }
    }
    Ok(())
}

/// That two ledgers tell and answer the same.
fn same(cluster: &Cluster, one: &Ledger, other: &Ledger) -> Result<(), TestCaseError> {
    prop_assert_eq!(one.nodes().collect::<Vec<_>>(), other.nodes().collect::<Vec<_>>());
    for node in (0..NODES).map(node_name) {
        prop_assert_eq!(one.cards(&node), other.cards(&node), "{}", node);
        for pod in cluster.pods.values() {
            prop_assert_eq!(one.fits(&node, pod), other.fits(&node, pod));
            prop_assert_eq!(one.score(&node, pod), other.score(&node, pod));
            prop_assert_eq!(one.score(&node, pod).is_some(), one.fits(&node, pod).is_ok());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_card_is_handed_out_twice_and_the_ledger_equals_a_rebuild(
        events in events(),
        seeds in prop::array::uniform3(any::<u64>()),
    ) {
        let mut cluster = Cluster::default();
        let mut ledger = cluster.rebuild(0);
        for event in &events {
            step(&mut cluster, &mut ledger, event)?;
        }
        // What was only reserved is known to nobody else, and ends.
        cluster.expire(&mut ledger, u64::MAX);
        for seed in seeds {
            same(&cluster, &ledger, &cluster.rebuild(seed))?;
        }
        // And without the pods that are not bound, whatever is written on them.
        cluster.pods.retain(|_, pod| pod.node.is_some());
        same(&cluster, &ledger, &cluster.rebuild(0))?;
    }
}
