#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
use mpsgate_policy::schedule::Word;

use super::*;

fn wants(settings: Schedule, label: Option<Word>) -> Wants {
    Wants { settings, label }
}

#[test]
fn what_the_label_says_is_remembered_where_the_settings_say_something_else() {
    for (settings, label, remembered) in [
        (Schedule::Mps, None, None),
        (Schedule::Mps, Some(Word::Mps), None),
        (Schedule::Mps, Some(Word::Share), Some(Word::Share)),
        (Schedule::Mps, Some(Word::Off), Some(Word::Off)),
        (Schedule::Share, Some(Word::Share), None),
        (Schedule::Share, Some(Word::Mps), Some(Word::Mps)),
    ] {
        let scheduling = Scheduling::start(wants(settings, label), &[]);
        assert_eq!(scheduling.to_remember(), remembered, "{settings} {label:?}");
        // What is remembered leads to the same after a restart.
        let again = Scheduling::start(wants(settings, remembered), &[]);
        assert_eq!(again.now(), scheduling.now());
        assert_eq!(again.wanted(), scheduling.wanted());
    }
}

#[test]
fn a_card_that_is_left_to_another_system_is_remembered_until_the_settings_forget_it() {
    let card = GpuUuid::parse("GPU-00000000-0000-0000-0000-000000000000").unwrap();
    let mut ours = Scheduling::start(wants(Schedule::Mps, None), &[]);
    assert!(!ours.leaves(&card) && ours.given_back.is_empty());
    let mut yields = Scheduling::start(wants(Schedule::Mps, Some(Word::Off)), &[]);
    assert!(yields.leaves(&card) && yields.given_back.contains(&card));
    assert_eq!(yields.wanted(), Some(Word::Off));
    yields.forget(&card);
    assert!(yields.given_back.is_empty());
}
