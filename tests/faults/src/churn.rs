//! Containers that come and go: workers, each with one container at a time, and a few that stay.
//!
//! Every step is taken under a gate, so that [`Churn::paused`] sees a node on which nothing is half
//! done by us. What should run is kept in a model; what went wrong is kept with its time, and
//! whoever breaks something says how much of it was expected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::container::{Called, Container, Kind, is_alive};
use crate::node::{MANAGED, wait_for};
use crate::random::Random;
use crate::{Failure, Workplace};

/// A create that fails for a reason that we made is tried again this often.
const TRIES: u32 = 6;

/// What runs now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) mib: u64,
    pub(crate) pid: u32,
}

/// How many of each were done.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) created: AtomicU64,
    pub(crate) execs: AtomicU64,
    pub(crate) kills: AtomicU64,
    pub(crate) ooms: AtomicU64,
    pub(crate) lives: AtomicU64,
}

/// How the lives are mixed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mix {
    /// Of a hundred: allocate until they are killed for it.
    pub(crate) greedy: u64,
    /// A card may be fenced because its control daemon was killed: then a refusal is no failure.
    pub(crate) may_refuse: bool,
}

/// What is said of calls that took too long: by us, by crun, by runc.
const SLOW: [&str; 3] =
    ["[E_DAEMON_SILENT]", "timeout expired for", "hook ran past specified timeout"];

/// What workers share.
#[derive(Debug)]
pub(crate) struct Churn {
    pub(crate) at: Workplace,
    pub(crate) counts: Counts,
    mix: Mix,
    gate: RwLock<()>,
    stop: AtomicBool,
    live: Mutex<BTreeMap<String, Live>>,
    failures: Mutex<Vec<String>>,
    refusals: Mutex<BTreeMap<String, u64>>,
    broken: Mutex<Vec<String>>,
    unmade: Mutex<BTreeSet<String>>,
}

/// Workers at work.
pub(crate) struct Workers {
    pub(crate) churn: Arc<Churn>,
    threads: Vec<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    pub(crate) fn start(at: &Workplace, count: u64, mix: Mix) -> Self {
        let churn = Arc::new(Churn {
            at: at.clone(),
            counts: Counts::default(),
            mix,
            gate: RwLock::default(),
            stop: AtomicBool::default(),
            live: Mutex::default(),
            failures: Mutex::default(),
            refusals: Mutex::default(),
            broken: Mutex::default(),
            unmade: Mutex::default(),
        });
        let worker = |number: u64| {
            let churn = Arc::clone(&churn);
            std::thread::spawn(move || churn.work(number))
        };
        let threads = (0..count).map(worker).collect();
        Self { churn, threads }
    }

    /// Lets each end the instance that it is at.
    pub(crate) fn stop(self) -> Result<Arc<Churn>, Failure> {
        self.churn.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().map_err(|_| "a worker panicked")?;
        }
        Ok(self.churn)
    }
}

impl Churn {
    /// Runs `work` while no worker does anything.
    pub(crate) fn paused<T>(&self, work: impl FnOnce() -> T) -> T {
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        work()
    }

    pub(crate) fn live(&self) -> BTreeMap<String, Live> {
        lock(&self.live).clone()
    }

    /// What failed since it was asked last.
    pub(crate) fn failures(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.failures))
    }

    /// What no crash explains: each is a bug of the product or of this program.
    pub(crate) fn broken(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.broken))
    }

    /// Whether the runtime gave up the creation of a container, as it should.
    pub(crate) fn is_unmade(&self, id: &str) -> bool {
        lock(&self.unmade).contains(id)
    }

    /// Refusals by code.
    pub(crate) fn refusals(&self) -> BTreeMap<String, u64> {
        lock(&self.refusals).clone()
    }

    pub(crate) fn created(&self) -> u64 {
        self.counts.created.load(Ordering::SeqCst)
    }

    /// A container that stays, made now.
    pub(crate) fn witness(&self, number: u64) -> Result<Container, Failure> {
        self.witness_on(number % MANAGED, number)
    }

    /// The same on a card of one's choice.
    pub(crate) fn witness_on(&self, card: u64, number: u64) -> Result<Container, Failure> {
        let container =
            Container::new(&self.at, format!("witness{number}"), Kind::Granted, 1024, card)?;
        for called in [container.create()?, container.start()?] {
            if !called.ok {
                return Err(called.text.into());
            }
        }
        self.alive(&container)?;
        Ok(container)
    }

    /// A container that stayed has so much now: the ledger, and what `exec` is told.
    pub(crate) fn has(&self, container: &Container, mib: u64) -> Result<(), Failure> {
        if let Some(live) = lock(&self.live).get_mut(&container.id) {
            live.mib = mib;
        }
        let records = std::fs::read_dir(mpsgate_config::paths::GRANTS_DIR)?;
        let limit = format!("0={mib}M");
        for record in records.flatten() {
            let text = std::fs::read_to_string(record.path()).unwrap_or_default();
            if text.contains(&format!("\"{}\"", container.id)) {
                return if text.contains(&limit) {
                    Ok(())
                } else {
                    Err(format!("{}'s exec record is not for {limit}", container.id).into())
                };
            }
        }
        Err(format!("{} has no exec record", container.id).into())
    }

    /// Ends a container that stayed.
    pub(crate) fn dismiss(&self, container: &Container) -> Result<(), Failure> {
        lock(&self.live).remove(&container.id);
        let called = container.delete()?;
        container.forget();
        if called.ok { Ok(()) } else { Err(called.text.into()) }
    }

    fn alive(&self, container: &Container) -> Result<(), Failure> {
        let live = Live { mib: container.mib, pid: container.pid()? };
        lock(&self.live).insert(container.id.clone(), live);
        Ok(())
    }

    fn work(&self, worker: u64) {
        let mut random = Random::new(self.at.seed, worker);
        let mut number = 0;
        while !self.stop.load(Ordering::SeqCst) {
            number += 1;
            let id = format!("w{worker}-{number}");
            if let Err(error) = self.lifecycle(&mut random, id) {
                lock(&self.broken).push(error.to_string());
                // Whatever it is: not thousands of them.
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    }

    fn kind(&self, random: &mut Random) -> Kind {
        if random.percent(self.mix.greedy) {
            return Kind::Greedy;
        }
        match random.below(100) {
            0..10 => Kind::Ordinary,
            10..15 => Kind::NoRoot,
            15..19 => Kind::NoProgram,
            19..23 => Kind::TooLarge,
            23..31 => Kind::Short,
            _ => Kind::Granted,
        }
    }

    fn lifecycle(&self, random: &mut Random, id: String) -> Result<(), Failure> {
        let kind = self.kind(random);
        let (mib, card) = (256 * (1 + random.below(8)), random.below(MANAGED));
        let container = Container::new(&self.at, id, kind, mib, card)?;
        let created = self.step(|| self.create(&container, random))?;
        if created {
            self.run(&container, random)?;
            self.step(|| self.delete(&container))?;
        } else {
            lock(&self.unmade).insert(container.id.clone());
        }
        self.counts.lives.fetch_add(1, Ordering::SeqCst);
        container.forget();
        Ok(())
    }

    fn step<T>(&self, work: impl FnOnce() -> T) -> T {
        let _open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        work()
    }

    /// Creates until it works; `false` for what must not work. Where the shim was killed the same
    /// bundle is taken again, as it was left or written anew.
    fn create(&self, container: &Container, random: &mut Random) -> Result<bool, Failure> {
        for _ in 0..TRIES {
            let before = container.text()?;
            let called = container.create()?;
            if called.ok {
                if matches!(container.kind, Kind::NoRoot | Kind::NoProgram | Kind::TooLarge) {
                    return Err(
                        format!("{} was created: {:?}", container.id, container.kind).into()
                    );
                }
                self.counts.created.fetch_add(1, Ordering::SeqCst);
                self.alive(container)?;
                container.evaluate(&before)?;
                let left = container.leftovers()?;
                return if left.is_empty() { Ok(true) } else { Err(left.join(" ").into()) };
            }
            container.evaluate(&before)?;
            self.count_refusal(&called);
            if is_due(container.kind, &called) || self.is_excused(&called) {
                return Ok(false);
            }
            self.failed(container, &called);
            // What an engine does after a create that failed.
            let deleted = container.delete()?;
            if !deleted.ok {
                self.failed(container, &deleted);
            }
            if random.percent(50) {
                container.restore()?;
            }
        }
        Err(format!("{} could not be created in {TRIES} tries", container.id).into())
    }

    fn run(&self, container: &Container, random: &mut Random) -> Result<(), Failure> {
        // Now and then a container is deleted before it was ever started.
        if container.kind == Kind::Granted && random.percent(5) {
            return Ok(());
        }
        self.call(container, |container| {
            // From here on it may end at any moment.
            if matches!(container.kind, Kind::Short | Kind::Greedy) {
                lock(&self.live).remove(&container.id);
            }
            container.start()
        })?;
        if matches!(container.kind, Kind::Short | Kind::Greedy) {
            let pid = container.pid()?;
            wait_for("a container to end by itself", || {
                Ok(!is_alive(&self.at, &container.id, pid))
            })?;
            if container.kind == Kind::Greedy {
                self.counts.ooms.fetch_add(1, Ordering::SeqCst);
            }
            return Ok(());
        }
        if random.percent(40) {
            self.call(container, Container::exec)?;
            self.counts.execs.fetch_add(1, Ordering::SeqCst);
        }
        if random.percent(30) {
            self.call(container, Container::exec_document)?;
            self.counts.execs.fetch_add(1, Ordering::SeqCst);
            let left = container.leftovers()?;
            // The one that was killed could not; the next one beside it has to.
            if !left.is_empty() {
                self.call(container, Container::exec_document)?;
                let left = container.leftovers()?;
                if !left.is_empty() {
                    return Err(left.join(" ").into());
                }
            }
        }
        if random.percent(60) {
            self.call(container, |container| {
                lock(&self.live).remove(&container.id);
                container.kill()
            })?;
            self.counts.kills.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    fn delete(&self, container: &Container) -> Result<(), Failure> {
        lock(&self.live).remove(&container.id);
        for _ in 0..TRIES {
            let called = container.delete()?;
            if called.ok {
                return Ok(());
            }
            self.failed(container, &called);
        }
        Err(format!("{} could not be deleted", container.id).into())
    }

    /// A call that has to work; it is made again where it failed.
    fn call(
        &self,
        container: &Container,
        call: impl Fn(&Container) -> Result<Called, Failure>,
    ) -> Result<(), Failure> {
        for _ in 0..TRIES {
            let called = self.step(|| call(container))?;
            if called.ok {
                return Ok(());
            }
            self.failed(container, &called);
        }
        Err(format!("a call for {} failed {TRIES} times", container.id).into())
    }

    /// Writes a failure down. An emulated machine is slower than the 2 and 5 s that shim and hook
    /// wait for mpsgated, and the 10 s that a runtime gives the hook: there the refusal is told,
    /// and only the next try is evaluated.
    fn failed(&self, container: &Container, called: &Called) {
        if self.at.patience > 1 && SLOW.iter().any(|what| called.text.contains(what)) {
            println!("# too slow for {}: {}", container.id, called.text);
            return;
        }
        lock(&self.failures)
            .push(format!("{} ({:?}): {}", container.id, container.kind, called.text));
    }

    fn count_refusal(&self, called: &Called) {
        if let Some(code) = code_of(&called.text) {
            *lock(&self.refusals).entry(code.to_owned()).or_default() += 1;
        }
    }

    /// Refusals that say what we have done to the node.
    fn is_excused(&self, called: &Called) -> bool {
        self.mix.may_refuse
            && code_of(&called.text)
                .is_some_and(|code| matches!(code, "E_GPU_UNHEALTHY" | "E_DAEMON_AWAY"))
    }
}

/// A failure that the container itself asked for.
fn is_due(kind: Kind, called: &Called) -> bool {
    match kind {
        Kind::TooLarge => {
            called.text.contains("[E_NO_CAPACITY]") || called.text.contains("[E_TOO_LARGE]")
        }
        Kind::NoRoot => called.text.contains("no/such/root"),
        Kind::NoProgram => called.text.contains("/no/such/program"),
        _ => false,
    }
}

/// The code of a refusal: `… [E_NO_CAPACITY] …`.
pub(crate) fn code_of(text: &str) -> Option<&str> {
    let from = text.find("[E_")? + 1;
    text.get(from..)?.split(']').next()
}
