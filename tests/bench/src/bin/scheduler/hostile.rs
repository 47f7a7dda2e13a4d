//! What one hostile question costs whoever asks next: reviews with 3 MiB of one list, answered by
//! the webhook's own functions, and pods of many containers, filtered over HTTP in turn with a
//! usual one.

use std::time::{Duration, Instant};

use mpsgate_cluster::bypass::Known;
use mpsgate_cluster::{Container, Pod, PodRequest};
use mpsgate_model::{GpuNode, HandlerReport, Kind, Mib, RuntimeClass};
use mpsgate_scheduler::webhook::{Mutation, mutate, validate};

use crate::Failure;
use crate::http::{Asker, cycle};
use crate::long::long;
use crate::objects;
use crate::random::Random;
use crate::scale::{KINDS, percentile};
use crate::workload::{self, Task};

/// Most time of one review or filter, whatever is in it: so long a neighbour waits for it.
const BUDGET: Duration = Duration::from_millis(300);
/// Pods of one kind that are asked for, as a Deployment makes them.
const PODS: usize = 50;
/// Times that each review is asked for.
const ROUNDS: usize = 5;

/// As many nodes as the ledger has, all of which lead NVIDIA's handler through mpsgate.
fn known(names: &[&str]) -> Known {
    let led = ["nvidia", "runc"].map(ToOwned::to_owned).into();
    let handlers = HandlerReport { led, ..HandlerReport::default() };
    let node = |name: &&str| {
        let labels = [("kubernetes.io/hostname".to_owned(), (*name).to_owned())].into();
        let handlers = Ok(handlers.clone());
        ((*name).to_owned(), GpuNode { labels, is_switched: true, handlers })
    };
    let class = RuntimeClass { handler: "nvidia".to_owned(), ..RuntimeClass::default() };
    Known {
        classes: Some([("nvidia".to_owned(), class)].into()),
        nodes: names.iter().map(node).collect(),
        ..Known::default()
    }
}

/// Prints the table of reviews; whether the budget is met.
pub(crate) fn reviews(names: &[&str]) -> Result<bool, Failure> {
    eprintln!("measuring: reviews with 3 MiB of each list");
    let known = known(names);
    let mutation = Mutation {
        host_ipc: true,
        scheduler_name: Some("mpsgate".to_owned()),
        ..Mutation::default()
    };
    println!(
        "\nreviews of a new pod with 3 MiB of one list; one thread; ms, the most of {ROUNDS}\n"
    );
    println!("| review | KiB | mutate | validate |");
    println!("|---|---|---|---|");
    let mut most = Duration::ZERO;
    for (what, body) in long() {
        let later = || Instant::now() + Duration::from_secs(60);
        let (mut changed, mut validated) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..ROUNDS {
            let began = Instant::now();
            std::hint::black_box(mutate(body.as_bytes(), &mutation, later())?);
            changed = changed.max(began.elapsed());
            let began = Instant::now();
            std::hint::black_box(validate(body.as_bytes(), &mutation, &known, later())?);
            validated = validated.max(began.elapsed());
        }
        most = most.max(changed).max(validated);
        let [changed, validated] = [changed, validated].map(ms);
        println!("| {what} | {} | {changed:.0} | {validated:.0} |", body.len() >> 10);
    }
    Ok(verdict("review", most))
}

/// A pod of so many containers, whose sizes in GiB repeat.
fn of(count: usize, sizes: &[u64]) -> Pod {
    let one = |(n, gib): (usize, &u64)| Container {
        name: format!("c{n}"),
        kind: Kind::Main,
        memory: Mib(gib * 1024),
        unit: Mib(1024),
        core_percent: 0,
        uid: None,
    };
    let containers = sizes.iter().cycle().take(count).enumerate().map(one).collect();
    let request = PodRequest { containers, cards: 1 };
    Pod { request, ..workload::pod("hostile".to_owned(), Task { memory: 1, cards: 1, core: 0 }) }
}

/// Prints the table of filters; whether the budget is met.
pub(crate) fn filters(asker: &mut Asker, names: &[&str]) -> Result<bool, Failure> {
    println!(
        "\n{PODS} pods of one kind, filtered over HTTP among {} nodes, each before a usual pod; ms\n",
        names.len()
    );
    println!("| pod | p50 | most | the usual pod's filter + prioritize, most |");
    println!("|---|---|---|---|");
    let mut random = Random::new(8888);
    let (_, usual) = KINDS[0];
    let mut worst = Duration::ZERO;
    for (what, pod) in [
        ("256 containers", of(256, &[1, 2, 3, 4, 5])),
        ("32 containers of 1 to 5 GiB", of(32, &[1, 2, 3, 4, 5])),
        ("32 containers of 22 to 33 GiB", of(32, &[33, 27, 22])),
        ("20 containers of 3 to 9 GiB", of(20, &[9, 7, 5, 3])),
        ("9 containers of 12 and 13 GiB", of(9, &[12, 13])),
    ] {
        eprintln!("measuring over HTTP: {what}");
        let question = objects::question(&objects::pod(&pod, 1).to_string(), names);
        let (mut times, mut next) = (Vec::with_capacity(PODS), Duration::ZERO);
        for _ in 0..PODS {
            times.push(asker.timed("/mpsgate/filter", &question)?.0);
            let usual = objects::pod(&usual(&mut random), 1).to_string();
            next = next.max(cycle(asker, &usual, names)?.took);
        }
        times.sort_unstable();
        let most = percentile(&times, 100);
        worst = worst.max(most);
        println!(
            "| {what} | {:.0} | {:.0} | {:.0} |",
            ms(percentile(&times, 50)),
            ms(most),
            ms(next)
        );
    }
    Ok(verdict("filter", worst))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn verdict(what: &str, most: Duration) -> bool {
    let met = most <= BUDGET;
    let word = if met { "met" } else { "MISSED" };
    println!("\nbudget of one hostile {what}, at most {} ms: {word}", BUDGET.as_millis());
    met
}
