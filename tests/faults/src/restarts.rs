//! mpsgated is restarted, killed and upgraded while containers come and go, and nobody may notice.

use std::collections::BTreeMap;
use std::time::Instant;

use nix::sys::signal::Signal;

use crate::check::{self, Before, control_pids};
use crate::churn::{Mix, Workers};
use crate::daemon::{Daemon, status};
use crate::node::{self, install};
use crate::random::Random;
use crate::{Failure, Workplace};

const WORKERS: u64 = 3;
/// Granted containers that run through all of it.
const WITNESSES: u64 = 4;
/// What may be said to a container that comes while mpsgated is away for longer than it is waited
/// for.
const EXCUSE: &str = "mpsgated is down or restarting";

/// What is not allowed to happen, counted.
#[derive(Debug, Default)]
struct Counts {
    mps_pids_changed: usize,
    grants_lost: usize,
    refusals: usize,
    excused: usize,
    other_failures: usize,
}

pub(crate) fn run(at: &Workplace, restarts: usize) -> Result<bool, Failure> {
    node::prepare(at, &at.products)?;
    let daemon = Daemon::start(&at.scratch.join("log/mpsgated.log"))?;
    let workers = Workers::start(
        at,
        if at.patience > 1 { 1 } else { WORKERS },
        Mix { greedy: 0, may_refuse: false },
    );
    let churn = &workers.churn;
    let witnesses =
        (0..WITNESSES).map(|number| churn.witness(number)).collect::<Result<Vec<_>, _>>()?;
    let before = Before::take(at)?;
    let mps = control_pids()?;
    let kept = grants_of_witnesses()?;
    let mut random = Random::new(at.seed, 2000);
    let mut counts = Counts::default();
    let mut kinds: BTreeMap<&str, u32> = BTreeMap::new();
    let mut says: Vec<String> = Vec::new();
    println!("1..1");

    let started = Instant::now();
    let first = churn.created();
    let mut upgraded = false;
    // Each kind as often, in an order of chance.
    let mut plan: Vec<&str> =
        ["SIGTERM", "SIGKILL", "upgrade"].into_iter().cycle().take(restarts).collect();
    random.shuffle(&mut plan);
    for (number, kind) in plan.into_iter().enumerate() {
        *kinds.entry(kind).or_default() += 1;
        let starts = daemon.starts();
        let created = churn.created();
        match kind {
            "upgrade" => {
                // The other build: same sources, other profile, other build id.
                upgraded = !upgraded;
                install(if upgraded { &at.crashing } else { &at.products }, "mpsgated")?;
                daemon.signal(Signal::SIGTERM)?;
            }
            "SIGTERM" => daemon.signal(Signal::SIGTERM)?,
            _ => daemon.signal(Signal::SIGKILL)?,
        }
        daemon.wait_started(starts + 1)?;
        counts.mps_pids_changed += usize::from(control_pids()? != mps);
        let now = grants_of_witnesses()?;
        counts.grants_lost += kept.iter().filter(|grant| !now.contains(grant)).count();
        node::wait_for("a container to be made", || Ok(churn.created() > created))?;
        if number % 10 == 9 || number + 1 == restarts {
            let checked = churn.paused(|| check::node(churn, &before, daemon.pid()));
            says.extend(checked.err().map(|error| error.to_string()));
        }
        for failure in churn.failures() {
            match crate::churn::code_of(&failure) {
                Some(_) if failure.contains(EXCUSE) => counts.excused += 1,
                Some(_) => counts.refusals += 1,
                None => counts.other_failures += 1,
            }
            says.push(failure);
        }
        says.extend(churn.broken());
        says.extend(daemon.odd_ends());
    }
    for witness in &witnesses {
        churn.dismiss(witness)?;
    }
    let containers = churn.created() - first;
    workers.stop()?;
    daemon.stop()?;

    let told = says.iter().filter(|said| !said.contains(EXCUSE)).count();
    let passed = told == 0 && counts.mps_pids_changed == 0 && counts.grants_lost == 0;
    let word = if passed { "ok" } else { "not ok" };
    println!("{word} 1 {restarts} restarts of mpsgated under churn lose nothing");
    println!(
        "# {restarts} restarts {kinds:?}, {containers} containers in {} s: MPS pids changed {}, grants lost {}, \
         refusals {} and {} that say it restarts, other failures {}",
        started.elapsed().as_secs(),
        counts.mps_pids_changed,
        counts.grants_lost,
        counts.refusals,
        counts.excused,
        counts.other_failures
    );
    for said in &says {
        println!("#   {said}");
    }
    Ok(passed)
}

/// Id, instance, card, memory and pid of each grant that stays.
fn grants_of_witnesses() -> Result<Vec<String>, Failure> {
    let grants = status()?.grants.into_iter().filter(|g| g.container_id.starts_with("witness"));
    Ok(grants
        .map(|g| {
            format!(
                "{} {} {} {} {} {}",
                g.container_id, g.instance, g.state, g.card, g.memory_mib, g.pid
            )
        })
        .collect())
}
