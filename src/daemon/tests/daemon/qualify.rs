//! `mpsgate qualify`: who may ask a card, who waits meanwhile, and which answers count.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use mpsgate_api::{Asking, Call, CardState, Qualify, Reply, Reserve, WireRefusal};
use mpsgate_config::paths::QUALIFY_ROOT;
use mpsgate_model::{Answer, Question, Verdict};
use serde_json::json;

use crate::harness::{
    Container, Node, Running, key, need, on_card, request, servers, uuid, wait_for,
};

fn begin(daemon: &Running, gpu: &str) -> Result<Asking, WireRefusal> {
    match daemon.call(Call::Qualify(Qualify::Begin { gpu: gpu.to_owned() })) {
        Reply::Asking { asking } => Ok(asking.read().unwrap()),
        Reply::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

/// What counts of an answer.
fn answered(daemon: &Running, id: &str, answer: &str) -> Result<Answer, WireRefusal> {
    let (id, answer) = (id.to_owned(), answer.to_owned().into());
    match daemon.call(Call::Qualify(Qualify::Answer { id, answer })) {
        Reply::Answered { answer } => Ok(answer.read().unwrap()),
        Reply::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

fn end(daemon: &Running, id: &str, keep: bool) -> Result<String, WireRefusal> {
    daemon.done(Call::Qualify(Qualify::End { id: id.to_owned(), keep }))
}

/// As the command sends it.
fn in_json(question: Question, verdict: Verdict) -> String {
    let answer = Answer {
        question,
        expected: question.expected().to_owned(),
        seen: "so it was".to_owned(),
        verdict,
        evidence: String::new(),
        meanwhile: String::new(),
        mib: (question == Question::Processes).then_some(310),
        granted_mib: Some(1024),
        took_ms: 1000,
        at_ms: 1_795_000_000_000,
    };
    serde_json::to_string(&answer).unwrap()
}

/// Card 0 answers every question yes, but for these.
fn asked(daemon: &Running, no: &[Question]) {
    let asking = begin(daemon, "0").unwrap();
    for question in Question::ALL {
        let verdict = if no.contains(&question) { Verdict::No } else { Verdict::Yes };
        let answer = answered(daemon, &asking.id, &in_json(question, verdict)).unwrap();
        assert_eq!((answer.verdict, answer.meanwhile.as_str()), (verdict, ""), "{question:?}");
    }
    end(daemon, &asking.id, true).unwrap();
}

/// Card 0 answers every question yes.
pub(crate) fn qualified(daemon: &Running) {
    asked(daemon, &[]);
}

/// For a container of the command's.
fn own(asking: &Asking, number: u32) -> Reserve {
    let mut call = request(&format!("{}-{number}", asking.id), 1);
    QUALIFY_ROOT.clone_into(&mut call.key.runtime_root);
    call
}

#[test]
fn a_card_is_kept_for_who_asks_it_and_its_answers_count() {
    need!(servers());
    let node = Node::new(2);
    let daemon = node.start();
    let asking = begin(&daemon, "0").unwrap();
    assert_eq!(asking.subject.card.as_str(), uuid(0));
    assert_eq!(daemon.card(0).state, CardState::Qualifying);
    assert_eq!(begin(&daemon, "0").unwrap_err().code, "E_GPU_NOT_READY");
    // Whose container has its id.
    let own = on_card(own(&asking, 0), 0);
    let key = own.key.clone();
    daemon.reserve(own).unwrap();
    daemon.done(Call::Release(mpsgate_api::Release { key })).unwrap();
    // Others have the other card, at once.
    daemon.reserve(request("web", 1)).unwrap();
    assert_eq!(daemon.status().grants[0].card_index, 1);
    for question in Question::ALL {
        answered(&daemon, &asking.id, &in_json(question, Verdict::Yes)).unwrap();
    }
    end(&daemon, &asking.id, true).unwrap();
    let card = daemon.card(0);
    assert_eq!((card.state.as_str(), card.qualify), ("ready", None));
    daemon.reserve(on_card(request("db", 1), 0)).unwrap();
    let grants = daemon.status().grants;
    let proof = |gpu| grants.iter().find(|g| g.card_index == gpu).unwrap().proof.clone();
    assert!(proof(0).starts_with("proven here 2026-"), "{}", proof(0));
    assert_eq!(proof(1), "not tried on this card");
    let file = node.dir.path().join(format!("state/qualification/{}.json", uuid(0)));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // What cannot be asked another time does not take it away.
    assert_eq!(begin(&daemon, "0").unwrap_err().code, "E_GPU_IN_USE");
}

#[test]
fn where_local_engines_are_not_trusted_who_asks_a_card_is_for_that_card() {
    need!(servers());
    let mut node = Node::new(2);
    node.config.trust.local = mpsgate_config::Switch::Off;
    let daemon = node.start();
    let asking = begin(&daemon, "0").unwrap();
    let wants = |mut call: Reserve, gpu| {
        call.request.gpu = Some(mpsgate_model::GpuSelector::Uuid(
            mpsgate_model::GpuUuid::parse(&uuid(gpu)).unwrap(),
        ));
        daemon.reserve(call).map_err(|refusal| refusal.code)
    };
    assert_eq!(wants(request("web", 1), 0).unwrap_err(), "E_UNCONFIRMED");
    assert_eq!(wants(own(&asking, 0), 1).unwrap_err(), "E_UNCONFIRMED");
    // Of its name, and of another engine.
    let named = request(&format!("{}x", asking.id), 1);
    assert_eq!(wants(named, 0).unwrap_err(), "E_UNCONFIRMED");
    wants(own(&asking, 0), 0).unwrap();
    end(&daemon, &asking.id, false).unwrap();
    assert_eq!(wants(own(&asking, 1), 0).unwrap_err(), "E_UNCONFIRMED");
}

#[test]
fn who_comes_meanwhile_waits_and_is_let_in_when_it_is_over() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let asking = begin(&daemon, "0").unwrap();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| daemon.reserve(request("late", 1)));
        wait_for("it is being asked", || daemon.card(0).state == CardState::Qualifying);
        assert!(!late.is_finished());
        end(&daemon, &asking.id, false).unwrap();
        late.join().unwrap().unwrap();
    });
    assert!(daemon.card(0).qualification.is_none());
}

#[test]
fn answers_of_nobody_garbage_and_what_was_not_asked_count_for_nothing() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    assert_eq!(begin(&daemon, "7").unwrap_err().code, "E_UNKNOWN_GPU");
    let attach = in_json(Question::Attach, Verdict::Yes);
    let of_nobody = answered(&daemon, "mpsgate-qualify-0", &attach).unwrap_err();
    assert!(of_nobody.sentence.contains("by that name any more"), "{of_nobody:?}");
    assert_eq!(end(&daemon, "mpsgate-qualify-0", true).unwrap_err(), of_nobody);
    let asking = begin(&daemon, "0").unwrap();
    let garbage = answered(&daemon, &asking.id, "{").unwrap_err();
    assert!(garbage.sentence.contains("cannot be read"), "{garbage:?}");
    // It was broken off: what it answered before that is not kept.
    answered(&daemon, &asking.id, &attach).unwrap();
    end(&daemon, &asking.id, false).unwrap();
    let card = daemon.card(0);
    assert_eq!((card.state.as_str(), card.qualification), ("ready", None));
    let asking = begin(&daemon, "0").unwrap();
    answered(&daemon, &asking.id, &attach).unwrap();
    node.nvml(|state| state["driver_version"] = "599.1".into());
    wait_for("another driver", || daemon.status().driver.as_deref() == Some("599.1"));
    let other = end(&daemon, &asking.id, true).unwrap_err();
    assert!(other.sentence.contains("another one than at the beginning"), "{other:?}");
    assert!(daemon.card(0).qualification.is_none());
}

#[test]
fn an_older_driver_keeps_its_date_and_only_what_holds_steers() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    asked(&daemon, &[Question::Attach, Question::Limit]);
    let card = daemon.card(0);
    assert!(card.state.as_str().contains("let no CUDA client attach"), "{}", card.state);
    assert_eq!(daemon.reserve(request("web", 1)).unwrap_err().code, "E_GPU_UNHEALTHY");
    assert_eq!(card.failures.len(), 1, "{:?}", card.failures);
    node.nvml(|state| state["driver_version"] = "599.1".into());
    wait_for("it is to be asked again", || {
        daemon.card(0).qualify.is_some_and(|why| why.contains("now it is 599.1"))
    });
    // A refusal does not outlive its driver; that its limit did not hold does.
    daemon.reserve(request("web", 1)).unwrap();
    let proof = daemon.status().grants[0].proof.clone();
    assert!(proof.starts_with("limit not held on this card: so it was"), "{proof}");
}

/// What counts of a *no* to `question` during which `disturb` happens.
fn disturbed(daemon: &Running, question: Question, disturb: impl FnOnce()) -> Answer {
    let asking = begin(daemon, "0").unwrap();
    disturb();
    let answer = answered(daemon, &asking.id, &in_json(question, Verdict::No)).unwrap();
    end(daemon, &asking.id, true).unwrap();
    answer
}

#[test]
fn a_no_while_the_control_daemon_ends_is_none_and_is_asked_again() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let pid = node.control_pid(0).unwrap();
    let answer = disturbed(&daemon, Question::Attach, || {
        crate::cards::kill(pid);
        wait_for("it is known", || {
            daemon.card(0).mps.is_some_and(|mps| mps.pid != u32::try_from(pid).ok())
        });
    });
    assert_eq!(answer.verdict, Verdict::Unanswered);
    assert!(answer.meanwhile.contains("it lost its MPS control daemon"), "{}", answer.meanwhile);
    wait_for("the card is ready", || daemon.card(0).state == CardState::Ready);
    let due = daemon.card(0).qualify.unwrap();
    assert!(due.starts_with("no answer counts to attach: meanwhile it "), "{due}");
    daemon.reserve(request("web", 1)).unwrap();
    // Asked again with nothing else about it, it counts.
    daemon.release(&key("web", 1));
    asked(&daemon, &[Question::Limit]);
    let card = daemon.card(0);
    assert_eq!((card.qualify, card.failures.len()), (None, 1), "{:?}", card.failures);
}

#[test]
fn a_no_while_a_process_of_nobody_uses_the_card_is_none() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let stranger = Container::new();
    let used = |kind: &str, mib: u64| {
        let process = json!([{ "pid": stranger.pid(), "used_mib": mib, "kind": kind }]);
        node.nvml(|state| state["cards"][0]["processes"] = process);
    };
    let pid = stranger.pid();
    used("compute", 9000);
    let refusal = begin(&daemon, "0").unwrap_err();
    assert_eq!(refusal.code, "E_GPU_IN_USE");
    assert!(refusal.sentence.contains(&format!("pid {pid}")), "{refusal:?}");
    node.nvml(|state| state["cards"][0]["processes"] = json!([]));
    let answer = disturbed(&daemon, Question::Limit, || used("compute", 9000));
    assert_eq!(answer.verdict, Verdict::Unanswered);
    assert!(
        answer.meanwhile.contains(&format!("without a grant used it: pid {pid}")),
        "{answer:?}"
    );
    assert!(daemon.card(0).failures.is_empty(), "{:?}", daemon.card(0).failures);
    // What is only drawn with it, as always there, is nothing to the answers.
    used("graphics", 900);
    let answer = disturbed(&daemon, Question::Limit, || {});
    assert_eq!((answer.verdict, answer.meanwhile.as_str()), (Verdict::No, ""));
}
