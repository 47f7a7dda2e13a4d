//! The policy's table, each row with an allowed neighbour, as golden text: a review of a change
//! shows the behaviour that changes. `MPSGATE_BLESS=1 cargo test -p mpsgate-policy` rewrites it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "the golden text is a file")]

mod cases;
mod reach;
mod settled;
mod shared;

use std::fmt::Write;

use mpsgate_model::Code;
use mpsgate_oci::spec::{View, apply, glance};
use mpsgate_policy::{Schedule, Unruled, Verdict, decide_rootless, may_matter};
use mpsgate_testing::golden;
use serde_json::{Value, json};

use cases::{Case, annotation, asking, case, device, env, privileged};
fn cases() -> Vec<Case> {
    cases::cases().into_iter().chain(reach::cases()).collect()
}

/// The case's name, and what is decided.
fn render(case: &Case) -> (String, String) {
    let decision = case.decide();
    let mut text = String::new();
    match &decision.verdict {
        Verdict::Pass => text.push_str("pass\n"),
        Verdict::Refuse(refusal) => {
            writeln!(
                text,
                "refuse {}\n  {}\n  hint: {}",
                refusal.code, refusal.sentence, refusal.hint
            )
            .unwrap();
        }
        Verdict::Edit(edits) => {
            text.push_str("edit\n");
            render_edits(&mut text, edits);
        }
        Verdict::Reserve(wanted) => {
            let amount = wanted.request.memory;
            let amount = amount.map_or_else(|| "what its token says".to_owned(), |a| a.to_string());
            let cards = match wanted.request.cards.get() {
                1 => String::new(),
                cards => format!(" on {cards} cards"),
            };
            writeln!(text, "reserve {amount}{cards} for uid {}", wanted.uid).unwrap();
            if let Some(own) = wanted.own_limit {
                writeln!(text, "  own limit {own}").unwrap();
            }
            if let Some(own) = wanted.own_share {
                writeln!(text, "  own share {} %", own.0).unwrap();
            }
            for name in &wanted.claim_variables {
                writeln!(text, "  without {name}").unwrap();
            }
            render_edits(&mut text, &wanted.edits);
        }
    }
    for note in &decision.notes {
        writeln!(text, "  {}: {} [{}]", note.action.as_str(), note.text, note.code).unwrap();
    }
    (format!("# {}\n", case.name), text)
}

fn render_edits(text: &mut String, edits: &[mpsgate_oci::spec::Edit]) {
    for edit in edits {
        writeln!(text, "  {edit:?}").unwrap();
    }
}

#[test]
fn the_table_decides_as_recorded() {
    golden!("decisions.txt", &golden::together(cases().iter().map(render)).join("\n"));
}

fn sharing(case: Case) -> Case {
    let node = mpsgate_policy::Node { schedule: Schedule::Share, ..case.node.clone() };
    Case { node, ..case }
}

/// Rows of the table whose outcome is another one where cards are shared without MPS, and those of
/// several cards.
#[test]
fn without_mps_the_table_differs_as_recorded() {
    let several = |mem: &str, count: &str| {
        let mut spec = annotation("aliyun.com/gpu-mem", mem);
        spec["annotations"]["aliyun.com/gpu-count"] = json!(count);
        spec
    };
    let mut rows: Vec<(String, String)> = cases()
        .into_iter()
        .filter_map(|case| {
            let under_mps = render(&case);
            let shared = render(&sharing(case));
            (shared != under_mps).then_some(shared)
        })
        .collect();
    let more = [
        ("two cards", several("8", "2")),
        ("two cards that cannot have equal parts", several("7", "2")),
        ("one card in as many words", several("7", "1")),
        ("two cards, privileged", {
            let mut spec = privileged();
            spec["annotations"] = several("8", "2")["annotations"].clone();
            spec
        }),
    ];
    for (name, spec) in more {
        rows.push(render(&sharing(case(name, spec.clone()))));
        rows.push(render(&Case { name: "the same under MPS", ..case(name, spec) }));
    }
    golden!("share.txt", &golden::together(rows).join("\n"));
}

#[test]
fn no_way_past_mpsgate_is_open_without_mps() {
    let code = |case: &Case| match case.decide().verdict {
        Verdict::Refuse(refusal) => Some(refusal.code),
        _ => None,
    };
    let mut refused = 0;
    for case in cases() {
        let (name, under_mps) = (case.name, code(&case));
        // What MPS alone needs.
        let of_mps = |code| matches!(code, Code::NoHostIpc | Code::NoShm | Code::MultiCard);
        if under_mps.is_none_or(of_mps) {
            continue;
        }
        refused += 1;
        assert_eq!(code(&sharing(case)), under_mps, "{name}");
    }
    assert!(refused > 40, "{refused}");
}

#[test]
fn a_rootless_engines_container_is_refused_for_a_request_alone() {
    let refused = |spec: &Value| decide_rootless(View::new(spec), true).map_err(|r| r.to_string());
    let rootless = Err("it asks for GPU memory through a rootless engine, and mpsgated grants it to root's engines alone [E_ROOTLESS]".to_owned());
    assert_eq!(refused(&asking(json!({}))), rootless);
    assert_eq!(refused(&env(&["MPSGATE_GPU_MEM=7Gi"])), rootless);
    assert!(
        refused(&annotation("mpsgate.io/gpu-mem", "7GB")).unwrap_err().ends_with("[E_REQUEST]")
    );
    // What its user has without a container, the container may have.
    for spec in [
        json!({}),
        env(&["NVIDIA_VISIBLE_DEVICES=all"]),
        device("/dev/nvidia0", 195, 0),
        privileged(),
    ] {
        assert_eq!(refused(&spec), Ok(()));
    }
    assert!(decide_rootless(View::new(&env(&["MPSGATE_GPU_MEM=7Gi"])), false).is_ok());
}

/// The cheap question, asked as the shim does.
fn matters(spec: &Value) -> bool {
    let mut matters = false;
    glance(&mut spec.to_string().as_bytes(), &mut |seen| matters |= may_matter(&seen)).unwrap();
    matters
}

#[test]
fn what_is_not_passed_is_seen_by_the_cheap_question() {
    for case in cases() {
        // What a runtime leaves open shows in no part of a spec: the shim asks for it by itself.
        if case.unruled != Unruled::Closed {
            continue;
        }
        let mounts = !case.mounts.is_empty();
        if case.decide().verdict != Verdict::Pass {
            assert!(mounts || matters(&case.spec), "{}", case.name);
        }
    }
}

#[test]
fn an_ordinary_container_of_docker_does_not_matter() {
    let spec = json!({
        "process": { "env": ["PATH=/bin", "HOME=/root"] },
        "annotations": { "org.opencontainers.image.os": "linux" },
        "linux": { "devices": [{ "path": "/dev/fuse", "type": "c", "major": 10, "minor": 229 }], "resources": { "devices": [
            { "allow": false, "access": "rwm" }, { "allow": true, "type": "c", "access": "m" },
            { "allow": true, "type": "c", "major": 136, "access": "rwm" }
        ] } },
        "mounts": [{ "destination": "/proc", "type": "proc" }]
    });
    assert!(!matters(&spec));
}

#[test]
fn deciding_again_on_an_edited_spec_finds_nothing_left() {
    for case in cases() {
        if let Verdict::Edit(edits) = case.decide().verdict {
            let mut spec = case.spec.clone();
            apply(&mut spec, &edits).unwrap();
            let again = Case { spec, ..case };
            match again.decide().verdict {
                Verdict::Pass => {}
                // Closing an allow-all rule is found closed, and closed again to the same effect.
                Verdict::Edit(edits) => {
                    let mut twice = again.spec.clone();
                    apply(&mut twice, &edits).unwrap();
                    assert_eq!(twice, again.spec, "{}", again.name);
                }
                other => panic!("{}: {other:?}", again.name),
            }
        }
    }
}
