//! How much of a cluster can be given away: our placement against others, on the same pods in the
//! same order.
//!
//! First pods arrive and stay until 1.3 times the cluster's memory has been asked for. Then, on
//! another cluster, pods come and go: each time the pods there would ask for more than 0.95 of the
//! memory, a random one ends.

use mpsgate_cluster::{Ledger, Node};
use mpsgate_model::Placement;

use crate::random::Random;
use crate::workload::{Task, Workload, pod};

/// Who chooses node and card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    Ours,
    Random,
    First,
    Best,
    Dot,
    /// The node with the most left, there the fullest card: gpushare's extender under
    /// kube-scheduler's own scores.
    Emptiest,
}

pub(crate) const RULES: [(Rule, &str); 6] = [
    (Rule::Random, "random"),
    (Rule::Emptiest, "emptiest node, best-fit card"),
    (Rule::Dot, "dot product"),
    (Rule::First, "first fit"),
    (Rule::Best, "best fit"),
    (Rule::Ours, "mpsgate"),
];

/// Where a task is.
enum Slot {
    Pod(String),
    Cards(usize, Vec<usize>),
}

#[derive(Debug, Clone, Copy)]
struct Plain {
    total: u64,
    free: u64,
    core: u32,
}

enum Packer {
    Ours { ledger: Ledger, nodes: Vec<String>, next: u64, random: Random },
    Plain { nodes: Vec<Vec<Plain>>, rule: Rule, random: Random, largest: u64 },
}

impl Packer {
    fn new(rule: Rule, nodes: &[Node], seed: u64) -> Self {
        let random = Random::new(seed);
        if rule == Rule::Ours {
            let mut ledger = Ledger::new(Placement::Binpack);
            nodes.iter().cloned().for_each(|node| ledger.set_node(node));
            let nodes = nodes.iter().map(|node| node.name.clone()).collect();
            return Self::Ours { ledger, nodes, next: 0, random };
        }
        let plain = |node: &Node| {
            let cards = node.cards.iter().map(|card| card.memory.0);
            cards.map(|total| Plain { total, free: total, core: 100 }).collect()
        };
        let largest = nodes.iter().flat_map(|node| &node.cards).map(|card| card.memory.0).max();
        let nodes = nodes.iter().map(plain).collect();
        Self::Plain { nodes, rule, random, largest: largest.unwrap_or(1) }
    }

    fn place(&mut self, task: Task) -> Option<Slot> {
        match self {
            Self::Ours { ledger, nodes, next, random } => {
                *next += 1;
                let asked = pod(format!("{next:08}"), task);
                // As kube-scheduler does, any of those with the highest score.
                let (mut best, mut among) = (None, 0);
                for node in nodes.iter() {
                    let Some(score) = ledger.score(node, &asked) else { continue };
                    match best {
                        Some((highest, _)) if score < highest => continue,
                        Some((highest, _)) if score == highest => among += 1,
                        _ => among = 1,
                    }
                    if random.below(among) == 0 {
                        best = Some((score, node));
                    }
                }
                let (_, node) = best?;
                let uid = asked.uid.clone();
                ledger.reserve(asked, node, u64::MAX).ok()?;
                Some(Slot::Pod(uid))
            }
            Self::Plain { nodes, rule, random, largest } => {
                let wanted = usize::try_from(task.cards).expect("few");
                let mut best: Option<((u64, usize), usize, Vec<usize>)> = None;
                for (n, node) in nodes.iter().enumerate() {
                    let fits = |card: &Plain| card.free >= task.memory && card.core >= task.core;
                    let mut open: Vec<(u64, usize)> = Vec::new();
                    for (c, card) in node.iter().enumerate().filter(|(_, card)| fits(card)) {
                        open.push((key(*rule, card, task, *largest, random), c));
                    }
                    if open.len() < wanted {
                        continue;
                    }
                    open.sort_unstable();
                    open.truncate(wanted);
                    let by_node = match rule {
                        Rule::Emptiest => {
                            let free: u64 = node.iter().map(|card| card.free).sum();
                            let total: u64 = node.iter().map(|card| card.total).sum();
                            1_000_000 - free * 1_000_000 / total
                        }
                        _ => open[0].0,
                    };
                    if best.as_ref().is_none_or(|(least, ..)| (by_node, n) < *least) {
                        best = Some(((by_node, n), n, open.into_iter().map(|(_, c)| c).collect()));
                    }
                    if *rule == Rule::First {
                        break;
                    }
                }
                let (_, n, cards) = best?;
                for c in &cards {
                    nodes[n][*c].free -= task.memory;
                    nodes[n][*c].core -= task.core;
                }
                Some(Slot::Cards(n, cards))
            }
        }
    }

    fn end(&mut self, slot: Slot, task: Task) {
        match (self, slot) {
            (Self::Ours { ledger, .. }, Slot::Pod(uid)) => ledger.remove_pod(&uid),
            (Self::Plain { nodes, .. }, Slot::Cards(n, cards)) => {
                for c in cards {
                    nodes[n][c].free += task.memory;
                    nodes[n][c].core += task.core;
                }
            }
            _ => unreachable!("each slot comes back to who gave it"),
        }
    }

    /// The free memory of each card, and the compute.
    fn free(&self) -> Vec<(u64, u32)> {
        match self {
            Self::Ours { ledger, nodes, .. } => nodes
                .iter()
                .flat_map(|node| ledger.cards(node).unwrap_or_default())
                .map(|usage| (usage.card.memory.0 - usage.used.0, 100 - usage.core_percent))
                .collect(),
            Self::Plain { nodes, .. } => {
                nodes.iter().flatten().map(|card| (card.free, card.core)).collect()
            }
        }
    }
}

/// The card with the lowest is taken.
fn key(rule: Rule, card: &Plain, task: Task, largest: u64, random: &mut Random) -> u64 {
    match rule {
        Rule::Random => u64::try_from(random.below(1 << 30)).expect("small"),
        Rule::Best | Rule::Emptiest => card.free,
        // Demand times what is free, over memory and compute, each as a share of the largest card:
        // the highest.
        Rule::Dot => {
            let memory = (task.memory * 1000 / largest) * (card.free * 1000 / largest);
            let core = u64::from(task.core * 10) * u64::from(card.core * 10);
            u64::MAX - memory - core
        }
        Rule::First | Rule::Ours => 0,
    }
}

/// Shares of the cluster's memory, in tenths of a percent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    /// Given away when the first pod found no card.
    pub(crate) first: u64,
    /// Given away when as much had been asked for as there is.
    pub(crate) full: u64,
    /// Given away at the end.
    pub(crate) end: u64,
    /// Of what was free when 0.9 had been asked for: that on cards where a pod of the workload,
    /// drawn at random, does not fit.
    pub(crate) lost: u64,
    /// Of what pods asked for that come and go: refused.
    pub(crate) refused: u64,
}

pub(crate) fn run(rule: Rule, workload: &Workload, seed: u64) -> Outcome {
    let capacity: u64 = workload.nodes.iter().flat_map(|n| &n.cards).map(|c| c.memory.0).sum();
    let share = |part: u64, of: u64| part * 1000 / of.max(1);
    let mut outcome = Outcome::default();
    let mut draw = Random::new(seed);
    let mut packer = Packer::new(rule, &workload.nodes, seed);
    let (mut asked, mut given, mut refused) = (0, 0, false);
    let (mut at_lost, mut at_full) = (false, false);
    while asked * 10 < capacity * 13 {
        let task = workload.tasks[draw.below(workload.tasks.len())];
        asked += task.all();
        if packer.place(task).is_some() {
            given += task.all();
        } else if !refused {
            refused = true;
            outcome.first = share(given, capacity);
        }
        if !at_lost && asked * 10 >= capacity * 9 {
            at_lost = true;
            outcome.lost = lost(&packer.free(), &workload.tasks);
        }
        if !at_full && asked >= capacity {
            at_full = true;
            outcome.full = share(given, capacity);
        }
    }
    outcome.end = share(given, capacity);
    outcome.refused = come_and_go(rule, workload, capacity, seed);
    outcome
}

fn come_and_go(rule: Rule, workload: &Workload, capacity: u64, seed: u64) -> u64 {
    let mut draw = Random::new(seed ^ 0xC0FF_EE00);
    let mut ends = Random::new(seed ^ 0xE0D5);
    let mut packer = Packer::new(rule, &workload.nodes, seed);
    let mut live: Vec<(Option<Slot>, Task)> = Vec::new();
    let (mut there, mut asked, mut refused) = (0, 0, 0);
    // All that come count, placed or not: so each rule sees the same pods come and the same go.
    while asked < capacity * 3 {
        let task = workload.tasks[draw.below(workload.tasks.len())];
        while (there + task.all()) * 100 > capacity * 95 {
            let (slot, task) = live.swap_remove(ends.below(live.len()));
            there -= task.all();
            if let Some(slot) = slot {
                packer.end(slot, task);
            }
        }
        let slot = packer.place(task);
        asked += task.all();
        there += task.all();
        if slot.is_none() {
            refused += task.all();
        }
        live.push((slot, task));
    }
    refused * 1000 / asked
}

fn lost(free: &[(u64, u32)], tasks: &[Task]) -> u64 {
    let all: u64 = free.iter().map(|(memory, _)| memory).sum();
    let sample: Vec<&Task> = tasks.iter().take(1000).collect();
    let mut lost = 0;
    for (memory, core) in free {
        let no = sample.iter().filter(|task| task.memory > *memory || task.core > *core).count();
        lost += memory * u64::try_from(no).expect("small");
    }
    lost / u64::try_from(sample.len()).expect("small") * 1000 / all.max(1)
}

/// The mean of several seeds for each rule.
pub(crate) fn table(workload: &Workload, seeds: u64) {
    let cards: usize = workload.nodes.iter().map(|node| node.cards.len()).sum();
    println!(
        "\n{}: {} nodes, {cards} cards; mean of {seeds} seeds; percent of the cluster's memory; (ratio to random)\n",
        workload.name,
        workload.nodes.len()
    );
    println!(
        "| placement | given at the first refusal | given, 1.0 asked | given, 1.3 asked | free but lost, 0.9 asked | refused, come and go at 0.95 |"
    );
    println!("|---|---|---|---|---|---|");
    let mut floor = None;
    for (rule, name) in RULES {
        eprintln!("measuring: {} with {name}", workload.name);
        let mut sum = [0u64; 5];
        for seed in 1..=seeds {
            let one = run(rule, workload, seed);
            let all = [one.first, one.full, one.end, one.lost, one.refused];
            sum.iter_mut().zip(all).for_each(|(sum, one)| *sum += one);
        }
        let floor = *floor.get_or_insert(sum);
        let cells = sum.iter().zip(floor).map(|(sum, floor)| {
            let mean = sum / seeds;
            let ratio = (sum * 100).checked_div(floor).unwrap_or_default();
            format!("{}.{} ({}.{:02})", mean / 10, mean % 10, ratio / 100, ratio % 100)
        });
        println!("| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
}
