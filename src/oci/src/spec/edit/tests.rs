#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code fails by panicking")]
use proptest::prelude::*;
use serde_json::Map;

use super::*;

fn edited(mut spec: Value, edits: &[Edit]) -> Value {
    apply(&mut spec, edits).unwrap();
    spec
}

fn all_edits() -> Vec<Edit> {
    vec![
        Edit::Env { drop: vec!["A".into()], set: vec![("B".into(), "2".into())] },
        Edit::RemoveMount { destination: "/gone".into() },
        Edit::Bind {
            source: "/s".into(),
            destination: "/d".into(),
            options: vec!["bind".into(), "ro".into()],
        },
        Edit::Proc { destination: "/proc".into() },
        Edit::OwnPids,
        Edit::RemoveDevice { major: 195, minor: 1 },
        Edit::RemoveRules { major: 195, minor: None },
        Edit::CloseAllowAll { except: vec![195] },
        Edit::AddDevice { path: "/dev/nvidia0".into(), major: 195, minor: 0, uid: 0 },
        Edit::AddHook {
            stage: HookStage::CreateRuntime,
            path: "/h".into(),
            args: vec!["h".into(), "i".into()],
            env: vec!["PATH=/usr/bin".into()],
            timeout_s: Some(10),
        },
        Edit::AddGids(vec![44]),
        Edit::RemoveHooks { path: "/other".into() },
        Edit::RemoveAnnotation { name: "cdi.k8s.io/x".into() },
    ]
}

#[test]
fn an_empty_spec_gets_every_part_that_an_edit_needs() {
    let spec = edited(json!({}), &all_edits());
    assert_eq!(
        spec,
        json!({
            "process": {"env": ["B=2"], "user": {"additionalGids": [44]}},
            "mounts": [
                {"destination": "/d", "type": "bind", "source": "/s", "options": ["bind", "ro"]},
                {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]}
            ],
            "linux": {
                "namespaces": [{"type": "pid"}],
                "devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 438, "uid": 0, "gid": 0}],
                "resources": {"devices": [{"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"}]}
            },
            "hooks": {"createRuntime": [{"path": "/h", "args": ["h", "i"], "env": ["PATH=/usr/bin"], "timeout": 10}]}
        })
    );
}

#[test]
fn a_pid_namespace_of_its_own_takes_the_place_of_whatever_is_there() {
    let (user, mount) = (json!({"type": "user"}), json!({"type": "mount", "path": "/m"}));
    for (before, after) in [
        (json!(null), json!([{"type": "pid"}])),
        (json!([user, mount]), json!([user, mount, {"type": "pid"}])),
        (
            json!([user, {"type": "pid", "path": "/proc/7/ns/pid"}, mount]),
            json!([user, {"type": "pid"}, mount]),
        ),
        (json!([{"type": "pid"}, {"type": "pid", "path": "/p"}, 7]), json!([{"type": "pid"}, 7])),
    ] {
        let spec = edited(json!({"linux": {"namespaces": before}}), &[Edit::OwnPids]);
        assert_eq!(spec["linux"]["namespaces"], after, "{before}");
        assert_eq!(edited(spec.clone(), &[Edit::OwnPids]), spec, "twice");
    }
}

#[test]
fn nodes_go_by_number_whatever_their_path() {
    let spec = json!({"linux": {"devices": [
        {"path": "/dev/harmless", "type": "c", "major": 195, "minor": 1},
        {"path": "/dev/block", "type": "b", "major": 195, "minor": 1},
        {"path": "/dev/null", "type": "c", "major": 1, "minor": 3},
        {"unknown": true}
    ]}});
    let left = edited(spec, &[Edit::RemoveDevice { major: 195, minor: 1 }]);
    assert_eq!(left["linux"]["devices"].as_array().unwrap().len(), 3);
    assert_eq!(left["linux"]["devices"][0]["path"], "/dev/block");
}

#[test]
fn allow_all_is_enumerated_without_nvidias_majors() {
    let spec = json!({"linux": {"resources": {"devices": [
        {"allow": false, "access": "rwm"}, {"allow": true, "access": "rwm"}
    ]}}});
    let closed = edited(spec, &[Edit::CloseAllowAll { except: vec![195, 507] }]);
    let view = crate::spec::View::new(&closed);
    assert_eq!(view.device_rules().count(), 1 + 510 + 1);
    assert!(view.rules_open(1, Some(3)) && view.rules_open(511, Some(0)));
    assert!(!view.rules_open(195, Some(0)) && !view.rules_open(507, Some(0)));
    assert!(!view.device_rules().any(|r| r.allow && r.major.is_none() && r.kind != "b"));
}

#[test]
fn rules_for_a_major_go_and_mknod_stays() {
    let spec = json!({"linux": {"resources": {"devices": [
        {"allow": true, "type": "c", "access": "m"},
        {"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"},
        {"allow": true, "type": "c", "major": 195, "access": "m"},
        {"allow": false, "type": "c", "major": 195, "access": "rwm"}
    ]}}});
    let left = edited(spec, &[Edit::RemoveRules { major: 195, minor: None }]);
    assert_eq!(left["linux"]["resources"]["devices"].as_array().unwrap().len(), 3);
}

#[test]
fn rules_for_one_device_go_and_its_neighbours_stay() {
    let rule = |minor: Value| json!({"allow": true, "type": "c", "major": 226, "minor": minor, "access": "rw"});
    let rules = [rule(json!(128)), rule(json!(129)), rule(json!(null))];
    let spec = json!({"linux": {"resources": {"devices": rules}}});
    let left = edited(spec, &[Edit::RemoveRules { major: 226, minor: Some(128) }]);
    assert_eq!(left["linux"]["resources"]["devices"], json!([rule(json!(129))]));
}

#[test]
fn a_place_that_is_taken_by_another_type_is_an_error() {
    for (spec, text) in [
        (json!({"mounts": "x"}), "mounts is text, not a list"),
        (json!({"linux": 3}), "linux is a number, not an object"),
        (
            json!({"linux": {"resources": {"devices": true}}}),
            "linux.resources.devices is true or false, not a list",
        ),
        (json!({"process": []}), "process is a list, not an object"),
    ] {
        let error = apply(&mut spec.clone(), &all_edits()).unwrap_err();
        assert!(error.to_string().contains(text.split(" is ").next().unwrap()), "{error} / {text}");
    }
}

fn closed(rules: &Value) -> Value {
    let spec = json!({"linux": {"resources": {"devices": rules}}});
    edited(spec, &[Edit::CloseAllowAll { except: vec![195, 507] }])
}

#[test]
fn whatever_opens_majors_without_naming_them_is_enumerated_in_its_place() {
    let all = json!({"allow": true, "access": "rwm"});
    let rule = |kind: &str, minor: i64, access: &str| json!({"allow": true, "type": kind, "major": -1, "minor": minor, "access": access});
    for rules in [
        json!([rule("c", -1, "rwm")]),
        json!([rule("c", -1, "r")]),
        json!([rule("c", 1, "rw")]),
        json!([rule("a", 1, "rwm")]),
        json!([{"allow": true, "type": "a", "major": 8, "minor": 0}]),
        json!([all, rule("c", -1, "rwm")]),
        json!([rule("c", -1, "rwm"), all]),
        json!([rule("c", 1, "r"), {"allow": false, "type": "c", "major": 5, "access": "w"}, all, rule("c", -1, "w")]),
    ] {
        let closed = closed(&rules);
        let view = crate::spec::View::new(&closed);
        let open = crate::spec::OpenDevices::of(view, [195, 507], false);
        assert!(!open.is_any_open(195, |_| true) && !open.is_any_open(507, |_| true), "{rules}");
        assert!(!view.device_rules().any(|rule| rule.opens_every_major()), "{rules}");
        let again = edited(closed.clone(), &[Edit::CloseAllowAll { except: vec![195, 507] }]);
        assert_eq!(again, closed, "{rules}");
    }
}

#[test]
fn what_is_enumerated_keeps_its_minor_its_letters_and_the_rules_after_it() {
    let closed = closed(&json!([
        {"allow": false, "access": "rwm"},
        {"allow": true, "type": "c", "minor": 3, "access": "r"},
        {"allow": false, "type": "c", "major": 1, "minor": 3, "access": "rwm"}
    ]));
    let view = crate::spec::View::new(&closed);
    assert!(view.rules_open(7, Some(3)) && !view.rules_open(7, Some(4)));
    assert!(!view.rules_open(1, Some(3)), "the deny rule after it");
    assert!(view.device_rules().filter(|rule| rule.allow).all(|rule| rule.access == "r"));
    assert!(view.device_rules().all(|rule| rule.kind != "b"), "it was for no block device");
}

#[test]
fn a_rule_for_making_nodes_and_those_of_one_major_stay() {
    let rules = json!([
        {"allow": false, "access": "rwm"},
        {"allow": true, "type": "c", "access": "m"},
        {"allow": true, "type": "b", "access": "rwm"},
        {"allow": true, "type": "c", "major": 10, "access": "rwm"}
    ]);
    assert_eq!(closed(&rules)["linux"]["resources"]["devices"], rules);
}

#[test]
fn too_many_rules_for_every_major_stay_as_they_are() {
    let rules = |n: usize| {
        Value::Array(
            (0..n).map(|minor| json!({"allow": true, "type": "c", "minor": minor})).collect(),
        )
    };
    let length = |n| closed(&rules(n))["linux"]["resources"]["devices"].as_array().unwrap().len();
    assert_eq!(length(REPLACED_MAX), REPLACED_MAX * 510);
    assert_eq!(length(REPLACED_MAX + 1), REPLACED_MAX + 1);
}

#[test]
fn a_list_that_denies_first_gets_no_other_in_front() {
    let open = |spec: Value| edited(spec, &[Edit::OpenAllBut { except: vec![195] }]);
    for spec in [json!({}), json!({"linux": {"resources": {"devices": []}}})] {
        let once = open(spec);
        let view = crate::spec::View::new(&once);
        assert!(view.device_rules().next().unwrap().denies_all());
        assert!(view.rules_open(10, Some(1)) && !view.rules_open(195, Some(0)));
        assert_eq!(open(once.clone()), once);
    }
    let usual = json!({"linux": {"resources": {"devices": [{"allow": false, "access": "rwm"}]}}});
    assert_eq!(open(usual.clone()), usual);
}

#[test]
fn edits_of_one_part_keep_their_order() {
    let set = |name: &str, value: &str| Edit::Env {
        drop: vec![],
        set: vec![(name.to_owned(), value.to_owned())],
    };
    let drop = |name: &str| Edit::Env { drop: vec![name.to_owned()], set: vec![] };
    let spec = json!({"process": {"env": ["A=0", "B=0", "C=0"]}});
    let left = edited(spec, &[set("A", "1"), drop("A"), drop("B"), set("B", "2"), set("B", "3")]);
    assert_eq!(left["process"]["env"], json!(["C=0", "B=3"]));
    let bind = |source: &str| Edit::Bind {
        source: source.to_owned(),
        destination: "/d".to_owned(),
        options: vec![],
    };
    let gone = || Edit::RemoveMount { destination: "/d".to_owned() };
    let mounts = |edits: &[Edit]| {
        let spec =
            json!({"mounts": [{"destination": "/d", "source": "/0"}, {"destination": "/e"}]});
        let left = edited(spec, edits);
        let list = left["mounts"].as_array().unwrap().clone();
        list.iter().map(|m| m["source"].as_str().unwrap_or("-").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(mounts(&[bind("/1"), bind("/2")]), ["/2", "-"], "in the place of the old one");
    assert_eq!(mounts(&[bind("/1"), gone()]), ["-"]);
    assert_eq!(mounts(&[gone(), bind("/1")]), ["-", "/1"]);
    let spec = json!({"annotations": {"a": "1", "b": "2"}});
    let annotate = |value: &str| Edit::SetAnnotation { name: "a".into(), value: value.into() };
    let remove = Edit::RemoveAnnotation { name: "a".into() };
    let left = edited(spec.clone(), &[annotate("3"), remove.clone(), annotate("4")]);
    assert_eq!(left["annotations"], json!({"b": "2"}));
    assert_eq!(edited(spec, &[annotate("3"), annotate("4")])["annotations"]["a"], "4");
}

/// Without the sets of names this takes minutes.
#[test]
fn a_large_document_with_as_many_edits_is_gone_through_once() {
    const N: u32 = 30_000;
    let name = |n: u32| format!("n{n}");
    let spec = json!({
        "process": {"env": (0..N).map(|n| format!("n{n}=1")).collect::<Vec<_>>()},
        "annotations": (0..N).map(|n| (name(n), json!("1"))).collect::<Map<String, Value>>(),
        "mounts": (0..N).map(|n| json!({"destination": name(n)})).collect::<Vec<_>>(),
        "linux": {
            "devices": (0..N).map(|n| json!({"path": name(n), "type": "c", "major": 195, "minor": n})).collect::<Vec<_>>(),
            "resources": {"devices": (0..N).map(|n| json!({"allow": true, "type": "c", "major": 195, "minor": n})).collect::<Vec<_>>()}
        }
    });
    let edits: Vec<Edit> = (0..N)
        .flat_map(|n| {
            [
                Edit::Env { drop: vec![name(n)], set: vec![] },
                Edit::RemoveAnnotation { name: name(n) },
            ]
        })
        .chain((0..N).map(|n| Edit::RemoveMount { destination: name(n) }))
        .chain((0..N).map(|n| Edit::RemoveDevice { major: 195, minor: n }))
        .chain((0..N).map(|n| Edit::RemoveRules { major: 195, minor: Some(n) }))
        .collect();
    let left = edited(spec, &edits);
    for part in ["/process/env", "/mounts", "/linux/devices", "/linux/resources/devices"] {
        assert_eq!(left.pointer(part), Some(&json!([])), "{part}");
    }
    assert_eq!(left["annotations"], json!({}));
}

proptest! {
    #[test]
    fn unknown_fields_survive_and_twice_equals_once(
        extra in "[a-z]{1,8}", value in ".{0,8}", nested in any::<u64>(), env in prop::collection::vec("[A-C]=?[a-z]{0,3}", 0..5)
    ) {
        let spec = json!({
            "ociVersion": "1.9", extra.clone(): {"k": value.clone()},
            "process": {"env": env, "x": nested, "noNewThing": [extra.clone()]},
            "linux": {"namespaces": [{"type": "future"}], "y": {extra.clone(): nested},
                      "resources": {"devices": [{"allow": true, "z": value}]}},
        });
        let once = edited(spec.clone(), &all_edits());
        prop_assert_eq!(once.clone(), edited(once.clone(), &all_edits()));
        if !["process", "linux", "mounts", "hooks"].contains(&extra.as_str()) {
            prop_assert_eq!(&once[&extra], &spec[&extra]);
        }
        prop_assert_eq!(&once["process"]["x"], &spec["process"]["x"]);
        prop_assert_eq!(&once["process"]["noNewThing"], &spec["process"]["noNewThing"]);
        prop_assert_eq!(&once["linux"]["y"], &spec["linux"]["y"]);
        prop_assert_eq!(&once["linux"]["namespaces"][0], &spec["linux"]["namespaces"][0]);
        let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let (before, after) = (keys(&spec), keys(&once));
        prop_assert_eq!(&before[..], &after[..before.len()], "the order of keys");
    }
}
