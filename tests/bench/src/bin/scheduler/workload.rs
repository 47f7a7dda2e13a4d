//! Clusters and what is asked of them: generated, or from the files of a public trace.

use std::collections::BTreeMap;
use std::path::Path;

use mpsgate_cluster::{Container, Node, Pod, PodRequest};
use mpsgate_model::{CardReport, Kind, Mib};
use mpsgate_policy::schedule::Word;

use crate::Failure;
use crate::random::Random;

/// GiB of a node's cards, how many it has, and the weight.
const CARDS: [((u64, usize), usize); 6] =
    [((16, 8), 30), ((16, 4), 15), ((24, 8), 20), ((24, 2), 10), ((40, 8), 15), ((80, 8), 10)];
/// GiB that pods ask for: inference of small and large models, notebooks, some training.
const SIZES: [(u64, usize); 10] =
    [(1, 10), (2, 15), (3, 10), (4, 15), (6, 12), (7, 12), (10, 10), (15, 8), (22, 5), (38, 3)];

/// What one pod asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    /// On each of its cards.
    pub(crate) memory: u64,
    pub(crate) cards: u32,
    /// Percent of the compute of each.
    pub(crate) core: u32,
}

impl Task {
    pub(crate) fn all(self) -> u64 {
        self.memory * u64::from(self.cards)
    }
}

/// Nodes, and tasks to draw from.
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) nodes: Vec<Node>,
    pub(crate) tasks: Vec<Task>,
}

pub(crate) const HOW: &str = "\
cards of a node (weight): 8x16 (30), 4x16 (15), 8x24 (20), 2x24 (10), 8x40 (15), 8x80 GiB (10); a pod asks for (weight) \
1 (10), 2 (15), 3 (10), 4 (15), 6 (12), 7 (12), 10 (10), 15 (8), 22 (5), 38 GiB (3); one in 20 asks for that on 2 cards; \
one in 4 also for 10, 20 or 50 % of the compute";

pub(crate) fn card(index: u32, memory: u64) -> CardReport {
    CardReport {
        index,
        name: String::new(),
        uuid: format!("GPU-{index:08x}-0000-0000-0000-000000000000"),
        memory: Mib(memory),
        local: Mib(0),
        healthy: true,
        uid: None,
        one_uid: false,
        max_clients: None,
        held: BTreeMap::new(),
        guarantee: String::new(),
        proof: String::new(),
    }
}

fn node(name: String, memory: u64, cards: usize) -> Node {
    let cards = (0..).take(cards).map(|index| card(index, memory)).collect();
    Node { name, schedule: Word::Share, placement: None, max_pods: None, cards }
}

/// Nodes with eight cards each, of mixed sizes.
pub(crate) fn eights(count: usize, random: &mut Random) -> Vec<Node> {
    let sizes = [(16, 40), (24, 30), (40, 20), (80, 10)];
    let one = |n| node(format!("node-{n:05}"), random.weighted(&sizes) * 1024, 8);
    (0..count).map(one).collect()
}

pub(crate) fn task(random: &mut Random) -> Task {
    let memory = random.weighted(&SIZES) * 1024;
    let cards = if random.below(20) == 0 { 2 } else { 1 };
    let core = if random.below(4) == 0 { random.weighted(&[(10, 5), (20, 4), (50, 1)]) } else { 0 };
    Task { memory, cards, core }
}

pub(crate) fn generated(nodes: usize, seed: u64) -> Workload {
    let mut random = Random::new(seed);
    let nodes = (0..nodes).map(|n| {
        let (memory, cards) = random.weighted(&CARDS);
        node(format!("node-{n:05}"), memory * 1024, cards)
    });
    let nodes = nodes.collect();
    let tasks = (0..10_000).map(|_| task(&mut random)).collect();
    Workload { name: "generated".to_owned(), nodes, tasks }
}

/// Alibaba's cluster-trace-gpu-v2023: a card has 1,000 units whatever its model, as the trace
/// counts; tasks without a GPU and wishes for a model are left out.
pub(crate) fn trace(nodes: &Path, pods: &Path) -> Result<Workload, Failure> {
    let read =
        |file: &Path| std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()));
    let rows = |text: &str| -> Vec<Vec<String>> {
        let cells = |line: &str| line.split(',').map(str::to_owned).collect();
        text.lines().skip(1).map(cells).collect()
    };
    let cell = |row: &[String], n: usize| row.get(n).cloned().unwrap_or_default();
    let mut found = Vec::new();
    for row in rows(&read(nodes)?) {
        found.push(node(cell(&row, 0), 1000, cell(&row, 3).parse()?));
    }
    let mut tasks = Vec::new();
    for row in rows(&read(pods)?) {
        let cards: u32 = cell(&row, 3).parse()?;
        if cards > 0 {
            let memory = if cards == 1 { cell(&row, 4).parse()? } else { 1000 };
            tasks.push(Task { memory, cards, core: 0 });
        }
    }
    let name =
        pods.file_stem().map_or_else(|| "trace".into(), |name| name.to_string_lossy().into_owned());
    Ok(Workload { name, nodes: found, tasks })
}

/// A pod with one container.
pub(crate) fn pod(uid: String, task: Task) -> Pod {
    let container = Container {
        name: "main".to_owned(),
        kind: Kind::Main,
        memory: Mib(task.all()),
        unit: Mib(1),
        core_percent: task.core,
        uid: None,
    };
    Pod {
        name: format!("pod-{uid}"),
        namespace: "default".to_owned(),
        uid,
        request: PodRequest { containers: vec![container], cards: task.cards },
        node: None,
        layout: None,
        finished: false,
    }
}
