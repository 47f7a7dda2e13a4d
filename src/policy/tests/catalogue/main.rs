//! The catalogue: every way to a GPU past a grant that `SECURITY.md` numbers, as real engines write
//! it, and what becomes of it under each value of `policy.unallocated`; beside each the closest
//! spec that must start.
//!
//! `captured/NN-CELL[-VARIANT].json` are made by `tests/engines/capture`, which says how.
//! `written/` holds what no engine here can be made to write; each says after what.
//! `MPSGATE_BLESS=1 cargo test -p mpsgate-policy` records new decisions in
//! `tests/golden/catalogue.txt`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "fixtures, page and golden text are files")]

mod fixture;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use mpsgate_config::{Policy, Unallocated};
use mpsgate_oci::spec::{apply, glance};
use mpsgate_policy::refusal_texts::CAPABILITIES;
use mpsgate_policy::{Decision, NoteAction, Verdict, may_matter};
use mpsgate_testing::golden;
use serde_json::Value;

use fixture::{Fixture, fixtures};
/// Ways that leave nothing in a spec. The page says so of each, and what an operator can do.
const UNSEEN: [usize; 3] = [17, 21, 29];
/// Ways that are none: the spec passes in silence, as the kernel or the toolkit keeps the card
/// shut.
const HARMLESS: [usize; 2] = [12, 26];
const VALUES: [(Unallocated, &str); 3] =
    [(Unallocated::Refuse, "refuse"), (Unallocated::Strip, "strip"), (Unallocated::Warn, "warn")];

fn policy(unallocated: Unallocated) -> Policy {
    Policy { unallocated, ..Policy::default() }
}

/// The rows of the page's table: the way, and what happens. That is the result in the table, and
/// the text of the section of that number where there is one: `### N. title`, up to the next
/// heading.
fn page() -> BTreeMap<usize, (String, String)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../SECURITY.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut rows: BTreeMap<&str, (String, String)> = BTreeMap::new();
    let mut section: Option<&str> = None;
    for line in text.lines() {
        if line.starts_with('#') {
            section = line.strip_prefix("### ").and_then(section_number);
            assert!(section.is_none_or(|number| rows.contains_key(number)), "no row: {line}");
        } else if let Some((number, way, result)) = row(line) {
            let before = rows.insert(number, (way.to_owned(), result.to_owned()));
            assert!(before.is_none(), "SECURITY.md has row {number} twice");
        } else if let Some(number) = section
            && let Some((_, what)) = rows.get_mut(number)
        {
            // A space for the line break: words that are looked for may stand on two lines.
            what.push(' ');
            what.push_str(line);
        }
    }
    rows.into_iter().filter_map(|(number, row)| Some((number.parse().ok()?, row))).collect()
}

/// The row that a section is about, by its title; 14a is one.
fn section_number(title: &str) -> Option<&str> {
    let (number, _) = title.split_once(". ")?;
    is_number(number).then_some(number)
}

/// Number, way and result of a line of the table.
fn row(line: &str) -> Option<(&str, &str, &str)> {
    let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.splitn(3, " | ");
    let number = cells.next().filter(|number| is_number(number))?;
    Some((number, cells.next()?, cells.next()?))
}

fn is_number(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_digit())
}

fn render(decision: &Decision) -> String {
    let mut text = match &decision.verdict {
        Verdict::Pass => "untouched".to_owned(),
        Verdict::Refuse(refusal) => format!("refused {refusal}"),
        Verdict::Edit(edits) => format!("changed {edits:?}"),
        Verdict::Reserve(wanted) => {
            let amount = wanted.request.memory.unwrap();
            format!("asks for {amount}, changed {:?}", wanted.edits)
        }
    };
    for note in &decision.notes {
        write!(text, "\n    {}: {} [{}]", note.action.as_str(), note.text, note.code).unwrap();
    }
    text
}

/// Who wrote the spec and by which command, and what is decided.
fn entry(fixture: &Fixture) -> (String, String) {
    let title = if fixture.neighbour { "neighbour, " } else { "" };
    let mut text = String::new();
    let decided = VALUES.map(|(value, word)| (word, render(&fixture.decide(&policy(value)))));
    if decided.iter().all(|(_, decision)| *decision == decided[0].1) {
        writeln!(text, "  {}", decided[0].1).unwrap();
    } else {
        for (word, decision) in decided {
            writeln!(text, "  {word}: {decision}").unwrap();
        }
    }
    (format!("{title}{}: {}\n", fixture.engine, fixture.command), text)
}

#[test]
fn every_way_of_the_page_is_decided_as_recorded() {
    let (page, fixtures) = (page(), fixtures());
    let mut text = String::new();
    for (number, (way, _)) in page.range(1..=30) {
        writeln!(text, "# {number} {way}").unwrap();
        if UNSEEN.contains(number) {
            text.push_str("cannot be seen in a spec\n");
        }
        let of_row = fixtures.iter().filter(|f| f.row == *number).map(entry);
        text.push_str(&golden::together(of_row).concat());
        text.push('\n');
    }
    golden!("catalogue.txt", &text);
}

/// The specification's own types evaluate it, not the reader that our edits are made with.
#[test]
fn what_edits_leave_of_an_engines_document_is_a_valid_one() {
    let spec =
        |document: &Value| serde_json::from_value::<oci_spec::runtime::Spec>(document.clone());
    let mut edited = 0;
    for fixture in fixtures() {
        let Ok(before) = spec(&fixture.config) else { continue };
        for (value, word) in VALUES {
            let edits = match fixture.decide(&policy(value)).verdict {
                Verdict::Edit(edits) => edits,
                Verdict::Reserve(wanted) => wanted.edits,
                Verdict::Pass | Verdict::Refuse(_) => continue,
            };
            let mut document = fixture.config.clone();
            apply(&mut document, &edits).unwrap();
            let name = format!("{}: {}, {word}", fixture.engine, fixture.command);
            let after = spec(&document).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(edits.is_empty(), after == before, "{name}: {edits:?}");
            edited += usize::from(!edits.is_empty());
        }
    }
    assert!(edited > 20, "{edited}");
}

#[test]
fn the_page_says_of_every_capability_what_the_code_decides() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../SECURITY.md");
    let text = std::fs::read_to_string(path).unwrap();
    let on_page: Vec<&str> = text.lines().filter(|line| line.starts_with("| CAP_")).collect();
    let decided = CAPABILITIES
        .iter()
        .map(|(name, may, why)| format!("| {name} | {} | {why} |", may.as_str()));
    assert_eq!(on_page, decided.collect::<Vec<_>>());
}

#[test]
fn no_way_is_left_out() {
    let (page, fixtures) = (page(), fixtures());
    for number in 1..=30 {
        let (_, what) =
            page.get(&number).unwrap_or_else(|| panic!("SECURITY.md has no row {number}"));
        let of = |neighbour| fixtures.iter().any(|f| f.row == number && f.neighbour == neighbour);
        let unseen = UNSEEN.contains(&number);
        assert_eq!(what.contains("**cannot be seen**"), unseen, "row {number} of SECURITY.md");
        assert_eq!(of(false), !unseen, "a fixture of row {number}");
        // What passes anyway needs no neighbour that passes.
        assert!(unseen || HARMLESS.contains(&number) || of(true), "a neighbour of row {number}");
    }
    assert!(fixtures.iter().all(|f| (1..=30).contains(&f.row)), "a fixture of no row");
}

#[test]
fn a_way_is_never_passed_in_silence_and_its_code_stands_on_the_page() {
    let page = page();
    for fixture in fixtures().iter().filter(|f| !f.neighbour) {
        let decision = fixture.decide(&policy(Unallocated::Refuse));
        let mut codes: BTreeSet<&str> = decision.notes.iter().map(|n| n.code.as_str()).collect();
        if let Verdict::Refuse(refusal) = &decision.verdict {
            codes.insert(refusal.code.as_str());
        }
        // The daemon answers a pod: E_UNCONFIRMED unless its request is confirmed.
        let asks = fixture.row == 28 && matches!(decision.verdict, Verdict::Reserve(_));
        let silent = codes.is_empty() && !asks;
        assert_eq!(silent, HARMLESS.contains(&fixture.row), "{} {}", fixture.row, fixture.command);
        let what = &page[&fixture.row].1;
        for code in codes {
            assert!(what.contains(code), "row {} does not name {code}", fixture.row);
        }
    }
}

#[test]
fn a_neighbour_starts_untouched_or_with_what_it_asks_for_whatever_the_settings() {
    for fixture in fixtures().iter().filter(|f| f.neighbour) {
        for (value, word) in VALUES {
            let decision = fixture.decide(&policy(value));
            let what = format!("{} {word}: {}", fixture.row, fixture.command);
            assert!(matches!(decision.verdict, Verdict::Pass | Verdict::Reserve(_)), "{what}");
            assert!(decision.signals.is_empty(), "{what}: {:?}", decision.signals);
        }
    }
}

#[test]
fn what_is_decided_or_noted_is_seen_by_the_cheap_question() {
    for fixture in fixtures() {
        let mut matters = false;
        glance(&mut fixture.config.to_string().as_bytes(), &mut |seen| {
            matters |= may_matter(&seen)
        })
        .unwrap();
        let decision = fixture.decide(&policy(Unallocated::Refuse));
        let silent = decision.verdict == Verdict::Pass && decision.notes.is_empty();
        assert!(silent || matters || !fixture.mounts.is_empty(), "{}", fixture.command);
    }
}

#[test]
fn what_is_stripped_is_said_and_gone_and_nothing_is_stripped_where_it_is_refused() {
    for fixture in fixtures() {
        for (value, word) in VALUES {
            let what = format!("{} {word}: {}", fixture.row, fixture.command);
            let decision = fixture.decide(&policy(value));
            let stripped = |d: &Decision| d.notes.iter().any(|n| n.action == NoteAction::Stripped);
            let Verdict::Edit(edits) = &decision.verdict else {
                assert!(!stripped(&decision), "{what}");
                continue;
            };
            assert!(stripped(&decision), "{what}");
            let mut config = fixture.config.clone();
            apply(&mut config, edits).unwrap();
            let again = fixture.with(config).decide(&policy(value));
            assert_eq!(again.verdict, Verdict::Pass, "{what}");
        }
    }
}
