#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
use mpsgate_model::ComputeShare;

use super::*;

const MPS: Schedule = Schedule::Mps;
const SHARE: Schedule = Schedule::Share;

fn target(settings: Schedule, label: Option<Word>) -> Target {
    Wants { settings, label }.target()
}

#[test]
fn the_label_wins_and_without_one_the_settings_hold() {
    for (settings, label, schedule, yields) in [
        (MPS, None, MPS, false),
        (SHARE, None, SHARE, false),
        (MPS, Some(Word::Share), SHARE, false),
        (SHARE, Some(Word::Mps), MPS, false),
        (MPS, Some(Word::Off), MPS, true),
        (SHARE, Some(Word::Off), SHARE, true),
    ] {
        let by_label = label.is_some();
        let expected = Target { schedule, yields, by_label };
        assert_eq!(target(settings, label), expected, "{settings} {label:?}");
    }
}

#[test]
fn every_other_word_of_the_label_is_another_systems() {
    for (value, word) in [
        ("mps", Word::Mps),
        ("share", Word::Share),
        ("default", Word::Off),
        ("cgpu", Word::Off),
        ("core_mem", Word::Off),
        ("disabled", Word::Off),
        ("MPS", Word::Off),
        ("", Word::Off),
    ] {
        assert_eq!(Word::of_label(value), word, "{value:?}");
    }
    for word in [Word::Mps, Word::Share, Word::Off] {
        assert_eq!(Word::parse(word.as_str()), Some(word));
    }
}

#[test]
fn a_switch_waits_for_the_containers_of_the_other_kind_alone() {
    let (web, db) = ("web", "alice/db");
    let held = |name: &str, schedule| Holding { name: name.to_owned(), schedule };
    let waits = |names: &[&str]| Step::Wait(names.iter().map(|n| (*n).to_owned()).collect());
    for (now, wanted, held, step, started) in [
        (MPS, MPS, vec![], Step::Stay, MPS),
        (MPS, MPS, vec![held(web, MPS)], Step::Stay, MPS),
        (MPS, SHARE, vec![], Step::Switch, SHARE),
        (MPS, SHARE, vec![held(web, MPS), held(db, MPS)], waits(&["web", "alice/db"]), MPS),
        (SHARE, MPS, vec![held(web, SHARE)], waits(&["web"]), SHARE),
        (SHARE, MPS, vec![], Step::Switch, MPS),
        // No version of ours leaves both; should it be so, nothing is switched under a container.
        (SHARE, MPS, vec![held(web, MPS), held(db, SHARE)], waits(&["alice/db"]), SHARE),
    ] {
        let target = target(wanted, None);
        assert_eq!(next(now, target, &held), step, "{now} to {wanted}");
        assert_eq!(at_start(target, &held), started, "{now} to {wanted}");
        // What a start finds is what was, as long as a container tells.
        if !held.is_empty() {
            assert_eq!(at_start(target, &held), now);
        }
    }
}

#[test]
fn cards_of_the_settings_go_with_their_last_grant_and_come_again() {
    for (label, managed, grants, step) in [
        (None, true, 0, CardStep::Keep),
        (None, true, 2, CardStep::Keep),
        (None, false, 0, CardStep::Take),
        (Some(Word::Share), false, 0, CardStep::Take),
        (Some(Word::Off), true, 2, CardStep::Fence),
        (Some(Word::Off), true, 0, CardStep::GiveBack),
        (Some(Word::Off), false, 0, CardStep::Keep),
    ] {
        assert_eq!(
            card_step(target(MPS, label), managed, grants),
            step,
            "{label:?} {managed} {grants}"
        );
    }
}

#[test]
fn a_refusal_says_what_to_drain_and_how_to_stay() {
    let text = |refusal: Refusal| format!("{refusal}\nhint: {}", refusal.hint);
    let names = |count: usize| (1..=count).map(|n| format!("c{n}")).collect::<Vec<_>>();
    assert_eq!(
        text(waits(MPS, target(SHARE, None), &names(2))),
        "this node goes from schedule mps to share, as gpus.schedule says, and gives no GPU memory until the \
         containers have ended that have theirs under mps: c1, c2 [E_SCHEDULE]\n\
         hint: end these containers (drain the node; mpsgate status names them); or stay: set gpus.schedule = \
         \"mps\" in /etc/mpsgate/config.toml and run: mpsgate reload"
    );
    let labelled = text(waits(SHARE, target(SHARE, Some(Word::Mps)), &names(12)));
    assert!(labelled.contains("c10 and 2 more [E_SCHEDULE]"), "{labelled}");
    assert!(
        labelled
            .ends_with("or stay: kubectl label --overwrite node NODE ack.node.gpu.schedule=share"),
        "{labelled}"
    );
}

#[test]
fn each_schedule_refuses_what_it_cannot_give() {
    let request = |compute: Option<u8>, priority| Request {
        memory: Some(Mib(1024)),
        cards: NonZeroU32::MIN,
        gpu: None,
        compute: compute.map(ComputeShare),
        priority,
        uid: None,
        token: None,
    };
    for (schedule, cards, compute, priority, code) in [
        (MPS, 1, None, Priority::Normal, None),
        (MPS, 1, Some(30), Priority::Low, None),
        (MPS, 2, None, Priority::Normal, Some(Code::MultiCard)),
        (SHARE, 1, None, Priority::Normal, None),
        (SHARE, 8, None, Priority::Normal, None),
        (SHARE, 1, Some(30), Priority::Normal, Some(Code::Request)),
        (SHARE, 1, None, Priority::Low, Some(Code::Request)),
    ] {
        let cards = NonZeroU32::new(cards).unwrap();
        let refused = refuses(schedule, &request(compute, priority), cards);
        assert_eq!(refused.map(|r| r.code), code, "{schedule} {cards} {compute:?} {priority:?}");
    }
    let two = NonZeroU32::new(2).unwrap();
    assert_eq!(each(Mib(8192), two, Mib(1024)), Ok(Mib(4096)));
    assert_eq!(
        each(Mib(7168), two, Mib(1024)).map_err(|r| r.to_string()),
        Err("it asks for 7 GiB on 2 cards (aliyun.com/gpu-count), which cannot have it in equal parts of whole \
             1 GiB [E_REQUEST]"
            .to_owned())
    );
}
