//! Thousands of lives, while mpsgated, control daemons and the engine are killed at random; then
//! nothing may be left, and mpsgated may not have grown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mpsgate_api::CardState;
use mpsgate_config::paths;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::check::{self, Before, control_pids};
use crate::churn::{Churn, Mix, Workers};
use crate::daemon::{Daemon, status};
use crate::docker::{Docker, docker};
use crate::node::{self, wait_for};
use crate::random::Random;
use crate::{Failure, Workplace};

const WORKERS: u64 = 3;
/// Of a hundred lives: end by the memory cgroup's hand.
const GREEDY: u64 = 8;
/// After this part of the cycles mpsgated is not killed any more: it is one process that is
/// measured.
const LAST_KILL: f64 = 0.5;
/// From the last kill to the first measurement, as a part of all cycles.
const WARM_UP: f64 = 0.05;
/// How much larger mpsgated may be at the end than after the warm-up.
const GROWTH: f64 = 1.25;
/// How `docker run` asks for memory.
const DOCKER_LIFE: &[&str] =
    &["--network", "none", "--ipc", "host", "--env", "MPSGATE_GPU_MEM=1Gi"];

/// What was killed, and how often.
#[derive(Debug, Default)]
struct Kills {
    by_name: BTreeMap<&'static str, u32>,
}

/// A process's size.
#[derive(Debug, Clone, Copy)]
struct Size {
    resident_kib: u64,
    descriptors: usize,
}

pub(crate) fn run(at: &Workplace, cycles: u64) -> Result<bool, Failure> {
    node::prepare(at, &at.products)?;
    let daemon = Daemon::start(&at.scratch.join("log/mpsgated.log"))?;
    let mut before = Before::take(at)?;
    let mut engine = Docker::start(at)?;
    let workers = Workers::start(at, WORKERS, Mix { greedy: GREEDY, may_refuse: true });
    let through_engine = EngineLives::start(at);
    let churn = &workers.churn;
    let mut random = Random::new(at.seed, 3000);
    let mut kills = Kills::default();
    let started = Instant::now();
    let mut first = None;
    let (mut said, mut forgotten) = (0, 0);
    println!("1..1");

    // Refused ones do not count: there are many while a card has lost its control daemon.
    let done = || churn.created() + through_engine.lives();
    while done() < cycles {
        std::thread::sleep(Duration::from_millis(1000 + random.below(3000)));
        #[allow(clippy::cast_precision_loss, reason = "a part of some thousands")]
        let part = done() as f64 / cycles as f64;
        match random.below(100) {
            0..40 if part < LAST_KILL => {
                let starts = daemon.starts();
                let signal = if random.percent(70) { Signal::SIGKILL } else { Signal::SIGTERM };
                daemon.signal(signal)?;
                daemon.wait_started(starts + 1)?;
                kills.count("mpsgated");
            }
            // Rarely: the next one is started after a pause that grows.
            40..45 => {
                let pids: Vec<u32> = control_pids()?.into_values().collect();
                let at = usize::try_from(random.below(pids.len() as u64))?;
                if let Some(pid) = pids.get(at) {
                    let _ = kill(Pid::from_raw((*pid).try_into()?), Signal::SIGKILL);
                    kills.count("control daemon");
                }
            }
            45..55 => {
                engine.kill(false)?;
                forgotten += engine.end_forgotten()?;
                kills.count("dockerd");
            }
            55..65 => {
                engine.kill(true)?;
                forgotten += engine.end_forgotten()?;
                kills.count("containerd");
            }
            _ => {}
        }
        if first.is_none() && part > LAST_KILL + WARM_UP {
            first = Some(churn.paused(|| measure(&daemon))?);
        }
        // Once in a while the ledger is compared with what lives.
        if done() / 500 > said {
            said = done() / 500;
            forgotten += engine.end_forgotten()?;
            churn.paused(|| check::runcs_grants(churn))?;
            println!(
                "# {} containers in {} s, {kills:?}, {}",
                done(),
                started.elapsed().as_secs(),
                sizes(&daemon)?
            );
        }
        let broken = churn.broken();
        if !broken.is_empty() {
            return Err(broken.join("; ").into());
        }
    }
    let engine_lives = through_engine.stop()?;
    let churn = workers.stop()?;
    engine.remove_all()?;
    forgotten += engine.end_forgotten()?;
    wait_for("the last grant to end", || Ok(status()?.grants.is_empty()))
        .map_err(|error| format!("{error}: {}", check::who_holds()))?;
    // Cards whose control daemon was killed are whole again once nobody holds them.
    wait_for("every card to be ready", || {
        Ok(status()?.cards.iter().all(|card| !card.managed || card.state == CardState::Ready))
    })
    .map_err(|error| format!("{error}: {}", check::who_holds()))?;
    before.renew_control()?;
    engine.stop()?;
    let last = measure(&daemon)?;
    let wrong = evaluate(at, &churn, &before, &daemon, first, last)?;

    let word = if wrong.is_empty() { "ok" } else { "not ok" };
    println!(
        "{word} 1 {} containers with kills at random leave nothing",
        churn.created() + engine_lives
    );
    report(&churn, engine_lives, &kills, started.elapsed(), &daemon, first, last);
    println!(
        "# containers that Docker forgot when it was killed, ended by this program: {forgotten}"
    );
    for what in &wrong {
        println!("#   {what}");
    }
    daemon.stop()?;
    Ok(wrong.is_empty())
}

impl Kills {
    fn count(&mut self, name: &'static str) {
        *self.by_name.entry(name).or_default() += 1;
    }
}

/// Lives through the engine: run, exec, kill and rm. The engine may be away at any moment; what
/// counts is that nothing is left in the end.
struct EngineLives {
    stop: Arc<AtomicBool>,
    lives: Arc<AtomicU64>,
    worker: JoinHandle<()>,
}

impl EngineLives {
    fn start(at: &Workplace) -> Self {
        let (stop, lives) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, lived, at) = (Arc::clone(&stop), Arc::clone(&lives), at.clone());
        let worker = std::thread::spawn(move || {
            let mut random = Random::new(at.seed, 4000);
            let mut number = 0_u64;
            while !stopped.load(Ordering::SeqCst) {
                number += 1;
                if lifecycle(&at, &mut random, &format!("e{number}")).is_ok() {
                    lived.fetch_add(1, Ordering::SeqCst);
                } else {
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
        });
        Self { stop, lives, worker }
    }

    fn lives(&self) -> u64 {
        self.lives.load(Ordering::SeqCst)
    }

    fn stop(self) -> Result<u64, Failure> {
        self.stop.store(true, Ordering::SeqCst);
        self.worker.join().map_err(|_| "the engine's worker panicked")?;
        Ok(self.lives.load(Ordering::SeqCst))
    }
}

fn lifecycle(at: &Workplace, random: &mut Random, name: &str) -> Result<(), Failure> {
    // What an engine that was away did not remove.
    for left in docker(at, &["ps", "-aq"])?.split_whitespace() {
        docker(at, &["rm", "-f", left])?;
    }
    let mut create = vec!["run", "-d", "--name", name];
    create.extend(DOCKER_LIFE);
    create.extend(["bb", "sleep", "3600"]);
    let lived =
        docker(at, &create).and_then(|_| docker(at, &["exec", name, "true"])).and_then(|_| {
            if random.percent(50) { docker(at, &["kill", name]) } else { Ok(String::new()) }
        });
    let removed = docker(at, &["rm", "-f", name]);
    lived.and(removed).map(drop)
}

fn measure(daemon: &Daemon) -> Result<Size, Failure> {
    let pid = daemon.pid();
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let resident_kib = line.split_whitespace().next().unwrap_or_default().parse()?;
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    Ok(Size { resident_kib, descriptors })
}

fn sizes(daemon: &Daemon) -> Result<String, Failure> {
    let Size { resident_kib, descriptors } = measure(daemon)?;
    Ok(format!("mpsgated {resident_kib} KiB, {descriptors} descriptors"))
}

/// All that is wrong in the end.
fn evaluate(
    at: &Workplace,
    churn: &Churn,
    before: &Before,
    daemon: &Daemon,
    first: Option<Size>,
    last: Size,
) -> Result<Vec<String>, Failure> {
    let mut wrong = churn.broken();
    wrong.extend(
        churn.failures().into_iter().filter(|failure| !failure.contains("[E_GPU_UNHEALTHY]")),
    );
    wrong.extend(daemon.odd_ends());
    wrong.extend(check::node(churn, before, daemon.pid()).err().map(|error| error.to_string()));
    wrong.extend(cgroups_left(at, churn));
    // Its own start with as many cards and no grant has this many.
    if let Some(first) = first {
        #[allow(clippy::cast_precision_loss, reason = "some thousand KiB")]
        let growth = last.resident_kib as f64 / first.resident_kib as f64;
        if growth > GROWTH {
            wrong.push(format!("mpsgated grew {growth:.2} times, {GROWTH} are allowed"));
        }
    } else {
        wrong.push("too few cycles to measure mpsgated twice".to_owned());
    }
    let idle = idle_descriptors(daemon)?;
    if idle.1 > idle.0 {
        wrong.push(format!("mpsgated holds {} descriptors, {} as a new process", idle.1, idle.0));
    }
    let records = std::fs::read_dir(paths::GRANTS_DIR)?.count();
    if records != 0 {
        wrong.push(format!("{records} records left in {}", paths::GRANTS_DIR));
    }
    Ok(wrong)
}

/// Cgroups of containers that runc made and ended. Reported, not evaluated, because nobody of ours
/// makes or removes them, are the empty ones of creations that did not come to their end: a Docker
/// that is killed while runc makes a container (names of 64 digits; with mpsgate and without), and
/// a container that runc itself gives up.
fn cgroups_left(at: &Workplace, churn: &Churn) -> Vec<String> {
    let names = check::cgroups(at);
    let (engines, ours): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.len() == 64);
    let (unmade, left): (Vec<_>, Vec<_>) = ours.into_iter().partition(|id| churn.is_unmade(id));
    println!(
        "# empty cgroups of containers that Docker was killed over: {}, that runc gave up: {} {unmade:?}",
        engines.len(),
        unmade.len()
    );
    left.into_iter().map(|name| format!("cgroup left: {name}")).collect()
}

/// Descriptors of a mpsgated that has just been started on the same node, and of this one.
fn idle_descriptors(daemon: &Daemon) -> Result<(usize, usize), Failure> {
    let mut old = measure(daemon)?.descriptors;
    // One of this moment's answers, or a look at NVML, may be under way.
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(50));
        old = old.min(measure(daemon)?.descriptors);
    }
    let starts = daemon.starts();
    daemon.signal(Signal::SIGTERM)?;
    daemon.wait_started(starts + 1)?;
    let mut new = 0;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(50));
        new = new.max(measure(daemon)?.descriptors);
    }
    Ok((new, old))
}

fn report(
    churn: &Churn,
    engine_lives: u64,
    kills: &Kills,
    took: Duration,
    daemon: &Daemon,
    first: Option<Size>,
    last: Size,
) {
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    println!(
        "# {} lives through runc ({} created, {} exec, {} killed, {} out of memory), {engine_lives} through Docker, in {} min",
        count(&churn.counts.lives),
        count(&churn.counts.created),
        count(&churn.counts.execs),
        count(&churn.counts.kills),
        count(&churn.counts.ooms),
        took.as_secs() / 60
    );
    println!("# killed: {:?}; mpsgated was started {} times", kills.by_name, daemon.starts());
    println!("# refusals: {:?}", churn.refusals());
    if let Some(first) = first {
        println!(
            "# mpsgated after its warm-up {} KiB, {} descriptors; at the end {} KiB, {}",
            first.resident_kib, first.descriptors, last.resident_kib, last.descriptors
        );
    }
}
