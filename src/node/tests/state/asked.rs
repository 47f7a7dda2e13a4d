//! A card that is being asked: whose containers it takes, and which answers count.

use std::collections::BTreeMap;
use std::time::Duration;

use mpsgate_api::{Engine, Reserve};
use mpsgate_config::paths::QUALIFY_ROOT;
use mpsgate_model::door_file::{Counts, Reason};
use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{Answer, Code, GpuSelector, GrantKey, Question, Verdict};
use mpsgate_node::Node;
use mpsgate_node::card::{CardEvent, Trouble};

use crate::fixture::{ALL, HOLDER, call, control, happens, node, uuid};

pub(crate) const ID: &str = "mpsgate-qualify-0897a975fd16f0d8";

#[test]
fn who_asks_a_card_is_known_by_runtime_root_and_caller_and_not_by_name() {
    let (alice, runc) = (GrantKey::run_of(Some(1000)), "/run/runc".to_owned());
    let qualify = QUALIFY_ROOT.to_owned();
    let (first, named) = (format!("{ID}-0"), format!("{ID}x"));
    let (first, named) = (first.as_str(), named.as_str());
    for (root, name, engine, kubelet, asks) in [
        (&qualify, first, Engine::Local, false, true),
        // Root's word, also where local engines are not trusted.
        (&qualify, first, Engine::Local, true, true),
        (&qualify, first, Engine::Kubernetes, true, false),
        (&qualify, "web", Engine::Local, false, false),
        (&runc, first, Engine::Local, false, false),
        (&runc, first, Engine::Local, true, false),
        (&alice, named, Engine::User, false, false),
        (&alice, first, Engine::User, true, false),
    ] {
        let mut node = node();
        node.kubelet = kubelet;
        node.begin_asking("0", ID, "soon").unwrap();
        let mut call = Reserve { engine, ..call(name, 1) };
        root.clone_into(&mut call.key.runtime_root);
        call.request.gpu = Some(GpuSelector::Uuid(uuid(0)));
        let reserved = node.reserve(&call, None, HOLDER, &ALL, 0, &mut Vec::new());
        assert_eq!(reserved.is_ok(), asks, "{root} {name} {engine:?} {reserved:?}");
        if let Err(refusal) = reserved {
            let waits = [Code::GpuNotReady, Code::Unconfirmed].contains(&refusal.code);
            assert!(waits, "{refusal:?}");
        }
        let is_kept_waiting = !(root == QUALIFY_ROOT && name == first);
        assert_eq!(node.is_asked_by_others(&call.key), is_kept_waiting);
    }
}

pub(crate) fn no(question: Question) -> Answer {
    Answer {
        question,
        expected: String::new(),
        seen: "no answer in time".to_owned(),
        verdict: Verdict::No,
        evidence: String::new(),
        meanwhile: String::new(),
        mib: None,
        granted_mib: None,
        took_ms: 1,
        at_ms: 2,
    }
}

const GATE: ProcessId = ProcessId { pid: 20, start_time: 1 };
const NEXT: ProcessId = ProcessId { pid: 21, start_time: 9 };

fn counts(handed_over: u64, ended: &[(Reason, u64)]) -> Counts {
    Counts { handed_over, waiting: 0, ended: BTreeMap::from_iter(ended.iter().copied()) }
}

fn counted(counts: Counts, gate: ProcessId) -> CardEvent {
    CardEvent::GateCounts(counts, Some(gate))
}

fn died() -> CardEvent {
    CardEvent::Died(Duration::from_secs(1))
}

#[test]
fn a_no_counts_where_nothing_else_was_seen_of_the_card_meanwhile() {
    type Event = fn(&mut Node);
    let cases: [(&str, Event, &str); 15] = [
        ("nothing", |_| {}, ""),
        (
            "a moment without its control daemon",
            |node| {
                happens(node, 0, died());
                happens(node, 0, CardEvent::Answers(Box::new(control(false))));
            },
            "it lost its MPS control daemon, which is started again in 1 s; its control daemon was \
             started or found anew",
        ),
        (
            "it is closed",
            |node| happens(node, 0, CardEvent::StopWanted),
            "it was stopped by the operator",
        ),
        (
            "it is lost",
            |node| happens(node, 0, CardEvent::Vanished(Some(Trouble::new("it fell off", "")))),
            "it does not answer: it fell off",
        ),
        (
            "NVML is away",
            |node| node.driver.trouble = Some(Trouble::new("driver not loaded", "")),
            "the NVIDIA driver does not answer: driver not loaded",
        ),
        ("clients were handed over", |node| happens(node, 0, counted(counts(9, &[]), GATE)), ""),
        (
            "its gate ended a client",
            |node| happens(node, 0, counted(counts(1, &[(Reason::Waited, 3)]), GATE)),
            "its gate ended clients (waited 1)",
        ),
        (
            "the question's own client was ended with its container",
            |node| {
                happens(
                    node,
                    0,
                    counted(counts(1, &[(Reason::Waited, 2), (Reason::Ended, 1)]), GATE),
                )
            },
            "",
        ),
        (
            "another gate",
            |node| happens(node, 0, counted(counts(0, &[]), NEXT)),
            "its gate was started anew",
        ),
        (
            "another gate, which has ended clients",
            |node| happens(node, 0, counted(counts(0, &[(Reason::Silent, 2)]), NEXT)),
            "its gate was started anew; its gate ended clients (silent 2)",
        ),
        (
            "a process of nobody",
            |node| happens(node, 0, CardEvent::Others(vec![77, 78], Some(0))),
            "processes without a grant used it: pid 77, 78",
        ),
        ("a desktop", |node| happens(node, 0, CardEvent::Others(vec![], Some(900 << 20))), ""),
        (
            "a desktop that grows a little",
            |node| {
                happens(node, 0, CardEvent::Others(vec![], Some(900 << 20)));
                happens(node, 0, CardEvent::Others(vec![], Some(1100 << 20)));
            },
            "",
        ),
        (
            "a desktop that takes a part of the card",
            |node| {
                happens(node, 0, CardEvent::Others(vec![], Some(900 << 20)));
                happens(node, 0, CardEvent::Others(vec![], Some(9000 << 20)));
            },
            "processes without a grant took 8100 MiB more of it",
        ),
        (
            "what cannot be told",
            |node| {
                happens(node, 0, CardEvent::Others(vec![], Some(0)));
                happens(node, 0, CardEvent::Others(vec![], None));
            },
            "",
        ),
    ];
    for (what, event, meanwhile) in cases {
        let mut node = node();
        happens(&mut node, 0, counted(counts(1, &[(Reason::Waited, 2)]), GATE));
        node.begin_asking("0", ID, "soon").unwrap();
        event(&mut node);
        let judged = node.take_answer(ID, no(Question::Attach)).unwrap();
        assert_eq!(judged.meanwhile, meanwhile, "{what}");
        let verdict = if meanwhile.is_empty() { Verdict::No } else { Verdict::Unanswered };
        assert_eq!(judged.verdict, verdict, "{what}");
        assert_eq!(node.end_asking(ID).unwrap().answers, [judged]);
        assert_eq!(node.take_answer(ID, no(Question::Attach)), None, "it is over");
    }
}

#[test]
fn what_happened_during_one_question_is_nothing_to_the_next() {
    let mut node = node();
    node.begin_asking("0", ID, "soon").unwrap();
    happens(&mut node, 0, CardEvent::Others(vec![77], None));
    let verdict = |node: &mut Node, question| node.take_answer(ID, no(question)).unwrap().verdict;
    assert_eq!(verdict(&mut node, Question::Attach), Verdict::Unanswered);
    assert_eq!(verdict(&mut node, Question::Limit), Verdict::No);
    // As long as it lasts it is.
    happens(&mut node, 0, died());
    assert_eq!(verdict(&mut node, Question::Commands), Verdict::Unanswered);
    assert_eq!(verdict(&mut node, Question::Processes), Verdict::Unanswered);
    // A question that is asked twice has one answer.
    assert_eq!(verdict(&mut node, Question::Attach), Verdict::Unanswered);
    let answers = node.end_asking(ID).unwrap().answers;
    let names: Vec<&str> = answers.iter().map(|answer| answer.question.as_str()).collect();
    assert_eq!(names, ["limit", "commands", "processes", "attach"]);
}
