//! All doors of one card: whose turn it is, who is handed over, who is ended. Events go in, effects
//! come out; nothing here touches the machine, but for what it asks of [`Kernel`].
//!
//! ```text
//!  accepted ─► talking ── word ──► waiting ── turn ──► handing ── answered ──► handed
//!     │           │                   │                   │ failed: waiting         │ acknowledged
//!     ▼           ▼                   ▼                   ▼                         ▼
//!   ended       ended               ended               ended                    closed
//! ```
//!
//! Whose process it is that connects is the first thing that is asked. Another's is ended at once
//! and takes nothing of what the container may have: who can reach a door can keep nobody waiting
//! there.
//!
//! Handing is two steps: mpsgated prepares the server for the container, then the control daemon is
//! called. Nothing is prepared for anybody else until that call is over.
//!
//! One client at a time is being handed over. Turns go from container to container, so that many
//! clients of one keep the others waiting no longer than one of its clients does.

mod client_checks;
mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use mpsgate_host::cgroup::CgroupId;
use mpsgate_model::Instance;
use mpsgate_model::door_file::{Container, Counts};

use crate::door::{Bounds, ClientId, Door};
use crate::door_effect::{Effect, Failure};
use crate::handshake::{Heard, Peer, Reason, Words};
use crate::mps_wire::Message;

/// After an mpsgated or a control daemon that could not be reached.
const RETRY: Duration = Duration::from_millis(100);

/// What must be asked of the kernel. A parameter, so that tests need no processes.
pub(crate) trait Kernel {
    /// When a living process was started, in ticks since boot.
    fn start_time(&self, pid: u32) -> Option<u64>;
    /// Where a living process is, of several cgroups, by its position.
    fn place(&self, pid: u32, cgroups: &[&CgroupId]) -> Place<usize>;
}

/// Where a process is, of several cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place<T> {
    /// In this one, and in none of them that is nearer.
    In(T),
    /// In none of them.
    Elsewhere,
    /// The kernel does not say: it has ended, is not to be seen from here, or its cgroup's path is
    /// too long.
    Unreadable,
}

/// Whose process it is that has connected at a door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The container's; or anybody's, before the container's cgroup is known.
    Ours,
    /// Surely somebody else's.
    Anothers,
    /// See [`Place::Unreadable`].
    Unreadable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Talking, and nobody knows whose it is.
    Unreadable,
    Talking,
    Waiting,
    Handing,
    Handed,
}

#[derive(Debug)]
struct Client {
    door: Instance,
    peer: Peer,
    /// Of the peer's process, when it was accepted; none where it had ended by then.
    start_time: Option<u64>,
    words: Words,
    stage: Stage,
    deadline: Instant,
}

/// The doors of one card.
#[derive(Debug)]
pub(crate) struct Doors {
    bounds: Bounds,
    doors: BTreeMap<Instance, Door>,
    clients: BTreeMap<ClientId, Client>,
    deadlines: BTreeSet<(Instant, ClientId)>,
    /// Active doors at which somebody waits, each once.
    turns: VecDeque<Instance>,
    handing: Option<ClientId>,
    /// Not before this anybody is handed over again.
    rest: Option<Instant>,
    last: u64,
    handed_over: u64,
    /// Of all containers, also of those that have ended.
    ended: BTreeMap<Reason, u64>,
    /// Nobody is accepted any more.
    is_stopping: bool,
}

impl Doors {
    /// None yet.
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            doors: BTreeMap::new(),
            clients: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            turns: VecDeque::new(),
            handing: None,
            rest: None,
            last: 0,
            handed_over: 0,
            ended: BTreeMap::new(),
            is_stopping: false,
        }
    }

    /// The containers that have a door.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Instance> {
        self.doors.keys()
    }

    /// What is known of a container.
    pub(crate) fn container(&self, name: &Instance) -> Option<&Container> {
        self.doors.get(name).map(|door| &door.container)
    }

    /// A container has a door from now on, or its file says something else.
    pub(crate) fn set(&mut self, name: &Instance, container: Container) {
        match self.doors.get_mut(name) {
            Some(door) => door.container = container,
            None => {
                let mut door = Door::new(container);
                door.is_paused = self.is_stopping;
                self.doors.insert(name.clone(), door);
            }
        }
        self.queue_up(name);
    }

    /// A container has none any more.
    pub(crate) fn remove(&mut self, name: &Instance, effects: &mut Vec<Effect>) {
        let of_it = |(id, client): (&ClientId, &Client)| (client.door == *name).then_some(*id);
        let ids: Vec<ClientId> = self.clients.iter().filter_map(of_it).collect();
        for id in ids {
            match self.clients.get(&id).map(|client| client.stage) {
                Some(Stage::Handed) => self.close(id, effects),
                _ => self.end(id, Reason::Ended, effects),
            }
        }
        self.doors.remove(name);
        self.turns.retain(|turn| turn != name);
    }

    /// A client connected and has its hello. `None`: it is ended, without a place.
    pub(crate) fn accepted(
        &mut self,
        name: &Instance,
        peer: Peer,
        whose: Whose,
        now: Instant,
        kernel: &impl Kernel,
        effects: &mut Vec<Effect>,
    ) -> Option<ClientId> {
        let stage = match whose {
            Whose::Ours => Stage::Talking,
            Whose::Unreadable => Stage::Unreadable,
            Whose::Anothers => {
                let count = self.count(name, Reason::Elsewhere);
                effects.push(Effect::Ended(name.clone(), peer, Reason::Elsewhere, count));
                return None;
            }
        };
        self.last += 1;
        let id = ClientId(self.last);
        let deadline = now + self.bounds.words;
        let client = Client {
            door: name.clone(),
            peer,
            start_time: kernel.start_time(peer.pid),
            words: Words::Greeted,
            stage,
            deadline,
        };
        self.clients.insert(id, client);
        self.deadlines.insert((deadline, id));
        let mut oldest = None;
        if let Some(door) = self.doors.get_mut(name) {
            if stage == Stage::Talking {
                door.accept(&self.bounds, now);
            } else {
                door.unreadable.push_back(id);
                let is_full = door.unreadable.len() > self.bounds.unreadable;
                oldest = is_full.then(|| door.unreadable.pop_front()).flatten();
            }
        }
        if let Some(oldest) = oldest {
            self.end(oldest, Reason::Elsewhere, effects);
        }
        self.regulate(name, now, effects);
        Some(id)
    }

    /// A client said something.
    pub(crate) fn said(
        &mut self,
        id: ClientId,
        message: &Message<'_>,
        now: Instant,
        kernel: &impl Kernel,
        effects: &mut Vec<Effect>,
    ) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let name = client.door.clone();
        match client.stage {
            Stage::Unreadable | Stage::Talking => match client.words.hear(client.peer, message) {
                Heard::Listen => {}
                Heard::End(reason) => self.end(id, reason, effects),
                Heard::All(sender, word) => match self.refusal(id, sender, word, kernel) {
                    Some(reason) => self.end(id, reason, effects),
                    None => self.wait(id, now),
                },
            },
            Stage::Waiting | Stage::Handing => self.end(id, Reason::Talks, effects),
            // It has what it came for, whatever it says.
            Stage::Handed => self.close(id, effects),
        }
        self.regulate(&name, now, effects);
        self.advance(now, kernel, effects);
    }

    /// A client closed its connection.
    pub(crate) fn left(
        &mut self,
        id: ClientId,
        now: Instant,
        kernel: &impl Kernel,
        effects: &mut Vec<Effect>,
    ) {
        let Some(name) = self.clients.get(&id).map(|client| client.door.clone()) else { return };
        self.close(id, effects);
        self.regulate(&name, now, effects);
        self.advance(now, kernel, effects);
    }

    /// The control daemon answered with a descriptor, and has its acknowledgement.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        kernel: &impl Kernel,
        effects: &mut Vec<Effect>,
    ) {
        let Some(id) = self.handing.take() else { return effects.push(Effect::HangUp) };
        // Looked at again: it may have ended meanwhile, and its pid may be another's.
        match self.known(id, kernel) {
            Some(known) => {
                let count = self.hand_over(id, now, effects);
                effects.push(Effect::HandOver(id, known, count));
            }
            None => self.end(id, Reason::Elsewhere, effects),
        }
        effects.push(Effect::HangUp);
        self.advance(now, kernel, effects);
    }

    /// There is no descriptor for it.
    pub(crate) fn failed(
        &mut self,
        failure: Failure,
        now: Instant,
        kernel: &impl Kernel,
        effects: &mut Vec<Effect>,
    ) {
        effects.push(Effect::HangUp);
        if let Some(id) = self.handing.take()
            && let Some(client) = self.clients.get_mut(&id)
            && let Some(door) = self.doors.get_mut(&client.door)
        {
            client.stage = Stage::Waiting;
            let name = client.door.clone();
            match failure {
                Failure::Unreachable => {
                    door.waiting.push_front(id);
                    self.rest = Some(now + RETRY);
                }
                Failure::Later => {
                    door.waiting.push_back(id);
                    door.rest = Some(now + RETRY);
                    self.turns.retain(|turn| *turn != name);
                }
                Failure::NoAnswer => door.waiting.push_back(id),
            }
            self.queue_up(&name);
        }
        self.advance(now, kernel, effects);
    }

    /// Time has passed, or something else has changed.
    pub(crate) fn tick(&mut self, now: Instant, kernel: &impl Kernel, effects: &mut Vec<Effect>) {
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            match self.clients.get(&id).map(|client| client.stage) {
                Some(Stage::Unreadable | Stage::Talking) => self.end(id, Reason::Silent, effects),
                Some(Stage::Waiting | Stage::Handing) => self.end(id, Reason::Waited, effects),
                Some(Stage::Handed) => self.close(id, effects),
                None => {
                    self.deadlines.remove(&(deadline, id));
                }
            }
        }
        let names: Vec<Instance> = self.doors.keys().cloned().collect();
        for name in names {
            self.regulate(&name, now, effects);
            if let Some(door) = self.doors.get_mut(&name)
                && door.rest.is_some_and(|rest| rest <= now)
            {
                door.rest = None;
                self.queue_up(&name);
            }
        }
        self.advance(now, kernel, effects);
    }

    /// How many of them still want something. Who has its descriptor needs the connection no more:
    /// NVIDIA's client does not mind that it is closed (535, 550, measured).
    pub(crate) fn pending(&self) -> usize {
        self.clients.values().filter(|client| client.stage != Stage::Handed).count()
    }

    /// What became of clients so far.
    pub(crate) fn counts(&self) -> Counts {
        let waiting = self.doors.values().map(|door| door.waiting.len()).sum::<usize>();
        Counts {
            handed_over: self.handed_over,
            waiting: u64::try_from(waiting).unwrap_or(u64::MAX),
            ended: self.ended.clone(),
        }
    }

    /// When [`Self::tick`] has something to do next.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(deadline, _)| *deadline);
        let paused = self.doors.values().filter(|door| door.is_paused && !self.is_stopping);
        let resume = paused.filter_map(|door| door.accepts_from(&self.bounds, now)).min();
        let rest = self.rest.filter(|_| !self.turns.is_empty());
        let doors = self.doors.values().filter_map(|door| door.rest).min();
        [deadline, resume, rest, doors].into_iter().flatten().min()
    }

    /// Accepts nobody any more; those that are there go on.
    pub(crate) fn stop(&mut self, effects: &mut Vec<Effect>) {
        self.is_stopping = true;
        for (name, door) in &mut self.doors {
            if !door.is_paused {
                door.is_paused = true;
                effects.push(Effect::Pause(name.clone()));
            }
        }
    }

    fn wait(&mut self, id: ClientId, now: Instant) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let stage = std::mem::replace(&mut client.stage, Stage::Waiting);
        let name = client.door.clone();
        if let Some(door) = self.doors.get_mut(&name) {
            door.leave(stage, id);
            door.waiting.push_back(id);
        }
        self.set_deadline(id, now + self.bounds.wait);
        self.queue_up(&name);
    }

    /// How many of its container were, with it.
    fn hand_over(&mut self, id: ClientId, now: Instant, effects: &mut Vec<Effect>) -> u64 {
        let Some(client) = self.clients.get_mut(&id) else { return 0 };
        client.stage = Stage::Handed;
        self.handed_over += 1;
        let Some(door) = self.doors.get_mut(&client.door) else { return 0 };
        door.handed_over += 1;
        let count = door.handed_over;
        let oldest = (door.handed.len() >= self.bounds.handed).then(|| door.handed.pop_front());
        door.handed.push_back(id);
        self.set_deadline(id, now + self.bounds.linger);
        if let Some(oldest) = oldest.flatten() {
            self.close(oldest, effects);
        }
        count
    }

    fn set_deadline(&mut self, id: ClientId, deadline: Instant) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        self.deadlines.remove(&(client.deadline, id));
        client.deadline = deadline;
        self.deadlines.insert((deadline, id));
    }

    fn end(&mut self, id: ClientId, reason: Reason, effects: &mut Vec<Effect>) {
        let Some(client) = self.clients.get(&id) else { return };
        let (name, peer) = (client.door.clone(), client.peer);
        let count = self.count(&name, reason);
        effects.push(Effect::Ended(name, peer, reason, count));
        self.close(id, effects);
    }

    /// How many of its container were ended for this reason, with this one.
    fn count(&mut self, name: &Instance, reason: Reason) -> u64 {
        *self.ended.entry(reason).or_default() += 1;
        let Some(door) = self.doors.get_mut(name) else { return 1 };
        let counted = door.ended.entry(reason).or_default();
        *counted += 1;
        *counted
    }

    fn close(&mut self, id: ClientId, effects: &mut Vec<Effect>) {
        let Some(client) = self.clients.remove(&id) else { return };
        self.deadlines.remove(&(client.deadline, id));
        if let Some(door) = self.doors.get_mut(&client.door) {
            door.leave(client.stage, id);
            if door.waiting.is_empty() {
                self.turns.retain(|turn| *turn != client.door);
            }
        }
        if self.handing == Some(id) {
            self.handing = None;
            effects.push(Effect::HangUp);
        }
        effects.push(Effect::Close(id));
    }

    /// Leaves a door's listening socket alone, or not any more.
    fn regulate(&mut self, name: &Instance, now: Instant, effects: &mut Vec<Effect>) {
        if self.is_stopping {
            return;
        }
        let Some(door) = self.doors.get_mut(name) else { return };
        let accepts = door.accepts_from(&self.bounds, now).is_some_and(|from| from <= now);
        if accepts == door.is_paused {
            door.is_paused = !accepts;
            let effect = if accepts { Effect::Resume } else { Effect::Pause };
            effects.push(effect(name.clone()));
        }
    }
}

impl Door {
    /// One of its clients is not at this stage any more.
    fn leave(&mut self, stage: Stage, id: ClientId) {
        match stage {
            Stage::Unreadable => self.unreadable.retain(|other| *other != id),
            Stage::Talking => self.greeted = self.greeted.saturating_sub(1),
            Stage::Waiting | Stage::Handing => self.waiting.retain(|other| *other != id),
            Stage::Handed => self.handed.retain(|other| *other != id),
        }
    }
}

#[cfg(test)]
mod tests;
