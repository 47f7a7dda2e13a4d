//! The loop: what has happened goes to the doors, what they want is done.

mod listeners;
mod pending_calls;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mpsgate_model::Instance;
use nix::sys::signal::Signal;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::control_call::Call;
use crate::door::{Bounds, ClientId};
use crate::door_directory::{Changed, Directory};
use crate::door_effect::{Effect, Known};
use crate::doors::{Doors, Whose};
use crate::error::GateError;
use crate::handshake::{Peer, Reason};
use crate::kernel::ThisKernel;
use crate::listener_store::Store;
use crate::mps_wire::HELLO;
use crate::question::Asked;
use crate::signal_wait::receive;
use crate::sockets::{self, Answer, Heard};

/// Connections of one container that are accepted before others are looked at.
const AT_ONCE: usize = 16;
/// How often the control daemon is asked for its hello until it says one, and a lack of descriptors
/// is waited out.
const RETRY: Duration = Duration::from_millis(100);
/// For how long an mpsgated that answered only a question of before is asked no other. It pauses
/// after each that it does not know, and may be another one by then.
const OLDER: Duration = Duration::from_secs(60);
/// How often all files are looked at, whatever the kernel has reported.
const LOOK: Duration = Duration::from_secs(5);
/// What clients that are there get after SIGTERM. Meanwhile others wait: nobody is accepted.
const END: Duration = Duration::from_secs(10);

const KINDS: u32 = 56;
const SIGNALS: u64 = 0;
const WATCH: u64 = 1 << KINDS;
const CALL: u64 = 2 << KINDS;
const LISTENER: u64 = 3 << KINDS;
const CLIENT: u64 = 4 << KINDS;
const ASKED: u64 = 5 << KINDS;

/// Where it works.
#[derive(Debug, Clone)]
pub struct Options {
    /// The card's directory, with the containers' doors and files. mpsgated's.
    pub card: PathBuf,
    /// mpsgated's socket for questions.
    pub mpsgated: PathBuf,
    /// What one container may ask for at a time.
    pub bounds: Bounds,
}

/// Serves until SIGTERM or SIGINT, and then those clients that are there. The calling thread must
/// be the process's only one.
///
/// # Errors
/// When it cannot begin, or cannot wait any more.
pub fn serve(
    options: &Options,
    store: Store,
    kept: Vec<(String, OwnedFd)>,
) -> Result<(), GateError> {
    let signals = receive(&[Signal::SIGTERM, Signal::SIGINT])?;
    let mut gate = Gate::new(options, store, kept)?;
    gate.watch(signals.as_fd(), SIGNALS, EventFlags::IN)?;
    gate.look(None);
    gate.forget_kept();
    gate.store.ready();
    log::info!(containers = gate.listeners.len(), card:% = options.card.display(); "serving");
    let mut ends = None;
    while ends.is_none_or(|ends| gate.doors.pending() > 0 && Instant::now() < ends) {
        for event in gate.wait(ends)? {
            match event & !((1 << KINDS) - 1) {
                SIGNALS => {
                    while let Ok(Some(_)) = signals.read_signal() {}
                    let mut effects = Vec::new();
                    gate.is_ending = true;
                    gate.doors.stop(&mut effects);
                    gate.perform(effects);
                    ends.get_or_insert_with(|| Instant::now() + END);
                }
                WATCH => match gate.directory.changed() {
                    Changed::Some(names) => gate.look(Some(names)),
                    Changed::Anything => gate.look(None),
                },
                CALL => gate.step(),
                ASKED => gate.take_answer(),
                LISTENER => gate.accept(event),
                _ => gate.hear(event),
            }
        }
        gate.tick();
    }
    log::info!(clients = gate.doors.pending(); "ends");
    Ok(())
}

struct Gate {
    /// The control daemon's directory, as mpsgated gave it last.
    pipe: Option<OwnedFd>,
    directory: Directory,
    store: Store,
    /// Sockets that an earlier gate served, by the name under which they were kept.
    kept: BTreeMap<String, OwnedFd>,
    epoll: OwnedFd,
    doors: Doors,
    listeners: BTreeMap<Instance, (u64, OwnedFd)>,
    names: BTreeMap<u64, Instance>,
    paused: BTreeSet<Instance>,
    clients: BTreeMap<ClientId, OwnedFd>,
    mpsgated: PathBuf,
    asked: Option<Asked>,
    /// Until when mpsgated is taken for one of an older version: a downgrade leaves the gate.
    older: Option<Instant>,
    call: Option<Call>,
    answer: Option<Answer>,
    /// The control daemon's. Nobody is accepted before it is known.
    hello: Option<[u8; HELLO]>,
    /// What was wrong with the control daemon's words when that was last said.
    said: Option<String>,
    /// Nobody is accepted, and no hello is asked for, before this.
    rest: Option<Instant>,
    /// How often a connection could not be accepted.
    short: u64,
    looked: Instant,
    last: u64,
    /// Nobody is accepted any more, at new doors either.
    is_ending: bool,
}

impl Gate {
    fn new(
        options: &Options,
        store: Store,
        kept: Vec<(String, OwnedFd)>,
    ) -> Result<Self, GateError> {
        let directory = Directory::open(&options.card)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(GateError::system("wait for events"))?;
        let gate = Self {
            pipe: None,
            directory,
            store,
            kept: kept.into_iter().collect(),
            epoll,
            doors: Doors::new(options.bounds),
            listeners: BTreeMap::new(),
            names: BTreeMap::new(),
            paused: BTreeSet::new(),
            clients: BTreeMap::new(),
            mpsgated: options.mpsgated.clone(),
            asked: None,
            older: None,
            call: None,
            answer: None,
            hello: None,
            said: None,
            rest: None,
            short: 0,
            looked: Instant::now(),
            last: 0,
            is_ending: false,
        };
        gate.watch(gate.directory.watch(), WATCH, EventFlags::IN)?;
        Ok(gate)
    }

    fn watch(&self, fd: impl AsFd, token: u64, flags: EventFlags) -> Result<(), GateError> {
        epoll::add(&self.epoll, fd, EventData::new_u64(token), flags)
            .map_err(GateError::system("wait for events"))
    }

    /// The tokens of what has happened.
    fn wait(&self, ends: Option<Instant>) -> Result<Vec<u64>, GateError> {
        let now = Instant::now();
        let until = [
            self.doors.next(now),
            self.call.as_ref().map(Call::until),
            self.asked.as_ref().map(Asked::until),
            self.rest.or_else(|| self.hello.is_none().then_some(now + RETRY)),
            Some(self.looked + LOOK),
            ends,
        ];
        let left = until.into_iter().flatten().min().map(|until| until.duration_since(now));
        // The clock of epoll counts milliseconds: rounded down it would turn without sleeping.
        let left = left.map(|left| left + Duration::from_millis(1));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut events = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(GateError::system("wait for events")(errno)),
        }
        Ok(events.iter().map(|event| event.data.u64()).collect())
    }

    fn accept(&mut self, token: u64) {
        let Some(name) = self.names.get(&token).cloned() else { return };
        let Some(hello) = self.hello else { return };
        for _ in 0..AT_ONCE {
            let Some((_, listener)) = self.listeners.get(&name) else { return };
            if self.paused.contains(&name) {
                return;
            }
            match sockets::accept(listener.as_fd(), &hello) {
                Ok(Some((client, peer))) => {
                    let (mut effects, now) = (Vec::new(), Instant::now());
                    let whose = self.whose(&name, peer, &client);
                    let id =
                        self.doors.accepted(&name, peer, whose, now, &ThisKernel, &mut effects);
                    if let Some(id) = id {
                        if self.watch(&client, CLIENT | id.0, EventFlags::IN).is_ok() {
                            self.clients.insert(id, client);
                        } else {
                            self.doors.left(id, now, &ThisKernel, &mut effects);
                        }
                    }
                    self.perform(effects);
                }
                Ok(None) => return,
                Err(error) => {
                    // Tried again ten times a second.
                    self.short += 1;
                    if self.short.is_power_of_two() {
                        let count = self.short;
                        log::error!(error:%, count; "no connection can be accepted, for now");
                    }
                    self.rest = Some(Instant::now() + RETRY);
                    return self.listen_everywhere();
                }
            }
        }
    }

    /// Looked up before the connection counts for anything.
    fn whose(&self, name: &Instance, peer: Peer, client: &OwnedFd) -> Whose {
        match self.doors.whose(name, peer.pid, &ThisKernel) {
            Whose::Ours if !sockets::lives(client.as_fd()) => Whose::Unreadable,
            whose => whose,
        }
    }

    fn hear(&mut self, token: u64) {
        let id = ClientId(token & ((1 << KINDS) - 1));
        let mut effects = Vec::new();
        let now = Instant::now();
        let Some(client) = self.clients.get(&id) else { return };
        let doors = &mut self.doors;
        let heard = sockets::hear(client.as_fd(), |message| {
            doors.said(id, message, now, &ThisKernel, &mut effects);
        });
        if matches!(heard, Heard::Gone) {
            self.doors.left(id, now, &ThisKernel, &mut effects);
        }
        self.perform(effects);
    }

    fn tick(&mut self) {
        let now = Instant::now();
        let mut effects = Vec::new();
        if self.rest.is_some_and(|rest| rest <= now) {
            self.rest = None;
            self.listen_everywhere();
        }
        self.give_up(now, &mut effects);
        self.doors.tick(now, &ThisKernel, &mut effects);
        self.perform(effects);
        self.learn_hello(now);
        if self.looked + LOOK <= now {
            self.complain_to_mpsgated();
            self.report_counts();
            self.keep_all();
            self.look(None);
        }
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            let mut more = Vec::new();
            match effect {
                Effect::Pause(name) => {
                    self.paused.insert(name.clone());
                    self.listen(&name);
                }
                Effect::Resume(name) => {
                    self.paused.remove(&name);
                    self.listen(&name);
                }
                Effect::Close(id) => {
                    // The kernel takes it out of epoll's set.
                    self.clients.remove(&id);
                }
                Effect::Prepare(instance, client) => self.prepare(instance, client, &mut more),
                Effect::Call(_, sender, word) => self.call(sender, word, &mut more),
                Effect::HangUp => {
                    self.asked = None;
                    self.call = None;
                    self.answer = None;
                }
                Effect::HandOver(id, known, count) => {
                    if !self.hand_over(id, &known, count) {
                        self.doors.left(id, Instant::now(), &ThisKernel, &mut more);
                    }
                }
                Effect::Ended(name, peer, reason, count) => self.tell(&name, peer, reason, count),
            }
            // In their order, before what comes later.
            for effect in more.into_iter().rev() {
                effects.push_front(effect);
            }
        }
    }

    /// Whether the client took it. A container attaches and ends hundreds of times a second if it
    /// likes: told as those are that are ended.
    fn hand_over(&self, id: ClientId, known: &Known, count: u64) -> bool {
        let (Some(client), Some(answer)) = (self.clients.get(&id), &self.answer) else {
            return false;
        };
        let handed = sockets::hand_over(client.as_fd(), answer).is_ok();
        if handed && count.is_power_of_two() {
            log::info!(
                container = self.id_of(&known.door), instance = known.door.as_str(),
                pid = known.pid, start_time = known.start_time, uid = known.uid, count;
                "client handed over"
            );
        }
        handed
    }

    /// A container can have as many clients ended as it likes: of a thousand ten are told.
    fn tell(&self, name: &Instance, peer: Peer, reason: Reason, count: u64) {
        if count.is_power_of_two() {
            log::warn!(
                container = self.id_of(name), instance = name.as_str(), pid = peer.pid,
                reason = reason.as_str(), count; "client ended"
            );
        }
    }

    fn id_of(&self, name: &Instance) -> &str {
        self.doors.container(name).map_or("", |container| container.id.as_str())
    }
}
