//! 5,000 nodes with 8 cards and 100,000 pods: how long a question takes, and what the ledger takes
//! of memory.

use std::time::{Duration, Instant};

use mpsgate_cluster::{Container, Ledger, Node, Pod, PodRequest, Snapshot};
use mpsgate_model::{Kind, Mib, Placement};
use mpsgate_policy::schedule::Word;
use nix::time::{ClockId, clock_gettime};

use crate::Failure;
use crate::random::Random;
use crate::workload::{self, eights, pod};

const NODES: usize = 5_000;
const PODS: usize = 100_000;
const CANDIDATES: [usize; 3] = [100, 500, 5_000];
const BINDS: usize = 20_000;
/// Most time of filter and prioritize at p99, whatever the pod, with 500 candidates.
pub(crate) const BUDGET: Duration = Duration::from_millis(20);

/// Time that went by, and the thread's own: the first has what else the machine did.
#[derive(Clone, Copy)]
struct Clock {
    wall: Instant,
    own: Duration,
}

impl Clock {
    fn start() -> Self {
        Self { own: Self::own(), wall: Instant::now() }
    }

    fn stop(self) -> (Duration, Duration) {
        (self.wall.elapsed(), Self::own().saturating_sub(self.own))
    }

    fn own() -> Duration {
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
        time.map(Duration::from).expect("Linux has this clock")
    }
}

/// Times, in order.
struct Times {
    wall: Vec<Duration>,
    own: Vec<Duration>,
}

impl Times {
    fn of(times: Vec<(Duration, Duration)>) -> Self {
        let (mut wall, mut own): (Vec<_>, Vec<_>) = times.into_iter().unzip();
        wall.sort_unstable();
        own.sort_unstable();
        Self { wall, own }
    }

    fn cells(&self) -> String {
        let us = |times: &[Duration], percent| {
            format!("{:.1}", percentile(times, percent).as_secs_f64() * 1e6)
        };
        let [wall, own] = [&self.wall, &self.own];
        [us(wall, 50), us(wall, 99), us(own, 50), us(own, 99)].join(" | ")
    }
}

/// Of times in order.
pub(crate) fn percentile(times: &[Duration], percent: usize) -> Duration {
    let last = times.len().saturating_sub(1);
    times[(times.len() * percent / 100).min(last)]
}

/// The lists of an API server: nodes under MPS with their reports, and bound pods.
pub(crate) fn lists() -> Result<(Vec<Node>, Vec<Pod>), Failure> {
    let mut random = Random::new(8);
    let mut nodes = eights(NODES, &mut random);
    for node in &mut nodes {
        node.schedule = Word::Mps;
        for card in &mut node.cards {
            card.max_clients = Some(48);
            card.one_uid = true;
        }
    }
    let mut ledger = Ledger::new(Placement::Spread);
    nodes.iter().cloned().for_each(|node| ledger.set_node(node));
    let mut pods = Vec::with_capacity(PODS);
    let mut tries = 0;
    while pods.len() < PODS {
        tries += 1;
        if tries > PODS * 20 {
            return Err(format!("only {} pods fit on the generated cluster", pods.len()).into());
        }
        let n = random.below(NODES);
        let asked = pod(uid(pods.len()), usual(&mut random));
        let Ok(layout) = ledger.fits(&nodes[n].name, &asked) else { continue };
        for (index, memory) in layout.0.values().flatten() {
            let card = nodes[n].cards.iter_mut().find(|card| card.index == *index);
            card.expect("it is of the layout").held.insert(asked.uid.clone(), *memory);
        }
        let bound = Pod { node: Some(nodes[n].name.clone()), layout: Some(layout), ..asked };
        ledger.set_pod(bound.clone());
        pods.push(bound);
    }
    Ok((nodes, pods))
}

/// As the API server makes them.
fn uid(n: usize) -> String {
    format!("{n:08x}-1c5e-4f6b-9d0a-{:012x}", n * 7919)
}

fn usual(random: &mut Random) -> workload::Task {
    workload::Task { cards: 1, ..workload::task(random) }
}

/// Resident memory in bytes.
fn resident() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.and_then(|l| l.split_whitespace().next()).ok_or("no VmRSS")?.parse()?;
    Ok(kib * 1024)
}

/// Three containers with an init container, on whatever cards have room.
fn several(uid: String) -> Pod {
    let one = |name: &str, kind, gib: u64| Container {
        name: name.to_owned(),
        kind,
        memory: Mib(gib * 1024),
        unit: Mib(1024),
        core_percent: 0,
        uid: None,
    };
    let containers = vec![
        one("load", Kind::Init, 6),
        one("a", Kind::Main, 5),
        one("b", Kind::Main, 4),
        one("c", Kind::Main, 3),
    ];
    let request = PodRequest { containers, cards: 1 };
    Pod { request, ..pod(uid, workload::Task { memory: 1, cards: 1, core: 0 }) }
}

/// Filter and prioritize: each candidate is asked whether the pod fits, each that does for its
/// score.
fn ask(ledger: &Snapshot, candidates: &[&str], pod: &Pod) -> ((Duration, Duration), usize) {
    let start = Clock::start();
    let mut refused = Vec::new();
    let mut fitting = Vec::new();
    for node in candidates {
        match ledger.takes(node, pod) {
            Ok(()) => fitting.push(*node),
            Err(reason) => refused.push((*node, reason.text)),
        }
    }
    let best = fitting.iter().filter_map(|node| ledger.score(node, pod)).max();
    std::hint::black_box((best, &refused));
    (start.stop(), fitting.len())
}

/// Makes the pod that is asked about.
type Make = fn(&mut Random) -> Pod;

/// What is asked for.
pub(crate) const KINDS: [(&str, Make); 3] = [
    ("one container", |random| pod("asked".to_owned(), usual(random))),
    ("three containers and an init container", |_| several("asked".to_owned())),
    ("100 GiB: fits nowhere", |_| {
        pod("asked".to_owned(), workload::Task { memory: 100 * 1024, cards: 1, core: 0 })
    }),
];

/// Prints the table of the ledger alone.
pub(crate) fn table(nodes: &[Node], pods: &[Pod]) -> Result<(), Failure> {
    let mut ledger = Ledger::new(Placement::Binpack);
    let before = resident()?;
    nodes.iter().cloned().for_each(|node| ledger.set_node(node));
    let with_nodes = resident()?;
    pods.iter().cloned().for_each(|pod| ledger.set_pod(pod));
    let with_pods = resident()?;
    let both = (nodes.to_vec(), pods.to_vec());
    let start = Clock::start();
    let mut again = Ledger::new(Placement::Binpack);
    both.1.into_iter().for_each(|pod| again.set_pod(pod));
    both.0.into_iter().for_each(|node| again.set_node(node));
    let (rebuilt, own) = start.stop();
    drop(again);

    println!("\n{NODES} nodes x 8 cards, {PODS} pods; one thread; µs\n");
    println!(
        "| filter + prioritize | candidates | of these fit | p50 | p99 | p50, CPU | p99, CPU |"
    );
    println!("|---|---|---|---|---|---|---|");
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let mut random = Random::new(88);
    for (what, make) in KINDS {
        for count in CANDIDATES {
            eprintln!("measuring: {what}, {count}");
            let rounds = if count > 1000 { 200 } else { 2000 };
            let (mut times, mut fit) = (Vec::with_capacity(rounds), 0);
            for _ in 0..rounds {
                let from = random.below(names.len() - count + 1);
                let asked = make(&mut random);
                let (time, fitting) = ask(&ledger.snapshot(), &names[from..from + count], &asked);
                times.push(time);
                fit += fitting;
            }
            let times = Times::of(times);
            let fit = fit * 100 / (rounds * count);
            println!("| {what} | {count} | {fit} % | {} |", times.cells());
        }
    }
    let (reserved, events) = binds(&mut ledger, &names, &mut random);
    println!("| bind: choose a card and reserve it | 1 | - | {} |", reserved.cells());
    println!("| watch: that pod is bound, and another is gone | - | - | {} |", events.cells());
    let reports = reports(&mut ledger, nodes);
    println!("| watch: a node reports its cards | - | - | {} |", reports.cells());

    let per = |bytes: u64, count: usize| bytes / u64::try_from(count).expect("small");
    println!(
        "\nmemory: {} bytes for a node of 8 cards with its report, {} bytes for a pod, {} MiB in all",
        per(with_nodes - before, NODES),
        per(with_pods - with_nodes, PODS),
        (with_pods - before) >> 20
    );
    let [rebuilt, own] = [rebuilt, own].map(|time| time.as_secs_f64() * 1e3);
    println!("rebuild from lists: {rebuilt:.0} ms, CPU {own:.0} ms");
    Ok(())
}

fn binds(ledger: &mut Ledger, names: &[&str], random: &mut Random) -> (Times, Times) {
    eprintln!("measuring: bind");
    let (mut reserved, mut events) = (Vec::new(), Vec::new());
    let mut n = PODS;
    while reserved.len() < BINDS {
        n += 1;
        let asked = pod(uid(n), usual(random));
        let node = names[random.below(names.len())];
        let mut bound = Pod { node: Some(node.to_owned()), ..asked.clone() };
        let start = Clock::start();
        let given = ledger.reserve(asked, node, 60_000);
        let took = start.stop();
        let Ok(layout) = given else { continue };
        reserved.push(took);
        bound.layout = Some(layout);
        let gone = bound.uid.clone();
        let start = Clock::start();
        ledger.set_pod(bound);
        ledger.remove_pod(&gone);
        events.push(start.stop());
    }
    (Times::of(reserved), Times::of(events))
}

fn reports(ledger: &mut Ledger, nodes: &[Node]) -> Times {
    let report = |node: &Node| {
        let mut changed = node.clone();
        changed.cards[0].local = Mib(changed.cards[0].local.0 + 1);
        let start = Clock::start();
        ledger.set_node(changed);
        start.stop()
    };
    Times::of(nodes.iter().map(report).collect())
}
