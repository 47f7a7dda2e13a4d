//! What follows from each event in each state of a card, as golden text (`MPSGATE_BLESS=1` rewrites
//! it), and what holds whatever happens in whatever order.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::mem::discriminant;
use std::time::Duration;

use mpsgate_api::{Activate, ControlState, ServerState, ServerStatus};
use mpsgate_config::Schedule;
use mpsgate_model::door_file::{Counts, Reason};
use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{ComputeMode, GrantKey, Instance, Mib, OneOf, Question, WedgeCause};
use mpsgate_node::card::{
    Card, CardEvent, CardNews, Closing, Control, GateSeen, Health, ManagedBy, Seen, Trouble, View,
    Watched,
};
use mpsgate_node::sharing::Want;
use mpsgate_node::{Effect, Node};
use mpsgate_policy::{Condition, SharedMemory};
use mpsgate_testing::golden;
use proptest::prelude::*;

use crate::asked::{ID, no};
use crate::fixture::{ALL, HOLDER, INIT, call, control, happens, node, now, seen, uuid};

const CARD: u8 = 0;
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/card.txt");

/// Of one server, which takes clients of uid 1000.
fn view(state: ControlState) -> View {
    let status = Some(OneOf::Known(ServerState::Active));
    View::new(state, vec![ServerStatus { pid: 301, uid: Some(1000), status }])
}

fn answers() -> CardEvent {
    let view = View { shared_memory: Some(SharedMemory::Anonymous), ..view(ControlState::Running) };
    CardEvent::Answers(Box::new(Control { limit: Mib(1024), view, ..control(false) }))
}

fn trouble() -> Trouble {
    Trouble::new("WHY", "HINT")
}

/// A step of the node: what happens to the card, or another schedule that the settings want.
#[derive(Debug, Clone)]
enum Step {
    Card(CardEvent),
    Schedule(Schedule),
}

impl Step {
    fn take(self, node: &mut Node, card: u8) -> Vec<Effect> {
        let mut effects = Vec::new();
        match self {
            Self::Card(event) => node.apply(&uuid(card), event, now(), &mut effects),
            Self::Schedule(schedule) => {
                node.schedule.want(Want::Settings(schedule));
                node.advance();
            }
        }
        effects
    }

    fn words(&self) -> String {
        match self {
            Self::Card(event) => words(event),
            Self::Schedule(schedule) => format!("the settings want schedule {schedule}"),
        }
    }
}

/// One without a word does not compile: it is to be listed in [`steps`], too.
fn words(event: &CardEvent) -> String {
    match event {
        CardEvent::Seen(seen) => format!(
            "NVML shows it, {}, as GPU {} in compute mode {}",
            if seen.is_named { "named by the settings" } else { "not named by the settings" },
            seen.index,
            seen.compute_mode
        ),
        CardEvent::Vanished(None) => "NVML does not show it any more".to_owned(),
        CardEvent::Vanished(Some(_)) => "NVML says why it does not show it".to_owned(),
        CardEvent::HandedOver(by) => format!("it is handed over by {by:?}"),
        CardEvent::TakenBack => "it was taken back".to_owned(),
        CardEvent::Kept(by) => format!("it stays managed, by {by:?}"),
        CardEvent::Closed(Closing::TakeBack) => "a command begins to take it back".to_owned(),
        CardEvent::Closed(Closing::Restart) => "a command begins to restart its MPS".to_owned(),
        CardEvent::Reopened => "that command has ended".to_owned(),
        CardEvent::StopWanted => "the operator wants its MPS stopped".to_owned(),
        CardEvent::StartWanted => "the operator wants its MPS again".to_owned(),
        CardEvent::Stopped => "its MPS was ended for good".to_owned(),
        CardEvent::Shared(mode) => format!("it is shared without MPS in compute mode {mode}"),
        CardEvent::Unfit(schedule, _) => format!("it cannot be shared under schedule {schedule}"),
        CardEvent::Failed(schedule, _) => format!("preparing it for schedule {schedule} failed"),
        CardEvent::Answers(_) => "its control daemon answers".to_owned(),
        CardEvent::Silent(_) => "a control daemon is found that does not answer".to_owned(),
        CardEvent::Viewed(view) => match (&view.cause, &view.trouble) {
            (Some(_), _) => "its control daemon does not answer: somebody stopped it".to_owned(),
            (None, Some(_)) => "its control daemon cannot be asked".to_owned(),
            (None, None) => format!("its control daemon is looked at: {:?}", view.state),
        },
        CardEvent::Looked(Some(_), _) => "a look finds its files unsafe".to_owned(),
        CardEvent::Looked(None, GateSeen::Serves) => "a look finds all well".to_owned(),
        CardEvent::Looked(None, GateSeen::Started) => "a look had to start its gate".to_owned(),
        CardEvent::Looked(None, GateSeen::Missing(_)) => "a look could start no gate".to_owned(),
        CardEvent::GateUnserved(_) => "its gate says that it cannot serve".to_owned(),
        CardEvent::GateCounts(..) => "its gate tells what became of clients".to_owned(),
        CardEvent::Blamed(_) => "the log blames a client for a fault".to_owned(),
        CardEvent::ServerBegan => "the log tells of a new server".to_owned(),
        CardEvent::ServerWanted => "a server for another uid is wanted".to_owned(),
        CardEvent::Serverless => "no server came, as the card is simulated".to_owned(),
        CardEvent::LimitSet(_) => "its default limit was set".to_owned(),
        CardEvent::ModeRetaken(false) => "its compute mode is seen to be MPS'".to_owned(),
        CardEvent::ModeRetaken(true) => "its compute mode was changed back".to_owned(),
        CardEvent::ModeForeign(_) => "its compute mode cannot be changed back".to_owned(),
        CardEvent::ClientsLost(_) => "the CUDA clients on it have lost it".to_owned(),
        CardEvent::Died(_) => "its control daemon died".to_owned(),
        CardEvent::Orphaned(_) => "its control daemon died, and servers hold the card".to_owned(),
        CardEvent::Ended => "its control daemon was ended to be started again".to_owned(),
        CardEvent::MostClients(_) => "the settings want another number of clients".to_owned(),
        CardEvent::Watched(..) => "the watchdog has looked".to_owned(),
        CardEvent::NotWatched(..) => "the watchdog could not look".to_owned(),
        CardEvent::Others(..) => "processes without a grant use it".to_owned(),
        CardEvent::Untold(_) => "gate or NVML tell nothing for 5 s".to_owned(),
        CardEvent::CgroupLimit(None) => "the driver holds a cgroup to its grant".to_owned(),
        CardEvent::CgroupLimit(Some(_)) => "the driver holds no cgroup to its grant".to_owned(),
    }
}

/// All that can happen.
fn steps() -> Vec<Step> {
    let shown = |seen: Seen| CardEvent::Seen(Box::new(seen));
    let counts = Counts {
        handed_over: 9,
        waiting: 1,
        ended: BTreeMap::from([(Reason::Waited, 2), (Reason::Ended, 1)]),
    };
    let cannot_be_asked = View { trouble: Some(trouble()), ..View::wedged(None) };
    let events = [
        shown(seen(0, 3)),
        shown(Seen { index: 2, compute_mode: ComputeMode::Default, is_named: false, ..seen(2, 3) }),
        CardEvent::Vanished(None),
        CardEvent::Vanished(Some(trouble())),
        CardEvent::HandedOver(ManagedBy::Settings),
        CardEvent::HandedOver(ManagedBy::Operator),
        CardEvent::TakenBack,
        CardEvent::Kept(ManagedBy::Operator),
        CardEvent::Closed(Closing::TakeBack),
        CardEvent::Closed(Closing::Restart),
        CardEvent::Reopened,
        CardEvent::StopWanted,
        CardEvent::StartWanted,
        CardEvent::Stopped,
        CardEvent::Shared(ComputeMode::Default),
        CardEvent::Shared(ComputeMode::ExclusiveProcess),
        CardEvent::Unfit(Schedule::Mps, trouble()),
        CardEvent::Unfit(Schedule::Share, trouble()),
        CardEvent::Failed(Schedule::Mps, trouble()),
        CardEvent::Failed(Schedule::Share, trouble()),
        answers(),
        CardEvent::Silent(299),
        CardEvent::Viewed(view(ControlState::Running)),
        CardEvent::Viewed(view(ControlState::Fault)),
        CardEvent::Viewed(View::new(ControlState::Dead, Vec::new())),
        CardEvent::Viewed(View::wedged(None)),
        CardEvent::Viewed(View::wedged(Some(WedgeCause::Stopped))),
        CardEvent::Viewed(cannot_be_asked),
        CardEvent::Looked(None, GateSeen::Serves),
        CardEvent::Looked(None, GateSeen::Started),
        CardEvent::Looked(None, GateSeen::Missing(trouble())),
        CardEvent::Looked(Some(trouble()), GateSeen::Serves),
        CardEvent::GateUnserved("WHY".to_owned()),
        CardEvent::GateCounts(counts, Some(ProcessId { pid: 20, start_time: 1 })),
        CardEvent::Blamed("container web".to_owned()),
        CardEvent::ServerBegan,
        CardEvent::ServerWanted,
        CardEvent::Serverless,
        CardEvent::LimitSet(Mib(512)),
        CardEvent::ModeRetaken(false),
        CardEvent::ModeRetaken(true),
        CardEvent::ModeForeign(trouble()),
        CardEvent::ClientsLost(7),
        CardEvent::Died(Duration::from_secs(4)),
        CardEvent::Orphaned(vec![301, 302]),
        CardEvent::Ended,
        CardEvent::MostClients(16),
        CardEvent::Watched(Box::new(Watched { enforced: true, ..Watched::default() }), false),
        CardEvent::NotWatched("WHY".to_owned(), false),
        CardEvent::Others(vec![77], Some(0)),
        CardEvent::Untold(Duration::from_secs(5)),
        CardEvent::CgroupLimit(None),
        CardEvent::CgroupLimit(Some(trouble())),
    ];
    let schedules = [Schedule::Mps, Schedule::Share].map(Step::Schedule);
    events.map(Step::Card).into_iter().chain(schedules).collect()
}

/// Nothing is known of any card.
fn empty() -> Node {
    Node::new(mpsgate_model::ledger::Ledger::default())
}

fn after(mut node: Node, events: impl IntoIterator<Item = CardEvent>) -> Node {
    events.into_iter().for_each(|event| happens(&mut node, CARD, event));
    node
}

/// A ready card, and a running container `web` with 1 GiB of it.
fn granted() -> Node {
    let mut node = after(node(), [answers()]);
    reserve(&mut node, "web", 1).unwrap();
    node
}

fn reserve(node: &mut Node, name: &str, instance: u8) -> Option<GrantKey> {
    let mut call = call(name, 1);
    call.key.instance = Instance::from_bytes([instance; 16]);
    let reserved = node.reserve(&call, None, HOLDER, &ALL, 0, &mut Vec::new());
    let key = reserved.ok()?.grant.key;
    let activate = Activate { key: key.clone(), pid: INIT.pid, cgroup: None, grant: None };
    node.activate(&activate, INIT, &ALL, 0, &mut Vec::new()).unwrap();
    Some(key)
}

fn shared() -> Node {
    let mut node = node();
    Step::Schedule(Schedule::Share).take(&mut node, CARD);
    node
}

/// A state in words, and how it is reached.
type Stage = (&'static str, fn() -> Node);

const STATES: [Stage; 17] = [
    ("not known", empty),
    ("not managed", || after(node(), [CardEvent::TakenBack])),
    ("handed over, and not tried yet", || {
        after(node(), [CardEvent::HandedOver(ManagedBy::Settings)])
    }),
    ("unfit", || after(node(), [CardEvent::Unfit(Schedule::Mps, trouble())])),
    ("could not be prepared", || after(node(), [CardEvent::Failed(Schedule::Mps, trouble())])),
    ("ready, and web has a grant", granted),
    ("in FAULT, and web has a grant", || {
        after(granted(), [CardEvent::Viewed(view(ControlState::Fault))])
    }),
    ("does not answer, and web has a grant", || {
        after(granted(), [CardEvent::Viewed(View::wedged(Some(WedgeCause::LogBlocked)))])
    }),
    ("without a gate, and web has a grant", || {
        after(granted(), [CardEvent::Looked(None, GateSeen::Missing(trouble()))])
    }),
    ("usable without MPS, and web has a grant", || {
        after(granted(), [CardEvent::ModeForeign(trouble())])
    }),
    ("lost its control daemon, and web's grant is broken", || {
        after(granted(), [CardEvent::ClientsLost(5), CardEvent::Died(Duration::from_secs(1))])
    }),
    ("stopped by the operator", || after(node(), [CardEvent::StopWanted, CardEvent::Stopped])),
    ("being restarted by the operator, and web has a grant", || {
        after(granted(), [CardEvent::Closed(Closing::Restart)])
    }),
    ("not shown by NVML, and web has a grant", || after(granted(), [CardEvent::Vanished(None)])),
    ("ready, and being asked", || {
        let mut node = after(node(), [answers()]);
        node.begin_asking("0", ID, "soon").unwrap();
        node
    }),
    ("to be shared without MPS, and not yet", shared),
    ("shared without MPS", || after(shared(), [CardEvent::Shared(ComputeMode::Default)])),
];

fn condition(node: &Node, card: &Card) -> String {
    match node.condition(card) {
        Condition::Ready => "yes".to_owned(),
        Condition::Unfit { why, hint } => format!("never: it {why} [{hint}]"),
        Condition::Unhealthy { why, hint } | Condition::NotReady { why, hint } => {
            format!("no: it {why} [{hint}]")
        }
    }
}

fn mps(card: &Card) -> String {
    let Some(mps) = card.mps() else { return "none".to_owned() };
    let servers = mps.servers.iter().map(|server| format!(", server {}", server.pid));
    let pid = mps.pid.map(|pid| format!(", pid {pid}"));
    let limit = mps.default_limit_mib.map(|mib| format!(", default limit {mib} MiB"));
    let parts = pid.into_iter().chain(limit).chain(servers);
    format!("{}{}", mps.state.as_str(), parts.collect::<String>())
}

/// All that can be seen of the card, line by line. An answer is given last: that changes it.
fn parts(node: &mut Node) -> Vec<(&'static str, String)> {
    let remembered = |set: &BTreeSet<_>| if set.contains(&uuid(CARD)) { "yes" } else { "no" };
    let (handed_over, stopped) = (remembered(&node.handed_over), remembered(&node.stopped));
    let mut parts = vec![
        ("handed over, remembered", handed_over.to_owned()),
        ("stopped, remembered", stopped.to_owned()),
    ];
    let entries = node.ledger().entries().iter();
    let grant = |entry: &mpsgate_model::ledger::Entry| {
        format!("{}{}", entry.grant.name(), entry.broken_ms.map_or("", |_| " (broken)"))
    };
    parts.push(("grants", entries.map(grant).collect::<Vec<_>>().join(", ")));
    let Some(card) = node.card(&uuid(CARD)) else { return parts };
    let serves = |uid| if card.has_server_for(uid) { "yes" } else { "no" };
    parts.extend([
        ("card", format!("{}, minor {}, {}", card.name, card.minor, card.memory)),
        ("index", card.index.to_string()),
        ("managed", format!("{:?}", card.managed())),
        ("takes grants", condition(node, card)),
        ("MPS", mps(card)),
        ("serves uid 1000", serves(1000).to_owned()),
        ("most clients", card.max_clients().to_string()),
        ("doors", format!("{:?}", card.ends())),
        ("compute mode", card.compute_mode().map(|mode| mode.to_string()).unwrap_or_default()),
        ("shared memory", format!("{:?}", card.shared_memory())),
        ("gate's clients", format!("{:?}", card.gate().map(|counts| counts.handed_over))),
        ("watchdog", format!("{} looks, blind: {:?}", card.watched().looks, card.watched().blind)),
        ("not limited by cgroup", format!("{:?}", card.unlimited().map(|trouble| &trouble.why))),
    ]);
    if let Some(answer) = node.take_answer(ID, no(Question::Attach)) {
        parts.push(("a no does not count, because", answer.meanwhile));
    }
    parts
}

fn effect(effect: &Effect) -> String {
    match effect {
        Effect::TellChange => "wake who waits for a change".to_owned(),
        Effect::Look => "look at the cards, and start missing card tasks".to_owned(),
        Effect::CheckComputeMode(_) => "have the card task see to the compute mode".to_owned(),
        Effect::TellCard(_, _, news) => match news {
            CardNews::Ready(_) => "log: card ready".to_owned(),
            CardNews::NotReady(_) => "log: card not ready".to_owned(),
            CardNews::Answers(..) => "log: control daemon answers".to_owned(),
            CardNews::SharedMemory(seen) => format!("log: shared memory is {}", seen.as_str()),
            CardNews::Back => "log: card is back".to_owned(),
            CardNews::Lost(_) => "log: card lost".to_owned(),
            CardNews::Kept => "log: it has grants and stays managed".to_owned(),
            CardNews::Broken(names) => format!("log: grants broken: {}", names.join(", ")),
            CardNews::Unlimited(_) => "log: no limit by cgroup".to_owned(),
        },
        other => format!("{other:?}"),
    }
}

#[test]
fn each_transition_is_as_recorded() {
    let mut text = String::new();
    for (name, state) in STATES {
        writeln!(text, "# {name}").unwrap();
        let before = parts(&mut state());
        for (what, part) in &before {
            writeln!(text, "{what}: {part}").unwrap();
        }
        let mut nothing = Vec::new();
        for step in steps() {
            let mut node = state();
            let words = step.words();
            let effects = step.take(&mut node, CARD);
            let now = parts(&mut node);
            let changed: Vec<_> = now.iter().filter(|part| !before.contains(part)).collect();
            let is_gone = now.len() < before.len();
            if changed.is_empty() && effects.is_empty() && !is_gone {
                nothing.push(words);
                continue;
            }
            writeln!(text, "- {words}").unwrap();
            if is_gone {
                writeln!(text, "    it is forgotten").unwrap();
            }
            for (what, part) in changed {
                writeln!(text, "    {what}: {part}").unwrap();
            }
            for one in &effects {
                writeln!(text, "    → {}", effect(one)).unwrap();
            }
        }
        writeln!(text, "- nothing follows where {}\n", nothing.join("; where ")).unwrap();
    }
    golden::compare(PATH, &format!("{}\n", text.trim_end()));
}

#[test]
fn each_step_has_words_of_its_own() {
    let words: Vec<String> = steps().iter().map(Step::words).collect();
    assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len(), "{words:?}");
}

/// What is wrong with the card, and what to do.
fn wrong(node: &Node) -> Option<(String, String)> {
    let trouble = node.card(&uuid(CARD)).unwrap().trouble()?;
    Some((trouble.why.clone(), trouble.hint.clone()))
}

#[test]
fn each_cause_of_a_wedge_is_told_with_what_to_do() {
    for (cause, expected, command) in [
        (WedgeCause::Stopped, ": somebody stopped it, pid 300", "kill -CONT 300"),
        (
            WedgeCause::ServerStopped { server: 8 },
            ": somebody stopped its MPS server, pid 8",
            "kill -CONT 8",
        ),
        (WedgeCause::LogBlocked, ": its log was full", "mpsgate mps restart GPU"),
        (WedgeCause::Unknown, "", "cat /proc/300/stack"),
    ] {
        let node = after(node(), [CardEvent::Viewed(View::wedged(Some(cause)))]);
        let (why, hint) = wrong(&node).unwrap();
        assert_eq!(why, format!("has an MPS control daemon that does not answer{expected}"));
        assert!(hint.contains(command), "{hint}");
    }
}

#[test]
fn a_gate_may_be_started_at_two_looks_and_is_believed_for_15_s_that_it_cannot_serve() {
    let (mut node, start) = (node(), now());
    let mut at = |seconds, event| {
        node.apply(&uuid(CARD), event, start + Duration::from_secs(seconds), &mut Vec::new());
        wrong(&node).map(|(why, _)| why)
    };
    let look = |gate| CardEvent::Looked(None, gate);
    for _ in 0..2 {
        assert_eq!(at(0, look(GateSeen::Started)), None);
    }
    let again = at(0, look(GateSeen::Started)).unwrap();
    assert_eq!(again, "has a gate that ends again and again");
    assert_eq!(at(0, look(GateSeen::Serves)), None);
    let unserved = "has a gate that cannot serve its MPS control daemon: WHY";
    assert_eq!(at(0, CardEvent::GateUnserved("WHY".to_owned())).as_deref(), Some(unserved));
    assert_eq!(at(14, look(GateSeen::Serves)).as_deref(), Some(unserved));
    assert_eq!(at(15, look(GateSeen::Serves)), None);
}

/// What happens to one of two cards, or to their grants.
#[derive(Debug, Clone)]
enum Move {
    Step(u8, Step),
    Reserve(u8),
    Release(u8),
    Ask,
    EndAsking,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let step = (0_u8..2, prop::sample::select(steps())).prop_map(|(n, step)| Move::Step(n, step));
    let one = prop_oneof![
        12 => step,
        2 => (0_u8..4).prop_map(Move::Reserve),
        1 => (0_u8..4).prop_map(Move::Release),
        1 => Just(Move::Ask),
        1 => Just(Move::EndAsking),
    ];
    prop::collection::vec(one, 1..60)
}

fn broken(node: &Node) -> BTreeSet<GrantKey> {
    let broken = node.ledger().entries().iter().filter(|entry| entry.broken_ms.is_some());
    broken.map(|entry| entry.grant.key.clone()).collect()
}

/// The cards that take grants, by their place in the test.
fn takers(node: &Node) -> BTreeSet<String> {
    let takes = |card: &&Card| node.condition(card) == Condition::Ready && card.is_managed();
    node.cards().iter().filter(takes).map(|card| card.uuid.to_string()).collect()
}

/// What holds of each card at any time.
fn check(node: &Node) {
    let mut last = None;
    for card in node.cards() {
        assert!(last.is_none_or(|index| index <= card.index), "the cards are in order");
        last = Some(card.index);
        let is_ready = card.condition() == Condition::Ready;
        let is_kept_from = card.is_lost() || card.is_closed();
        assert!(!is_ready || !is_kept_from, "a lost or closed card takes nobody");
        assert!(card.is_managed() || card.mps().is_none(), "MPS of a card that is not managed");
        let state = card.mps().map(|mps| mps.state);
        let is_bad = [ControlState::Wedged, ControlState::Fault]
            .iter()
            .any(|bad| state == Some(OneOf::Known(*bad)));
        assert!(!is_bad || *card.health() != Health::Ready, "{state:?} and ready");
        assert_eq!(card.is_wedged(), state == Some(OneOf::Known(ControlState::Wedged)));
        if card.control_pid().is_none() {
            assert!(card.servers().is_empty() && card.cap() == Mib(0), "servers of no daemon");
            assert!(!card.has_server_for(1000) || card.is_serverless(), "a server of no daemon");
        }
        let uuids = node.cards().iter().filter(|other| other.uuid == card.uuid);
        assert_eq!(uuids.count(), 1, "a card is there once");
    }
}

/// Whose word it is that a card is well: they have seen its MPS, or its compute mode.
fn sees(step: &Step) -> bool {
    let Step::Card(event) = step else { return false };
    let seers = [
        answers(),
        CardEvent::Viewed(view(ControlState::Running)),
        CardEvent::Looked(None, GateSeen::Serves),
        CardEvent::Blamed(String::new()),
        CardEvent::Shared(ComputeMode::Default),
    ];
    seers.iter().any(|seer| discriminant(seer) == discriminant(event))
}

fn healthy(node: &Node, n: u8) -> bool {
    node.card(&uuid(n)).is_some_and(|card| *card.health() == Health::Ready)
}

fn step(node: &mut Node, n: u8, step: Step) {
    let (was_healthy, was_broken) = (healthy(node, n), broken(node));
    let (sees, words) = (sees(&step), step.words());
    let effects = step.take(node, n);
    assert!(was_broken.is_subset(&broken(node)), "a broken grant is whole again: {words}");
    if !was_healthy && healthy(node, n) {
        assert!(sees, "nobody has seen that it is well: {words}");
        let is_logged =
            |effect: &Effect| matches!(effect, Effect::TellCard(_, _, CardNews::Ready(_)));
        assert!(effects.iter().any(is_logged), "well again, and not logged: {words}");
        assert!(effects.contains(&Effect::TellChange), "well again, and not told: {words}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn whatever_happens_in_whatever_order_the_cards_stay_in_order(moves in moves()) {
        let mut node = node();
        for one in moves {
            match one {
                Move::Step(n, what) => step(&mut node, n, what),
                Move::Reserve(n) => {
                    let (takers, grants) = (takers(&node), node.ledger().entries().len());
                    let key = reserve(&mut node, &format!("c-{n}"), n + 1);
                    if let Some(entry) = key.and_then(|key| node.ledger().get(&key))
                        && node.ledger().entries().len() > grants
                    {
                        let all_take =
                            entry.grant.cards.iter().all(|c| takers.contains(c.uuid.as_str()));
                        prop_assert!(all_take, "{takers:?} {:?}", entry.grant.cards);
                    }
                }
                Move::Release(n) => {
                    let mut key = call(&format!("c-{n}"), 1).key;
                    key.instance = Instance::from_bytes([n + 1; 16]);
                    node.release(&key, "released", &mut Vec::new());
                }
                Move::Ask => drop(node.begin_asking("0", ID, "soon")),
                Move::EndAsking => drop(node.end_asking(ID)),
            }
            check(&node);
        }
    }
}
