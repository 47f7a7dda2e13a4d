//! Documents as an engine, a person and an attacker would write them, and what becomes of them when
//! bytes change: the runtime and `explain` give one answer, and what opens a card in any spelling
//! is never passed.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use mpsgate_config::Config;
use mpsgate_policy::{Bytes, Node, Verdict};
use mpsgate_properties::{explained_as_decided, run};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// A key in a spelling that Go takes for it.
fn spelled(key: &'static str) -> impl Strategy<Value = String> {
    let letter = |c: char, how: u8| match (how, c) {
        (1, c) => c.to_ascii_uppercase().to_string(),
        (2, c) => format!("\\u{:04x}", u32::from(c)),
        (3, 's') => "\u{17f}".to_owned(),
        (3, 'k') => "\u{212a}".to_owned(),
        (4, 's') => "\\u017f".to_owned(),
        (_, c) => c.to_string(),
    };
    vec(prop_oneof![6 => Just(0_u8), 1 => 1_u8..5], key.len())
        .prop_map(move |how| key.chars().zip(how).map(|(c, how)| letter(c, how)).collect())
}

/// A rule; `true` where it opens a card.
fn rule() -> impl Strategy<Value = (String, bool)> {
    let keys = ("allow", "type", "major", "access");
    let keys = (spelled(keys.0), spelled(keys.1), spelled(keys.2), spelled(keys.3));
    let major = select(vec!["195", "1", "-1", "null", "4294967491", "236"]);
    (keys, any::<bool>(), select(vec!["c", "a", "b"]), major, select(vec!["rwm", "r", "m"])).prop_map(
        |((allow, kind, number, access), allowed, of, major, letters)| {
            let text = format!(
                r#"{{"{allow}":{allowed},"{kind}":"{of}","{number}":{major},"{access}":"{letters}"}}"#
            );
            let opens = match of {
                "a" => true,
                // 236 is a card's only where `/proc/devices` gives it to NVIDIA, which here nobody
                // knows of.
                "c" => !["1", "236"].contains(&major) && letters != "m",
                _ => false,
            };
            (text, allowed && opens)
        },
    )
}

/// What makes a document unclean, or not, and nothing else.
fn beside() -> impl Strategy<Value = String> {
    select(vec![
        String::new(),
        r#","hostname":"m""#.to_owned(),
        r#","x":1,"x":2"#.to_owned(),
        r#","x":"\ud800""#.to_owned(),
        r#","Hostname":"m""#.to_owned(),
        r#","annotations":{"a":"\u0000"}"#.to_owned(),
        r#","process":{"env":["PATH=/bin"],"Env":["A=1"]}"#.to_owned(),
        format!(r#","x":{}{}"#, "[".repeat(200), "]".repeat(200)),
    ])
}

/// A document; `true` where a rule opens a card that no later one closes.
fn document() -> impl Strategy<Value = (String, bool)> {
    let keys = (spelled("linux"), spelled("resources"), spelled("devices"));
    (keys, vec(rule(), 0..4), beside()).prop_map(|((linux, resources, devices), rules, beside)| {
        let opens = rules.last().is_some_and(|(_, opens)| *opens);
        let rules: Vec<String> = rules.into_iter().map(|(text, _)| text).collect();
        let rules = rules.join(",");
        let text = format!(
            r#"{{"ociVersion":"1.0.2","{linux}":{{"{resources}":{{"{devices}":[{rules}]}}}}{beside}}}"#
        );
        (text, opens)
    })
}

fn is_passed(text: &str) -> bool {
    let found = mpsgate_shim::fuzz::decided(
        Bytes::Whole(text.as_bytes()),
        Node::unknown(),
        Config::default(),
    );
    matches!(found.unwrap().verdict, Verdict::Pass)
}

proptest! {
    #[test]
    fn what_opens_a_card_is_not_passed_in_any_spelling((text, opens) in document()) {
        prop_assert!(!(opens && is_passed(&text)), "{}", text);
        run("unparsable", text.as_bytes());
        run("config_json", text.as_bytes());
    }

    #[test]
    fn the_runtime_and_explain_give_one_answer_of_changed_bytes(
        (text, _) in document(),
        changes in vec((any::<Index>(), any::<Index>(), 0..4_u8, any::<u8>()), 0..4),
    ) {
        let mut bytes = text.into_bytes();
        for (at, other, how, byte) in changes {
            let (at, other) = (at.index(bytes.len()), other.index(bytes.len()));
            match how {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, byte),
                _ => {
                    let part = bytes[at.min(other)..at.max(other)].to_vec();
                    bytes.splice(at..at, part);
                }
            }
            if bytes.is_empty() {
                bytes.push(b'{');
            }
        }
        explained_as_decided(&bytes);
    }
}

#[test]
fn what_shows_nothing_is_passed_however_it_is_written() {
    let deny = r#""linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}"#;
    let long = "x".repeat(17 << 20);
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    for beside in [
        r#""x":1,"x":2"#.to_owned(),
        r#""Hostname":"m""#.to_owned(),
        r#""x":"\ud800""#.to_owned(),
        format!(r#""x":{deep}"#),
        format!(r#""annotations":{{"note":"{long}"}}"#),
        deny.replace("allow", "Allow"),
    ] {
        assert!(is_passed(&format!("{{{beside},{deny}}}")), "{beside:.80}");
    }
}
