//! Reservations and grants: how they begin, and what ends them.

use mpsgate_api::{Activate, Reserve};
use mpsgate_model::ledger::{Capacity, CgroupId, Entry, LedgerError, ProcessId, State};
use mpsgate_model::{Code, GpuUuid, Grant, GrantKey, Refusal};

use super::Node;
use super::asker::Asker;
use super::cgroups::{Overlap, overlap};
use super::node_status::BROKEN;
use super::trust::Confirmed;
use crate::{Backend, Effect, Machine, Why};

/// What a reservation leads to.
#[derive(Debug)]
pub struct Reserved {
    /// For the shim.
    pub grant: Grant,
    /// A server for the container's uid must be started first.
    pub needs_server: bool,
}

impl Node {
    /// Holds memory for a container that `holder` is creating; `confirmed` is what its token says.
    pub fn reserve(
        &mut self,
        call: &Reserve,
        confirmed: Option<&Confirmed>,
        holder: ProcessId,
        machine: &dyn Machine,
        now_ms: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<Reserved, Refusal> {
        let memory = self.believe(call, confirmed)?;
        self.driver_answers()?;
        if let Some(again) = self.reserved_before(&call.key, holder) {
            return Ok(again);
        }
        self.end_previous_instance(&call.key, machine, effects)?;
        if let Some(refusal) = self.waiting_refusal() {
            return Err(refusal);
        }
        let asker = Asker::of(confirmed.map(|confirmed| &confirmed.handed));
        if let Some(key) = asker.share() {
            self.may_take(key)?;
        }
        let layout = self.layout(call, confirmed, memory)?;
        let cards = self.place(call, confirmed, layout)?;
        let needs_server = self.backend().needs_server(&cards, call.uid);
        let capacities: Vec<Capacity> =
            cards.iter().map(|card| self.capacity(card, asker)).collect();
        let grant = self.grant(call, confirmed, &cards, layout, machine);
        let reserved = self.ledger.reserve(grant.clone(), holder, &capacities, now_ms);
        reserved.map_err(|error| ledger_refusal(&error))?;
        if let Some(confirmed) = confirmed {
            self.ledger.set_handed(&call.key, confirmed.handed.clone());
        }
        self.changes += 1;
        Ok(Reserved { grant, needs_server })
    }

    /// The reservation of a shim that asks again, because the daemon before us ended before it
    /// answered.
    fn reserved_before(&self, key: &GrantKey, holder: ProcessId) -> Option<Reserved> {
        let entry = self.ledger.get(key)?;
        let same = matches!(entry.state, State::Reserved { holder: before } if before == holder);
        let card = self.card(&entry.grant.cards.first()?.uuid).filter(|_| same)?;
        let needs_server = entry.grant.uses_mps() && !card.has_server_for(entry.grant.uid);
        Some(Reserved { grant: entry.grant.clone(), needs_server })
    }

    /// The cgroup of a previous instance of the container whose init has ended and whose other
    /// processes have not: they may hold what was granted to it.
    pub fn remains(&self, key: &GrantKey, machine: &dyn Machine) -> Option<CgroupId> {
        let entry = self.ledger.of_container(key)?;
        match &entry.state {
            State::Active { init, cgroup: Some(cgroup) } if !machine.is_alive(init) => {
                let empty = machine.is_empty_but_for(cgroup, &self.nested(entry));
                (!empty).then(|| cgroup.clone())
            }
            _ => None,
        }
    }

    /// Whether what stands in the way of this name may be over in a moment. An engine has seen a
    /// container's end before it creates it again; who starts a process again has seen its last
    /// output, and the process may be on its way to its end.
    pub fn is_ending(&self, key: &GrantKey, machine: &dyn Machine) -> bool {
        let lives = |entry: &Entry| match &entry.state {
            State::Reserved { holder } => machine.is_alive(holder),
            State::Active { init, .. } => machine.is_alive(init),
        };
        self.remains(key, machine).is_some()
            || (key.is_run() && self.ledger.of_container(key).is_some_and(lives))
    }

    /// Whether a container of this pod has a grant that is just ending.
    pub fn pod_is_ending(&self, uid: &str, machine: &dyn Machine) -> bool {
        self.ledger.of_pod(uid).any(|entry| match &entry.state {
            State::Reserved { holder } => !machine.is_alive(holder),
            State::Active { init, .. } => !machine.is_alive(init),
        })
    }

    /// Turns a reservation into a grant, or takes it anew where it has expired and still fits.
    pub fn activate(
        &mut self,
        call: &Activate,
        init: ProcessId,
        machine: &dyn Machine,
        now_ms: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<Entry, Refusal> {
        let expired = self.ledger.get(&call.key).is_none();
        if expired {
            self.end_previous_instance(&call.key, machine, effects)?;
        }
        self.refuse_shared_cgroup(call, machine)?;
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

    /// A process is counted for one grant, and a container is ended by its cgroup: two grants
    /// cannot have a process in common.
    fn refuse_shared_cgroup(&self, call: &Activate, machine: &dyn Machine) -> Result<(), Refusal> {
        let Some(own) = &call.cgroup else { return Ok(()) };
        let found = self.ledger.entries().iter().find_map(|entry| match &entry.state {
            State::Active { cgroup: Some(cgroup), .. } if entry.grant.key != call.key => {
                let overlap = overlap(own, cgroup)?;
                // A directory that was made anew is not the one of that grant.
                machine.may_be_same(cgroup).then_some((entry, cgroup, overlap))
            }
            _ => None,
        });
        let Some((entry, cgroup, overlap)) = found else { return Ok(()) };
        let (container, own, other) = (entry.grant.name(), &own.path, &cgroup.path);
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

    /// Marks the grants of a card whose MPS has died, and tells their pods' authors; those that
    /// were not marked before.
    pub(crate) fn mark_broken(
        &mut self,
        card: &GpuUuid,
        now_ms: u64,
        effects: &mut Vec<Effect>,
    ) -> Vec<GrantKey> {
        let marked = self.ledger.mark_broken(card, now_ms);
        self.changes += u64::from(!marked.is_empty());
        let entries = marked.iter().filter_map(|key| self.ledger.get(key));
        let pods = entries.filter_map(|entry| Some(entry.handed.as_ref()?.pod.clone()));
        effects.extend(pods.map(|pod| Effect::TellPod(pod, Why::MpsFault, BROKEN.to_owned())));
        marked
    }

    /// Ends an entry, whatever its state. `None` where it is gone already.
    pub fn release(
        &mut self,
        key: &GrantKey,
        how: &'static str,
        effects: &mut Vec<Effect>,
    ) -> Option<Entry> {
        let entry = self.ledger.release(key)?;
        self.forget(&entry, how, effects);
        Some(entry)
    }

    /// Ends a reservation whose creator has ended.
    pub fn expire(
        &mut self,
        key: &GrantKey,
        how: &'static str,
        effects: &mut Vec<Effect>,
    ) -> Option<Entry> {
        let entry = self.ledger.expire(key)?;
        self.forget(&entry, how, effects);
        effects.push(Effect::RemoveLeftovers);
        Some(entry)
    }

    /// After a start: ends what ended while nobody looked.
    pub fn settle(&mut self, machine: &dyn Machine, effects: &mut Vec<Effect>) {
        let gone = |entry: &&Entry| match &entry.state {
            State::Reserved { holder } => !machine.is_alive(holder),
            // The rest of the container may outlive its init: the watch sees to that.
            State::Active { init, cgroup: None } => !machine.is_alive(init),
            State::Active { init, cgroup: Some(cgroup) } => {
                !machine.is_alive(init) && machine.is_empty_but_for(cgroup, &self.nested(entry))
            }
        };
        let keys: Vec<GrantKey> =
            self.ledger.entries().iter().filter(gone).map(|e| e.grant.key.clone()).collect();
        for key in &keys {
            self.release(key, "ended while mpsgated was away", effects);
        }
    }

    fn forget(&mut self, entry: &Entry, how: &'static str, effects: &mut Vec<Effect>) {
        self.held.remove(&entry.grant.key);
        self.changes += 1;
        effects.push(if entry.cgroup_limit.is_some() {
            Effect::ClearLimit(Box::new(entry.clone()))
        } else {
            Effect::RemoveRecord(entry.grant.key.clone())
        });
        effects.extend([
            Effect::TellEnd(Box::new(entry.clone()), how),
            Effect::WriteLedger,
            Effect::Publish,
            Effect::AdvanceSchedule,
        ]);
        if entry.grant.has_door() {
            effects.push(Effect::CloseDoor(Box::new(entry.grant.clone())));
        }
        let cards = entry.grant.cards.iter();
        effects.extend(cards.map(|card| Effect::Cap(card.uuid.clone())));
    }

    /// Releases a previous instance of the container; refuses where it still lives.
    fn end_previous_instance(
        &mut self,
        key: &GrantKey,
        machine: &dyn Machine,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let Some(old) = self.ledger.of_container(key) else { return Ok(()) };
        let old_key = old.grant.key.clone();
        let (process, what) = match &old.state {
            State::Reserved { holder } => (*holder, "a reservation"),
            State::Active { init, .. } => (*init, "a grant"),
        };
        if machine.is_alive(&process) {
            let who = if key.is_run() {
                format!("a process of this name, {},", old.grant.name())
            } else {
                format!("a container of this name below {}", key.runtime_root)
            };
            return Err(Refusal::new(
                Code::Ledger,
                format!(
                    "{who} has {what} of {} already, and its {} lives",
                    old.grant.memory,
                    machine.describe(process.pid),
                ),
                "end that one first, or choose another name",
            ));
        }
        if let Some(cgroup) = self.remains(key, machine) {
            let mut pids = machine.processes(&cgroup);
            // What our pid namespace does not see.
            pids.remove(&0);
            let named = pids.first().map(|pid| machine.describe(*pid));
            let pids: Vec<String> = pids.iter().take(8).map(u32::to_string).collect();
            let hint = match pids.as_slice() {
                [] => format!("find them on the host: cat {}/cgroup.procs", cgroup.path),
                pids => format!("end them: kill -KILL {}", pids.join(" ")),
            };
            return Err(Refusal::new(
                Code::Ledger,
                format!(
                    "a previous instance of this container has processes left in {}, which may hold its \
                     memory: {}",
                    cgroup.path,
                    named.as_deref().unwrap_or("mpsgated cannot see them"),
                ),
                hint,
            ));
        }
        self.release(&old_key, "previous instance ended", effects);
        Ok(())
    }
}

pub(super) fn no_reservation(why: &str) -> Refusal {
    Refusal::new(
        Code::NoReservation,
        why,
        "create the container again; if it happens again, look at: journalctl -u mpsgated -n 50",
    )
}

pub(super) fn ledger_refusal(error: &LedgerError) -> Refusal {
    let code = match error {
        LedgerError::NoMemory { .. } | LedgerError::NoClient { .. } => Code::NoCapacity,
        _ => Code::Ledger,
    };
    Refusal::new(code, error.to_string(), "mpsgate status")
}
