//! Turns, bounds and what a client gets, step by step; then any order of events against what must
//! always hold.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use mpsgate_host::process::ProcessId;
use mpsgate_model::Rate;
use proptest::prelude::*;

use super::*;
use crate::door_effect::Known;
use crate::mps_wire::{Sender, Word};

/// Processes 1 to 9 are in container `pid % 3`, and others in none; those in `dead` have ended, and
/// those in `hidden` are not to be seen.
#[derive(Debug, Default)]
struct Fake {
    dead: BTreeSet<u32>,
    hidden: BTreeSet<u32>,
}

const OUTSIDE: u32 = 10;

impl Kernel for Fake {
    fn start_time(&self, pid: u32) -> Option<u64> {
        (pid > 0 && !self.dead.contains(&pid)).then_some(u64::from(pid) * 100)
    }

    fn place(&self, pid: u32, cgroups: &[&CgroupId]) -> Place<usize> {
        if pid == 0 || self.dead.contains(&pid) || self.hidden.contains(&pid) {
            return Place::Unreadable;
        }
        let is_its = |cgroup: &&CgroupId| pid < OUTSIDE && cgroup.inode == u64::from(pid % 3);
        cgroups.iter().position(is_its).map_or(Place::Elsewhere, Place::In)
    }
}

const BOUNDS: Bounds = Bounds {
    greeted: 3,
    unreadable: 2,
    waiting: 2,
    handed: 2,
    connections: Rate { burst: 1000, every: Duration::from_millis(1) },
    words: Duration::from_secs(2),
    wait: Duration::from_secs(30),
    linger: Duration::from_secs(60),
};

fn name(number: u32) -> Instance {
    Instance::parse(&format!("{number:032x}")).unwrap()
}

/// For the client with this pid.
fn prepare(pid: u32) -> Effect {
    Effect::Prepare(name(pid % 3), ProcessId { pid, start_time: u64::from(pid) * 100 })
}

fn container(number: u32, active: bool) -> Container {
    let path = format!("/sys/fs/cgroup/{number}");
    let cgroup = active.then(|| CgroupId { path, inode: number.into() });
    Container { id: format!("c{number}"), uid: 1000, any_uid: false, debug: false, cgroup }
}

/// Doors with what they have wanted so far, and what the edge would hold.
struct Bench {
    doors: Doors,
    kernel: Fake,
    now: Instant,
    effects: Vec<Effect>,
}

impl Bench {
    fn new(active: &[u32]) -> Self {
        let mut doors = Doors::new(BOUNDS);
        for number in 0..3 {
            doors.set(&name(number), container(number, active.contains(&number)));
        }
        Self { doors, kernel: Fake::default(), now: Instant::now(), effects: Vec::new() }
    }

    /// At its own door.
    fn accept(&mut self, pid: u32) -> ClientId {
        self.accept_at(pid % 3, pid).unwrap()
    }

    fn accept_at(&mut self, door: u32, pid: u32) -> Option<ClientId> {
        let (door, peer) = (name(door), Peer { pid });
        let whose = self.doors.whose(&door, pid, &self.kernel);
        self.doors.accepted(&door, peer, whose, self.now, &self.kernel, &mut self.effects)
    }

    fn say(&mut self, id: ClientId, bytes: &[u8], pid: u32, uid: u32) {
        let sender = Some(Sender { pid, uid, gid: uid });
        let message = Message { bytes, more: false, sender };
        self.doors.said(id, &message, self.now, &self.kernel, &mut self.effects);
    }

    /// A client that has said its word.
    fn client(&mut self, pid: u32) -> ClientId {
        let id = self.accept(pid);
        self.say(id, crate::mps_wire::CREDENTIALS, pid, 1000);
        self.say(id, &Word::Client.bytes(), pid, 1000);
        id
    }

    fn answer(&mut self) {
        self.doors.answered(self.now, &self.kernel, &mut self.effects);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.doors.tick(self.now, &self.kernel, &mut self.effects);
    }

    fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// mpsgated has prepared what it was asked for.
    fn prepare(&mut self) {
        if self.effects.iter().any(|effect| matches!(effect, Effect::Prepare(..))) {
            self.doors.prepared(&mut self.effects);
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.doors.failed(failure, self.now, &self.kernel, &mut self.effects);
    }

    fn called(&mut self) -> Vec<ClientId> {
        self.prepare();
        let calls = self.take().into_iter().filter_map(|effect| match effect {
            Effect::Call(id, ..) => Some(id),
            _ => None,
        });
        calls.collect()
    }

    fn ended(&mut self) -> Vec<Reason> {
        let ended = self.take().into_iter().filter_map(|effect| match effect {
            Effect::Ended(_, _, reason, _) => Some(reason),
            _ => None,
        });
        ended.collect()
    }
}

#[test]
fn turns_go_from_container_to_container() {
    let mut bench = Bench::new(&[0, 1, 2]);
    let first = bench.client(3);
    let more = [bench.client(6), bench.client(9)];
    let others = [bench.client(1), bench.client(2)];
    assert_eq!(bench.called(), [first]);
    for expected in [more[0], others[0], others[1], more[1]] {
        bench.answer();
        assert_eq!(bench.called(), [expected]);
    }
    bench.answer();
    assert_eq!(bench.called(), []);
}

#[test]
fn a_client_of_a_reservation_waits_for_the_grant() {
    let mut bench = Bench::new(&[]);
    let id = bench.client(1);
    assert_eq!(bench.take(), []);
    bench.doors.set(&name(1), container(1, true));
    bench.pass(Duration::ZERO);
    assert_eq!(bench.called(), [id]);
    let other = bench.client(2);
    bench.pass(BOUNDS.wait);
    assert_eq!(bench.ended(), [Reason::Waited, Reason::Waited], "{other:?}");
    assert_eq!(bench.doors.clients.len(), 0);
}

#[test]
fn who_has_ended_meanwhile_gets_nothing() {
    let mut bench = Bench::new(&[1]);
    bench.client(1);
    bench.kernel.dead.insert(1);
    bench.answer();
    assert_eq!(bench.ended(), [Reason::Elsewhere]);
    let four = bench.client(4);
    bench.client(7);
    bench.kernel.dead.insert(7);
    assert_eq!(bench.called(), [four]);
    bench.answer();
    assert!(matches!(
        &bench.take()[..],
        [
            Effect::HandOver(_, Known { pid: 4, start_time: 400, uid: 1000, .. }, 1),
            Effect::HangUp,
            Effect::Ended(_, Peer { pid: 7 }, Reason::Elsewhere, 2),
            Effect::Close(_),
        ]
    ));
}

#[test]
fn what_a_client_may_not_ask_for_is_refused_after_its_word() {
    let mut bench = Bench::new(&[0, 1, 2]);
    for (word, pid, uid, reason) in [
        (Word::Other(4), 1, 1000, Reason::Word),
        (Word::Other(-1), 1, 1000, Reason::Word),
        (Word::Debuggee, 1, 1000, Reason::Debugger),
        (Word::Client, 1, 0, Reason::Uid),
        (Word::Client, 4, 1000, Reason::Sender),
    ] {
        let id = bench.accept(1);
        bench.say(id, crate::mps_wire::CREDENTIALS, pid, uid);
        assert_eq!(bench.take(), []);
        bench.say(id, &word.bytes(), pid, uid);
        assert_eq!(bench.ended(), [reason]);
    }
    assert_eq!(bench.doors.clients.len(), 0);
}

#[test]
fn whose_a_process_is_follows_from_where_it_is() {
    let mut bench = Bench::new(&[0, 1]);
    bench.kernel.hidden.insert(7);
    for (door, pid, whose) in [
        (1, 1, Whose::Ours),
        (1, 3, Whose::Anothers),
        (1, OUTSIDE, Whose::Anothers),
        (1, 7, Whose::Unreadable),
        (1, 0, Whose::Unreadable),
        // Container 2 is a reservation: where its processes are is not known.
        (2, 2, Whose::Ours),
        (2, OUTSIDE, Whose::Ours),
        (2, 3, Whose::Ours),
        (2, 7, Whose::Unreadable),
        (1, 2, Whose::Anothers),
    ] {
        assert_eq!(bench.doors.whose(&name(door), pid, &bench.kernel), whose, "{pid} at {door}");
    }
}

#[test]
fn whoever_connects_from_elsewhere_takes_nothing_of_what_the_container_may_have() {
    let mut bench = Bench::new(&[1, 2]);
    bench.kernel.hidden.insert(7);
    // Another container's, and one that is in none: ended before they can say a word.
    for (count, stranger) in (1..).zip([2, OUTSIDE].repeat(1000)) {
        assert_eq!(bench.accept_at(1, stranger), None);
        let ended = Effect::Ended(name(1), Peer { pid: stranger }, Reason::Elsewhere, count);
        assert_eq!(bench.take(), [ended]);
    }
    // Those that cannot be looked at have their own places, and end each other.
    let first = [bench.accept(7), bench.accept(7)];
    assert_eq!(bench.take(), []);
    let third = bench.accept(7);
    let ended = Effect::Ended(name(1), Peer { pid: 7 }, Reason::Elsewhere, 2001);
    assert_eq!(bench.take(), [ended, Effect::Close(first[0])]);
    // After its word it is ended all the same, unless it can be looked at by then.
    bench.say(first[1], crate::mps_wire::CREDENTIALS, 7, 1000);
    bench.say(first[1], &Word::Client.bytes(), 7, 1000);
    assert_eq!(bench.ended(), [Reason::Elsewhere]);
    bench.kernel.hidden.clear();
    bench.say(third, crate::mps_wire::CREDENTIALS, 7, 1000);
    bench.say(third, &Word::Client.bytes(), 7, 1000);
    assert_eq!(bench.called(), [third]);
    // The container's own have all their places, and as many connections at once as ever.
    for _ in 1..BOUNDS.greeted {
        bench.accept(1);
        assert_eq!(bench.take(), []);
    }
    bench.accept(1);
    assert_eq!(bench.take(), [Effect::Pause(name(1))]);
}

#[test]
fn beyond_its_bounds_a_container_waits_or_is_refused() {
    let mut bench = Bench::new(&[1, 2]);
    bench.client(1);
    let waiting = [bench.client(4), bench.client(7)];
    bench.take();
    bench.client(1);
    assert_eq!(bench.ended(), [Reason::Queue]);
    for _ in 0..BOUNDS.greeted {
        bench.accept(1);
    }
    assert_eq!(bench.take(), [Effect::Pause(name(1))]);
    let neighbour = bench.client(2);
    bench.answer();
    assert_eq!(bench.called(), [waiting[0]], "it had its turn before the neighbour came");
    bench.answer();
    assert_eq!(bench.called(), [neighbour]);
    bench.pass(BOUNDS.words);
    let effects = bench.take();
    let silent = |effect: &&Effect| matches!(effect, Effect::Ended(_, _, Reason::Silent, _));
    assert_eq!(effects.iter().filter(silent).count(), BOUNDS.greeted);
    assert_eq!(effects.last(), Some(&Effect::Resume(name(1))));
}

#[test]
fn a_control_daemon_that_is_away_is_called_again_and_one_without_a_server_serves_others() {
    let mut bench = Bench::new(&[1, 2]);
    let (one, two) = (bench.client(1), bench.client(2));
    assert_eq!(bench.called(), [one]);
    bench.fail(Failure::Unreachable);
    assert_eq!(bench.called(), []);
    assert_eq!(bench.doors.next(bench.now), Some(bench.now + RETRY));
    bench.pass(RETRY);
    assert_eq!(bench.called(), [two]);
    bench.fail(Failure::NoAnswer);
    assert_eq!(bench.called(), [one]);
}

#[test]
fn the_server_is_prepared_for_a_client_before_its_call_and_for_nobody_else_until_it_is_over() {
    let mut bench = Bench::new(&[1, 2]);
    let (one, two) = (bench.client(1), bench.client(2));
    assert_eq!(bench.take(), [prepare(1)]);
    // Not for its container now: for the other one, which does not wait.
    bench.fail(Failure::Later);
    assert_eq!(bench.take(), [Effect::HangUp, prepare(2)]);
    bench.doors.left(two, bench.now, &bench.kernel, &mut bench.effects);
    assert_eq!(bench.take(), [Effect::HangUp, Effect::Close(two)]);
    let three = bench.client(2);
    assert_eq!(bench.take(), [prepare(2)]);
    // Its container has no memory left: ended after its word, and counted.
    bench.doors.refused(bench.now, &bench.kernel, &mut bench.effects);
    let ended = Effect::Ended(name(2), Peer { pid: 2 }, Reason::Full, 1);
    assert_eq!(bench.take(), [ended, Effect::HangUp, Effect::Close(three)]);
    assert_eq!(bench.doors.next(bench.now), Some(bench.now + RETRY));
    bench.pass(RETRY);
    assert_eq!(bench.take(), [prepare(1)]);
    // While mpsgated is away nobody is handed over, and who has waited long enough is ended.
    bench.fail(Failure::Unreachable);
    bench.pass(RETRY);
    assert_eq!(bench.take(), [Effect::HangUp, prepare(1)]);
    bench.pass(BOUNDS.wait);
    assert_eq!(bench.ended(), [Reason::Waited]);
    let ended = [(Reason::Waited, 1), (Reason::Full, 1)].into();
    assert_eq!(bench.doors.counts(), Counts { handed_over: 0, waiting: 0, ended });
    // An answer that comes too late is nobody's.
    bench.doors.prepared(&mut bench.effects);
    assert_eq!(bench.take(), [Effect::HangUp], "{one:?}");
}

#[test]
fn at_the_end_nobody_is_accepted_and_who_waits_is_served() {
    let mut bench = Bench::new(&[1, 2]);
    bench.client(1);
    bench.answer();
    bench.client(2);
    bench.take();
    bench.doors.stop(&mut bench.effects);
    assert_eq!(bench.take(), [0, 1, 2].map(|number| Effect::Pause(name(number))));
    bench.pass(BOUNDS.words);
    assert_eq!((bench.doors.pending(), bench.take()), (1, vec![]));
    bench.answer();
    assert_eq!((bench.doors.pending(), bench.doors.clients.len()), (0, 2));
    // A container that comes now waits for the next gate.
    bench.doors.set(&name(4), container(4, true));
    bench.pass(Duration::ZERO);
    assert!(!bench.take().contains(&Effect::Resume(name(4))));
}

#[derive(Debug, Clone)]
enum Event {
    Accept(u32, u32),
    Say(usize, u8, u32),
    Leave(usize),
    Prepared,
    Refused,
    Answer,
    Fail(Failure),
    Pass(u64),
    Die(u32),
    Hide(u32),
    Set(u32, bool),
    Remove(u32),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..10_u32).prop_map(|pid| Event::Accept(pid % 3, pid)),
        2 => ((0..3_u32), 0..=OUTSIDE).prop_map(|(door, pid)| Event::Accept(door, pid)),
        8 => (0..12_usize, 0..6_u8, 1..10_u32).prop_map(|(at, what, pid)| Event::Say(at, what, pid)),
        1 => (0..12_usize).prop_map(Event::Leave),
        3 => Just(Event::Prepared),
        1 => Just(Event::Refused),
        3 => Just(Event::Answer),
        1 => prop::sample::select(vec![Failure::Unreachable, Failure::Later, Failure::NoAnswer])
            .prop_map(Event::Fail),
        2 => (0..40_000_u64).prop_map(Event::Pass),
        1 => (1..10_u32).prop_map(Event::Die),
        1 => (1..10_u32).prop_map(Event::Hide),
        2 => ((0..3_u32), any::<bool>()).prop_map(|(number, active)| Event::Set(number, active)),
        1 => (0..3_u32).prop_map(Event::Remove),
    ]
}

proptest! {
    /// The edge's side, kept here: which connections are open, and whether the daemon is called.
    #[test]
    fn whatever_happens(events in prop::collection::vec(event(), 1..120)) {
        let mut bench = Bench::new(&[0, 1]);
        let mut open: BTreeMap<ClientId, u32> = BTreeMap::new();
        let mut handed: BTreeMap<Instance, u64> = BTreeMap::new();
        let mut said: BTreeMap<ClientId, Vec<(u8, u32)>> = BTreeMap::new();
        let mut called: Option<ClientId> = None;
        let mut prepared: Option<Instance> = None;
        for event in events {
            let pick = |at: usize| open.keys().nth(at % open.len().max(1)).copied();
            match event {
                Event::Accept(door, pid) => {
                    let at = name(door);
                    let Some(before) = bench.doors.doors.get(&at) else { continue };
                    let from = before.accepts_from(&BOUNDS, bench.now);
                    let is_its = pid > 0 && pid < OUTSIDE && pid % 3 == door
                        && !bench.kernel.dead.contains(&pid) && !bench.kernel.hidden.contains(&pid);
                    let is_active = before.container.cgroup.is_some();
                    match bench.accept_at(door, pid) {
                        Some(id) => { open.insert(id, pid); }
                        None => prop_assert!(!is_its),
                    }
                    if is_active && !is_its {
                        let now = bench.doors.doors[&at].accepts_from(&BOUNDS, bench.now);
                        prop_assert_eq!(from, now, "it took what is the container's");
                    }
                }
                Event::Say(at, what, pid) => {
                    if let Some(id) = pick(at) {
                        // Mostly the one that connected speaks.
                        let pid = if what < 4 { open[&id] } else { pid };
                        said.entry(id).or_default().push((what % 4, pid));
                        let two = Word::Client.bytes();
                        let bytes: &[u8] = match what % 4 {
                            0 => crate::mps_wire::CREDENTIALS,
                            1 => &two,
                            2 => &[4, 0, 0, 0],
                            _ => b"",
                        };
                        bench.say(id, bytes, pid, 1000);
                    }
                }
                Event::Leave(at) => {
                    if let Some(id) = pick(at) {
                        bench.doors.left(id, bench.now, &bench.kernel, &mut bench.effects);
                    }
                }
                Event::Prepared if prepared.is_some() && called.is_none() => {
                    bench.doors.prepared(&mut bench.effects);
                }
                Event::Refused if prepared.is_some() && called.is_none() => {
                    bench.doors.refused(bench.now, &bench.kernel, &mut bench.effects);
                }
                Event::Answer if called.is_some() => bench.answer(),
                Event::Fail(failure) if prepared.is_some() => bench.fail(failure),
                Event::Prepared | Event::Refused | Event::Answer | Event::Fail(_) => {}
                Event::Pass(ms) => bench.pass(Duration::from_millis(ms)),
                Event::Die(pid) => { bench.kernel.dead.insert(pid); }
                Event::Hide(pid) => {
                    if !bench.kernel.hidden.remove(&pid) {
                        bench.kernel.hidden.insert(pid);
                    }
                }
                Event::Set(number, active) => {
                    bench.doors.set(&name(number), container(number, active));
                }
                Event::Remove(number) => {
                    handed.remove(&name(number));
                    bench.doors.remove(&name(number), &mut bench.effects);
                }
            }
            for effect in bench.take() {
                match effect {
                    Effect::Close(id) => prop_assert!(open.remove(&id).is_some(), "closed twice"),
                    Effect::Prepare(door, _) => {
                        prop_assert_eq!(prepared.replace(door), None, "two at a time");
                    }
                    Effect::Call(id, sender, word) => {
                        let door = name(open[&id] % 3);
                        prop_assert_eq!(&prepared, &Some(door), "not prepared for its own");
                        prop_assert_eq!(called.replace(id), None, "two calls at a time");
                        prop_assert_eq!((sender.pid, word), (open[&id], Word::Client));
                    }
                    Effect::HangUp => (called, prepared) = (None, None),
                    Effect::HandOver(id, known, count) => {
                        prop_assert_eq!(called, Some(id));
                        let handed = handed.entry(known.door.clone()).or_default();
                        *handed += 1;
                        prop_assert_eq!(count, *handed);
                        // It said these two things, itself, and nothing else; it lives, and its
                        // container has a grant.
                        let pid = open[&id];
                        prop_assert_eq!(&said[&id], &[(0, pid), (1, pid)]);
                        prop_assert!(!bench.kernel.dead.contains(&pid));
                        prop_assert!(!bench.kernel.hidden.contains(&pid));
                        let door = bench.doors.container(&known.door);
                        prop_assert!(door.is_some_and(|door| door.cgroup.is_some()));
                        prop_assert_eq!(&known.door, &name(pid % 3));
                    }
                    Effect::Ended(..) | Effect::Pause(_) | Effect::Resume(_) => {}
                }
            }
            prop_assert_eq!(bench.doors.clients.len(), open.len());
            for door in bench.doors.doors.values() {
                prop_assert!(door.waiting.len() <= BOUNDS.waiting + 1);
                prop_assert!(door.handed.len() <= BOUNDS.handed);
                prop_assert!(door.unreadable.len() <= BOUNDS.unreadable);
            }
            let at = |stage| bench.doors.clients.values().filter(|it| it.stage == stage).count();
            let doors = || bench.doors.doors.values();
            prop_assert_eq!(at(Stage::Talking), doors().map(|door| door.greeted).sum::<usize>());
            let unreadable = doors().map(|door| door.unreadable.len()).sum::<usize>();
            prop_assert_eq!(at(Stage::Unreadable), unreadable);
        }
        // Nobody stays for ever.
        for _ in 0..4 {
            bench.pass(BOUNDS.words + BOUNDS.wait + BOUNDS.linger);
        }
        prop_assert_eq!(bench.doors.clients.len(), 0);
        prop_assert!(bench.doors.turns.is_empty() && bench.doors.handing.is_none());
    }
}
