//! `mpsgate qualify`: who may ask a card, who waits meanwhile, and which answers count.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use mpsgate_api::{Asking, Call, Qualify, Reply, WireRefusal};
use mpsgate_model::{Answer, Question, Verdict};

use crate::harness::{Node, Running, need, on_card, request, servers, uuid, wait_for};

fn begin(daemon: &Running, gpu: &str) -> Result<Asking, WireRefusal> {
    match daemon.call(Call::Qualify(Qualify::Begin { gpu: gpu.to_owned() })) {
        Reply::Asking { asking } => Ok(serde_json::from_str(&asking).unwrap()),
        Reply::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

fn end(daemon: &Running, id: &str, answers: &str) -> Result<String, WireRefusal> {
    let (id, answers) = (id.to_owned(), answers.to_owned());
    daemon.done(Call::Qualify(Qualify::End { id, answers }))
}

/// As the command sends them.
fn answers(verdict: Verdict) -> Vec<Answer> {
    let answer = |question: Question| Answer {
        question,
        expected: question.expected().to_owned(),
        seen: "so it was".to_owned(),
        verdict,
        evidence: String::new(),
        mib: (question == Question::Processes).then_some(310),
        granted_mib: Some(1024),
        took_ms: 1000,
        at_ms: 1_795_000_000_000,
    };
    Question::ALL.map(answer).into()
}

/// Card 0 answers every question so.
pub(crate) fn qualified(daemon: &Running, verdict: Verdict) {
    let asking = begin(daemon, "0").unwrap();
    end(daemon, &asking.id, &in_json(verdict)).unwrap();
}

fn in_json(verdict: Verdict) -> String {
    serde_json::to_string(&answers(verdict)).unwrap()
}

#[test]
fn a_card_is_kept_for_who_asks_it_and_its_answers_count() {
    need!(servers());
    let node = Node::new(2);
    let daemon = node.start();
    let asking = begin(&daemon, "0").unwrap();
    assert_eq!(asking.subject.card.as_str(), uuid(0));
    assert_eq!(daemon.card(0).state, "qualifying");
    assert_eq!(begin(&daemon, "0").unwrap_err().code, "E_GPU_NOT_READY");
    // Whose container has its id.
    let own = on_card(request(&format!("{}-0", asking.id), 1), 0);
    let key = own.key.clone();
    daemon.reserve(own).unwrap();
    daemon.done(Call::Release(mpsgate_api::Release { key })).unwrap();
    // Others have the other card, at once.
    daemon.reserve(request("web", 1)).unwrap();
    assert_eq!(daemon.status().grants[0].card_index, 1);
    end(&daemon, &asking.id, &in_json(Verdict::Yes)).unwrap();
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
    let wants = |id: &str, gpu| {
        let mut call = request(id, 1);
        call.request.gpu = Some(mpsgate_model::GpuSelector::Uuid(
            mpsgate_model::GpuUuid::parse(&uuid(gpu)).unwrap(),
        ));
        daemon.reserve(call).map_err(|refusal| refusal.code)
    };
    let own = format!("{}-0", asking.id);
    assert_eq!(wants("web", 0).unwrap_err(), "E_UNCONFIRMED");
    assert_eq!(wants(&own, 1).unwrap_err(), "E_UNCONFIRMED");
    wants(&own, 0).unwrap();
    end(&daemon, &asking.id, "[]").unwrap();
    assert_eq!(wants(&format!("{}-1", asking.id), 0).unwrap_err(), "E_UNCONFIRMED");
}

#[test]
fn who_comes_meanwhile_waits_and_is_let_in_when_it_is_over() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let asking = begin(&daemon, "0").unwrap();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| daemon.reserve(request("late", 1)));
        wait_for("it is being asked", || daemon.card(0).state == "qualifying");
        assert!(!late.is_finished());
        end(&daemon, &asking.id, "[]").unwrap();
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
    let of_nobody = end(&daemon, "mpsgate-qualify-0", &in_json(Verdict::Yes)).unwrap_err();
    assert!(of_nobody.sentence.contains("by that name any more"), "{of_nobody:?}");
    let asking = begin(&daemon, "0").unwrap();
    let garbage = end(&daemon, &asking.id, "[{]").unwrap_err();
    assert!(garbage.sentence.contains("cannot be read"), "{garbage:?}");
    // The card is open all the same.
    assert_eq!(daemon.card(0).state, "ready");
    let asking = begin(&daemon, "0").unwrap();
    node.nvml(|state| state["driver_version"] = "599.1".into());
    wait_for("another driver", || daemon.status().driver.as_deref() == Some("599.1"));
    let other = end(&daemon, &asking.id, &in_json(Verdict::Yes)).unwrap_err();
    assert!(other.sentence.contains("another one than at the beginning"), "{other:?}");
    assert!(daemon.card(0).qualification.is_none());
}

#[test]
fn an_older_driver_keeps_its_date_and_only_what_holds_steers() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let asking = begin(&daemon, "0").unwrap();
    end(&daemon, &asking.id, &in_json(Verdict::No)).unwrap();
    let card = daemon.card(0);
    assert!(card.state.contains("let no CUDA client attach"), "{}", card.state);
    assert_eq!(daemon.reserve(request("web", 1)).unwrap_err().code, "E_GPU_UNHEALTHY");
    assert_eq!(card.failures.len(), 4, "{:?}", card.failures);
    node.nvml(|state| state["driver_version"] = "599.1".into());
    wait_for("it is to be asked again", || {
        daemon.card(0).qualify.is_some_and(|why| why.contains("now it is 599.1"))
    });
    // A refusal does not outlive its driver; that its limit did not hold does.
    daemon.reserve(request("web", 1)).unwrap();
    let proof = daemon.status().grants[0].proof.clone();
    assert!(proof.starts_with("limit not held on this card: so it was"), "{proof}");
}
