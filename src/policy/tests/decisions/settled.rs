//! Whatever rules and nodes a spec has: what is not refused has nothing managed within reach after
//! its edits.

use mpsgate_config::{Privileged, Unallocated};
use mpsgate_oci::spec::{View, apply};
use mpsgate_policy::Verdict;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::cases::{asking, case};

fn rule() -> impl Strategy<Value = Value> {
    let major = prop_oneof![Just(-1), Just(195), Just(236), Just(235), Just(226), Just(10)];
    let minor = prop_oneof![Just(-1), Just(0), Just(1), Just(128)];
    let kind = prop_oneof![Just("a"), Just("c"), Just("b"), Just("")];
    let access = prop_oneof![Just("r"), Just("w"), Just("m"), Just("rw"), Just("rwm")];
    (prop::bool::weighted(0.7), kind, major, minor, access).prop_map(
        |(allow, kind, major, minor, access)| {
            let mut rule =
                json!({ "allow": allow, "major": major, "minor": minor, "access": access });
            if !kind.is_empty() {
                rule["type"] = json!(kind);
            }
            rule
        },
    )
}

fn node() -> impl Strategy<Value = Value> {
    let numbers = prop_oneof![
        Just((195, 0)),
        Just((195, 1)),
        Just((195, 255)),
        Just((226, 128)),
        Just((236, 1)),
        Just((10, 229))
    ];
    numbers.prop_map(
        |(major, minor)| json!({ "path": "/dev/x", "type": "c", "major": major, "minor": minor }),
    )
}

/// What the node of these tests has managed.
const MANAGED: [(u32, u32); 6] = [(195, 0), (226, 0), (226, 128), (243, 0), (236, 1), (235, 0)];

proptest! {
    #[test]
    fn nothing_managed_is_within_reach_after_edits(
        rules in prop::collection::vec(rule(), 0..6),
        nodes in prop::collection::vec(node(), 0..4),
        privileged: bool,
        asks: bool,
    ) {
        let capabilities: &[&str] = if privileged { &["CAP_SYS_ADMIN"] } else { &[] };
        let spec = json!({
            "process": { "capabilities": { "bounding": capabilities } },
            "linux": { "devices": nodes, "resources": { "devices": rules } }
        });
        let spec = if asks { asking(spec) } else { spec };
        let row = case("any", spec).policy(|policy| {
            policy.unallocated = Unallocated::Strip;
            policy.privileged = Privileged::Close;
        });
        let edits = match row.decide().verdict {
            Verdict::Edit(edits) => edits,
            Verdict::Reserve(wanted) => wanted.edits,
            Verdict::Pass => Vec::new(),
            Verdict::Refuse(_) => return Ok(()),
        };
        let mut after = row.spec.clone();
        apply(&mut after, &edits).unwrap();
        let view = View::new(&after);
        for (major, minor) in MANAGED {
            prop_assert!(!view.rules_open(major, Some(minor)), "{}:{} of {}", major, minor, after);
            let left = view.devices().any(|d| (d.major, d.minor) == (major, minor));
            prop_assert!(!left, "the node {}:{} of {}", major, minor, after);
        }
    }
}
