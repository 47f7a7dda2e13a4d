//! The daemon's state and every decision on it: cards, ledger, trust. Synchronous and behind one lock;
//! its only side effects are the ledger's file and the removal of exec records.
//!
//! ```text
//!            reserve                activate                 init and cgroup ended, poststop
//!   (none) ──────────► Reserved ──────────────► Active ────────────────────────► (none)
//!                         │ holder ended              ▲
//!                         ▼                           │ activate with the grant, if it still fits
//!                       (none) ───────────────────────┘
//! ```
//!
//! Operations change the ledger in memory; `write` brings its file up to date, once for as many as have
//! come together. What takes memory is answered only after that, and taken back where it fails. What
//! gives memory back counts at once: should the daemon restart before it is written, it finds the
//! entry's process gone and releases it again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use mpsgate_api::{Action, Activate, Reserve};
use mpsgate_config::Switch;
use mpsgate_kubernetes::Recorder;
use mpsgate_model::ledger::{Capacity, CgroupId, Entry, Ledger, LedgerError, ProcessId, State};
use mpsgate_model::ledger_file::LedgerFile;
use mpsgate_model::{Code, Refusal};
use mpsgate_model::{GpuUuid, Grant, GrantKey, Mib};

use crate::card::{Card, Trouble};
use crate::cgroup::{Overlap, is_empty_but_for};
use crate::device_plugin::Served;
use crate::enforce::nested;
use crate::handlers::Handlers;
use crate::judged::{Heard, Judged};
use crate::metrics::{Endpoint, Events};
use crate::schedule::Scheduling;
use crate::terminate::Kills;
use crate::tokens::Confirmed;
use crate::{exec_record, process};

/// The state.
#[derive(Debug)]
pub(crate) struct Node {
    ledger: Ledger,
    file: LedgerFile,
    /// Changes of the ledger, and how many of them are in the file.
    changes: u64,
    written: u64,
    /// The last write failed.
    failing: bool,
    /// Where the shim records what `exec` needs.
    records: PathBuf,
    /// All cards by index.
    pub(crate) cards: Vec<Card>,
    /// Cards that `mpsgate enable` handed over, there or not.
    pub(crate) handed_over: BTreeSet<GpuUuid>,
    /// Cards whose MPS the operator stopped, there or not.
    pub(crate) stopped: BTreeSet<GpuUuid>,
    /// NVML as last seen.
    pub(crate) driver: Driver,
    /// Whether a kubelet runs here.
    pub(crate) kubelet: bool,
    /// Whether mpsgated is about to end.
    pub(crate) ending: bool,
    /// `trust.local`.
    pub(crate) trust_local: Switch,
    /// What was done to containers and processes, oldest first; bounded.
    pub(crate) actions: VecDeque<Action>,
    /// Containers that were refused, or changed.
    pub(crate) judged: Judged,
    /// What was reported of containers, so that it is told and counted once.
    pub(crate) heard: Heard,
    /// Containers that were killed.
    pub(crate) kills: Kills,
    /// What else is counted, for the metrics.
    pub(crate) events: Events,
    /// Where these are served.
    pub(crate) endpoint: Endpoint,
    /// Grants that the driver holds their cgroups to, as last seen.
    pub(crate) held: BTreeSet<GrantKey>,
    /// Resources that are served to kubelet, by name.
    pub(crate) served: BTreeMap<String, Served>,
    /// Whether grants are spread over the cards, and not packed.
    pub(crate) spread: bool,
    /// Where events of Kubernetes go.
    pub(crate) recorder: Option<Recorder>,
    /// How its cards are shared.
    pub(crate) schedule: Scheduling,
    /// Where the engine's handlers lead; `None` before the first look, and where no kubelet is.
    pub(crate) handlers: Option<Handlers>,
}

/// NVML as last seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Driver {
    /// The cards are invented.
    pub(crate) simulated: bool,
    /// The driver's version.
    pub(crate) version: Option<String>,
    /// Why there are no cards, or none that can be trusted.
    pub(crate) trouble: Option<Trouble>,
}

/// What a reservation leads to.
#[derive(Debug)]
pub(crate) struct Reserved {
    /// For the shim.
    pub(crate) grant: Grant,
    /// A server for the container's uid must be started first.
    pub(crate) needs_server: bool,
}

/// What a process is asked: whether it lives. A parameter, so that tests need no processes.
pub(crate) type Alive<'a> = &'a dyn Fn(&ProcessId) -> bool;

impl Node {
    pub(crate) fn new(ledger: Ledger, file: LedgerFile, records: PathBuf) -> Self {
        Self {
            ledger,
            file,
            changes: 0,
            written: 0,
            failing: false,
            records,
            cards: Vec::new(),
            handed_over: BTreeSet::new(),
            stopped: BTreeSet::new(),
            driver: Driver::default(),
            kubelet: false,
            trust_local: Switch::Auto,
            actions: VecDeque::new(),
            judged: Judged::default(),
            heard: Heard::default(),
            kills: Kills::default(),
            events: Events::new(),
            endpoint: Endpoint::default(),
            held: BTreeSet::new(),
            served: BTreeMap::new(),
            ending: false,
            spread: false,
            recorder: None,
            schedule: Scheduling::default(),
            handlers: None,
        }
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn card(&self, uuid: &GpuUuid) -> Option<&Card> {
        self.cards.iter().find(|card| card.uuid == *uuid)
    }

    pub(crate) fn card_mut(&mut self, uuid: &GpuUuid) -> Option<&mut Card> {
        self.cards.iter_mut().find(|card| card.uuid == *uuid)
    }

    /// The card of a UUID or index as a person types it.
    pub(crate) fn find_card(&self, gpu: &str) -> Result<&Card, Refusal> {
        let found = self.cards.iter().find(|card| {
            card.uuid.as_str().eq_ignore_ascii_case(gpu) || card.index.to_string() == gpu
        });
        found.ok_or_else(|| match &self.driver.trouble {
            Some(trouble) => nvml_refusal(trouble),
            None => {
                let all: Vec<String> = self.cards.iter().map(Card::label).collect();
                let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
                Refusal::new(
                    Code::UnknownGpu,
                    format!("there is no GPU {gpu:?}; this node has: {all}"),
                    "name one of them by index or UUID; mpsgate status lists them",
                )
            }
        })
    }

    /// Holds memory for a container that `holder` is creating; `confirmed` is what its token says.
    pub(crate) fn reserve(
        &mut self,
        call: &Reserve,
        confirmed: Option<&Confirmed>,
        holder: ProcessId,
        majors: &BTreeMap<String, u32>,
        alive: Alive<'_>,
        now_ms: u64,
    ) -> Result<Reserved, Refusal> {
        let memory = self.believe(call, confirmed)?;
        if let Some(trouble) = &self.driver.trouble {
            return Err(nvml_refusal(trouble));
        }
        if let Some(again) = self.reserved_before(&call.key, holder) {
            return Ok(again);
        }
        self.end_previous_life(&call.key, alive)?;
        if let Some(refusal) = self.waiting_refusal() {
            return Err(refusal);
        }
        let asked = self.asked(call, confirmed, memory)?;
        let cards = self.place(call, confirmed, asked)?;
        let needs_server =
            self.under_mps() && !cards.iter().all(|card| card.has_server_for(call.uid));
        let capacities: Vec<Capacity> =
            cards.iter().map(|card| self.capacity(card, confirmed.is_some())).collect();
        let grant = self.grant(call, &cards, asked, majors);
        let reserved = self.ledger.reserve(grant.clone(), holder, &capacities, now_ms);
        reserved.map_err(|error| ledger_refusal(&error))?;
        if let Some(confirmed) = confirmed {
            self.ledger.set_handed(&call.key, confirmed.handed.clone());
        }
        self.changes += 1;
        Ok(Reserved { grant, needs_server })
    }

    /// The reservation of a shim that asks again, because the daemon before us ended before it answered.
    fn reserved_before(&self, key: &GrantKey, holder: ProcessId) -> Option<Reserved> {
        let entry = self.ledger.get(key)?;
        let same = matches!(entry.state, State::Reserved { holder: before } if before == holder);
        let card = self.card(&entry.grant.cards.first()?.uuid).filter(|_| same)?;
        let needs_server = entry.grant.uses_mps() && !card.has_server_for(entry.grant.uid);
        Some(Reserved { grant: entry.grant.clone(), needs_server })
    }

    /// The cgroup of an older life of the container whose init has ended and whose other processes
    /// have not: they may hold what was granted to it.
    pub(crate) fn remains(&self, key: &GrantKey, alive: Alive<'_>) -> Option<CgroupId> {
        let entry = self.ledger.of_container(key)?;
        match &entry.state {
            State::Active { init, cgroup: Some(cgroup) } if !alive(init) => {
                let others = nested(entry, self.ledger.entries());
                let empty = is_empty_but_for(cgroup, &others).unwrap_or(false);
                (!empty).then(|| cgroup.clone())
            }
            _ => None,
        }
    }

    /// Whether a container of this pod has a grant that is just ending.
    pub(crate) fn pod_is_ending(&self, uid: &str, alive: Alive<'_>) -> bool {
        self.ledger.of_pod(uid).any(|entry| match &entry.state {
            State::Reserved { holder } => !alive(holder),
            State::Active { init, .. } => !alive(init),
        })
    }

    /// Turns a reservation into a grant, or takes it anew where it has expired and still fits.
    pub(crate) fn activate(
        &mut self,
        call: &Activate,
        init: ProcessId,
        alive: Alive<'_>,
        now_ms: u64,
    ) -> Result<Entry, Refusal> {
        let expired = self.ledger.get(&call.key).is_none();
        if expired {
            self.end_previous_life(&call.key, alive)?;
        }
        self.refuse_shared_cgroup(call)?;
        if expired {
            let grant = call.grant.as_deref().ok_or_else(|| {
                no_reservation("its reservation has expired and the hook did not bring the grant")
            })?;
            let capacities = self.still_fits(call, grant)?;
            self.ledger.reserve(grant.clone(), init, &capacities, now_ms).map_err(|error| {
                no_reservation(&format!("its reservation has expired, and {error}"))
            })?;
        }
        let entry = self
            .ledger
            .activate(&call.key, init, call.cgroup.clone())
            .map_err(|_| no_reservation("another process of this container has the grant already"))?
            .clone();
        self.changes += 1;
        Ok(entry)
    }

    /// A process is counted for one grant, and a container is ended by its cgroup: two grants cannot have a
    /// process in common.
    fn refuse_shared_cgroup(&self, call: &Activate) -> Result<(), Refusal> {
        let Some(own) = &call.cgroup else { return Ok(()) };
        let found = self.ledger.entries().iter().find_map(|entry| match &entry.state {
            State::Active { cgroup: Some(cgroup), .. } if entry.grant.key != call.key => {
                let overlap = crate::cgroup::overlap(own, cgroup)?;
                // A directory that was made anew is not the one of that grant.
                crate::cgroup::is_same(cgroup).unwrap_or(true).then_some((entry, cgroup, overlap))
            }
            _ => None,
        });
        let Some((entry, cgroup, overlap)) = found else { return Ok(()) };
        let (container, own, other) = (&entry.grant.key.container_id, &own.path, &cgroup.path);
        let what = match overlap {
            Overlap::Is => format!("its cgroup {own} is that of container {container}"),
            Overlap::LiesIn => format!("its cgroup {own} lies in {other} of container {container}"),
            Overlap::Holds => format!("its cgroup {own} holds {other} of container {container}"),
        };
        Err(Refusal::new(
            Code::Cgroup,
            format!("{what}, which has a grant too, and none of the two could be held to its own"),
            "give it a cgroup beside the other's (docker run --cgroup-parent, linux.cgroupsPath)",
        ))
    }

    /// What the card's MPS should allow a client without a limit of its own: its largest grant, or all
    /// that there is to give where nobody has one.
    pub(crate) fn wanted_cap(&self, uuid: &GpuUuid) -> Mib {
        let largest = self.ledger.on_card(uuid).map(|entry| entry.grant.memory).max();
        largest.unwrap_or_else(|| self.card(uuid).map(|card| card.memory).unwrap_or_default())
    }

    /// Marks the grants of a card whose MPS has died; those that were not marked before.
    pub(crate) fn mark_broken(&mut self, card: &GpuUuid, now_ms: u64) -> Vec<GrantKey> {
        let marked = self.ledger.mark_broken(card, now_ms);
        self.changes += u64::from(!marked.is_empty());
        marked
    }

    /// Ends an entry, whatever its state. `None` where it is gone already.
    pub(crate) fn release(&mut self, key: &GrantKey) -> Option<Entry> {
        let entry = self.ledger.release(key)?;
        self.forget(&entry);
        Some(entry)
    }

    /// Ends a reservation whose creator has ended.
    pub(crate) fn expire(&mut self, key: &GrantKey) -> Option<Entry> {
        let entry = self.ledger.expire(key)?;
        self.forget(&entry);
        exec_record::remove_leftovers(&self.records);
        Some(entry)
    }

    /// After a start: ends what ended while nobody looked, and removes records of nobody.
    pub(crate) fn settle(&mut self, alive: Alive<'_>) -> Vec<Entry> {
        let gone = |entry: &&Entry| match &entry.state {
            State::Reserved { holder } => !alive(holder),
            // The rest of the container may outlive its init: the watch sees to that.
            State::Active { init, cgroup: None } => !alive(init),
            State::Active { init, cgroup: Some(cgroup) } => {
                let others = nested(entry, self.ledger.entries());
                !alive(init) && is_empty_but_for(cgroup, &others).unwrap_or(false)
            }
        };
        let keys: Vec<GrantKey> =
            self.ledger.entries().iter().filter(gone).map(|e| e.grant.key.clone()).collect();
        let ended = keys.iter().filter_map(|key| self.release(key)).collect();
        exec_record::remove_strays(&self.records, &self.ledger);
        ended
    }

    fn forget(&mut self, entry: &Entry) {
        exec_record::remove(&self.records, &entry.grant.key);
        self.held.remove(&entry.grant.key);
        self.changes += 1;
    }

    /// Changes of the ledger so far, for [`Self::is_written`].
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether the first `changes` changes are in the file.
    pub(crate) fn is_written(&self, changes: u64) -> bool {
        self.written >= changes
    }

    /// Whether the last write failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing
    }

    /// Brings the file up to date.
    ///
    /// # Errors
    /// A refusal for what asked for memory. The file is then as it was.
    pub(crate) fn write(&mut self) -> Result<(), Refusal> {
        if self.is_written(self.changes) {
            return Ok(());
        }
        let stored = self.file.store(&self.ledger).map_err(|error| {
            let why = format!("the grant could not be recorded: {}", crate::error::chain(&error));
            Refusal::new(Code::Ledger, why, error.hint())
        });
        match &stored {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    log::info!("ledger written again");
                }
                self.written = self.changes;
            }
            // One line for each episode.
            Err(refusal) => {
                if !std::mem::replace(&mut self.failing, true) {
                    let (reason, hint) = (refusal.sentence.as_str(), refusal.hint.as_str());
                    log::error!(reason, hint; "ledger not written");
                }
            }
        }
        stored
    }

    /// Releases an older life of the container; refuses where it still lives.
    fn end_previous_life(&mut self, key: &GrantKey, alive: Alive<'_>) -> Result<(), Refusal> {
        let Some(old) = self.ledger.of_container(key) else { return Ok(()) };
        let old_key = old.grant.key.clone();
        let (process, what) = match &old.state {
            State::Reserved { holder } => (*holder, "a reservation"),
            State::Active { init, .. } => (*init, "a grant"),
        };
        if alive(&process) {
            return Err(Refusal::new(
                Code::Ledger,
                format!(
                    "a container of this name below {} has {what} of {} already, and its {} lives",
                    key.runtime_root,
                    old.grant.memory,
                    process::describe(process.pid),
                ),
                "end that container first, or choose another name",
            ));
        }
        if let Some(cgroup) = self.remains(key, alive) {
            let mut pids = crate::cgroup::processes(&cgroup).unwrap_or_default();
            // What our pid namespace does not see.
            pids.remove(&0);
            let named = pids.first().map(|pid| process::describe(*pid));
            let pids: Vec<String> = pids.iter().take(8).map(u32::to_string).collect();
            let hint = match pids.as_slice() {
                [] => format!("find them on the host: cat {}/cgroup.procs", cgroup.path),
                pids => format!("end them: kill -KILL {}", pids.join(" ")),
            };
            return Err(Refusal::new(
                Code::Ledger,
                format!(
                    "an earlier life of this container has processes left in {}, which may hold its \
                     memory: {}",
                    cgroup.path,
                    named.as_deref().unwrap_or("mpsgated cannot see them"),
                ),
                hint,
            ));
        }
        if let Some(ended) = self.release(&old_key) {
            log::info!(
                container = key.container_id.as_str(), memory_mib = ended.grant.memory.0;
                "grant of an earlier life released"
            );
        }
        Ok(())
    }
}

pub(crate) fn nvml_refusal(trouble: &Trouble) -> Refusal {
    Refusal::new(
        Code::GpuUnhealthy,
        format!("the NVIDIA driver does not answer: {}", trouble.why),
        trouble.hint.clone(),
    )
}

fn no_reservation(why: &str) -> Refusal {
    Refusal::new(
        Code::NoReservation,
        why,
        "create the container again; if it happens again, look at: journalctl -u mpsgated -n 50",
    )
}

fn ledger_refusal(error: &LedgerError) -> Refusal {
    let code = match error {
        LedgerError::NoMemory { .. } | LedgerError::NoClient { .. } => Code::NoCapacity,
        _ => Code::Ledger,
    };
    Refusal::new(code, error.to_string(), "mpsgate status")
}

mod held;
mod place;
#[cfg(test)]
pub(crate) mod tests;
mod trust;
