#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::spec::View;

fn shown(text: &str) -> Vec<String> {
    let mut shown = Vec::new();
    glance(&mut text.as_bytes(), &mut |seen| shown.push(format!("{seen:?}"))).unwrap();
    shown.sort();
    shown
}

/// What the view shows of the same document.
fn viewed(spec: &Value) -> Vec<String> {
    let view = View::new(spec);
    let layers: Vec<_> = view
        .mount_entries()
        .flat_map(|entry| entry.layers().into_iter().map(move |path| (path, entry.destination)))
        .collect();
    let layers = layers.iter().map(|(path, destination)| Seen::Layer { path, destination });
    let mut viewed: Vec<String> = view
        .annotations()
        .map(|(name, _)| Seen::Annotation(name))
        .chain(view.env().map(|(name, _)| Seen::Variable(name)))
        .chain(view.devices().map(Seen::Device))
        .chain(view.device_rules().map(Seen::Rule))
        .chain(view.mounts().map(Seen::Mount))
        .chain(layers)
        .chain(view.root().map(|root| Seen::Root(root.source)))
        .map(|seen| format!("{seen:?}"))
        .collect();
    viewed.sort();
    viewed
}

/// A part with its expected type, or anything else in its place.
fn part(good: Value) -> BoxedStrategy<Value> {
    let bad = prop_oneof![
        Just(Value::Null),
        Just(json!(true)),
        Just(json!(-1)),
        Just(json!(1.5)),
        Just(json!(u64::MAX)),
        Just(json!("\u{e4}\n\"text")),
        Just(json!([])),
        Just(json!([[1], "x", {"a": 1}])),
        Just(json!({"devices": [{"path": 1}], "env": [["A=1"]]})),
    ];
    prop_oneof![3 => Just(good), 1 => bad].boxed()
}

proptest! {
    #[test]
    fn shows_what_the_view_shows(
        env in part(json!(["A=1", "B", "A=2=3", "E=\u{fc}\t"])),
        annotations in part(json!({"a/b": "1", "c\\d": 2})),
        path in part(json!("/dev/nvidia0")), kind in part(json!("c")),
        major in part(json!(195)), minor in part(json!(0)),
        allow in part(json!(true)), access in part(json!("rwm")),
        source in part(json!("/run")), destination in part(json!("/x\\y")),
        options in part(json!(["ro", "rbind"])), mount_kind in part(json!("bind")),
        layers in part(json!(["lowerdir=/a:/b\\:c", "upperdir=/u"])),
        rules in prop::option::of(part(json!([]))), root in part(json!("/r")),
    ) {
        let rule = json!([
            {"allow": allow, "type": kind, "major": major, "minor": minor, "access": access}
        ]);
        let spec = json!({
            "unknown": {"process": {"env": ["X=1"]}, "mounts": [{"type": "bind"}]},
            "process": {"args": ["linux"], "env": env},
            "root": {"readonly": true, "path": root},
            "annotations": annotations,
            "linux": {
                "seccomp": {"devices": [1]},
                "devices": [{"path": path, "type": kind, "major": major, "minor": minor}],
                "resources": {"devices": rules.unwrap_or(rule)}
            },
            "mounts": [
                {"source": source, "destination": destination, "options": options, "type": mount_kind},
                {"source": "/a", "type": "overlay", "destination": "/l", "options": layers}
            ]
        });
        prop_assert_eq!(shown(&spec.to_string()), viewed(&spec));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = glance(&mut &*bytes, &mut |_| {});
    }
}

#[test]
fn a_duplicate_key_is_shown_twice() {
    let text = r#"{"process":{"env":["A=1"]},"process":{"env":["B=1"],"env":["C=1"]}}"#;
    let names = ["A", "B", "C"].map(|name| format!("{:?}", Seen::Variable(name)));
    assert_eq!(shown(text), names);
}

#[test]
fn a_key_is_read_in_every_spelling_that_a_runtime_takes() {
    let rule = r#"{"allow":true,"type":"c","major":195,"access":"rwm"}"#;
    let plain = format!(r#"{{"linux":{{"resources":{{"devices":[{rule}]}}}}}}"#);
    let expected = shown(&plain);
    for (from, to) in [
        ("linux", "Linux"),
        ("linux", r"l\u0049nux"),
        ("resources", "Re\u{17f}ource\u{17f}"),
        ("devices", "DEVICES"),
        ("devices", r"device\u017f"),
        ("devices", r"devices\u0000x"),
        ("allow", "Allow"),
        ("major", "MAJOR"),
        ("access", "acce\u{17f}\u{17f}"),
    ] {
        let shown = shown(&plain.replace(from, to));
        assert!(expected.iter().all(|part| shown.contains(part)), "{to}: {shown:?}");
        // A reader that knows one spelling alone is not forgotten either.
        assert!(shown.iter().any(|s| s == "OtherRules" || s == "Unclear"), "{to}: {shown:?}");
    }
    assert_eq!(shown(r#"{"PROCESS":{"Env":["A=1"]}}"#), [r#"Variable("A")"#]);
    let map = r#"{"annotations":{"Linux":"1"},"x":{"annotations":{"y":"1"}}}"#;
    assert_eq!(shown(map), [r#"Annotation("Linux")"#]);
}

#[test]
fn the_layers_of_an_overlay_are_shown_wherever_its_type_is() {
    let layer = |path| format!("{:?}", Seen::Layer { path, destination: "/x" });
    let options = r#""options":["ro","lowerdir=/run/mpsgate:/b","upperdir=/u\u0000v"]"#;
    for text in [
        format!(r#"{{"mounts":[{{"destination":"/x",{options},"type":"overlay"}}]}}"#),
        format!(r#"{{"mounts":[{{"type":"overlay","destination":"/x",{options}}}]}}"#),
        // Go reads the second list into the elements of the first, type included.
        format!(
            r#"{{"mounts":[{{"type":"overlay"}}],"mounts":[{{"destination":"/x",{options}}}]}}"#
        ),
    ] {
        let shown = shown(&text);
        for path in ["/run/mpsgate", "/b", "/u"] {
            assert!(shown.contains(&layer(path)), "{text}: {shown:?}");
        }
    }
    let other =
        shown(&format!(r#"{{"mounts":[{{"type":"tmpfs","destination":"/x",{options}}}]}}"#));
    assert!(!other.iter().any(|seen| seen.contains("Layer")), "{other:?}");
}

#[test]
fn the_root_is_shown_in_every_spelling() {
    for text in [
        r#"{"root":{"path":"/a"}}"#,
        r#"{"Root":{"readonly":true,"PATH":"/a"}}"#,
        r#"{"root\u0000":{"path\u0000x":"/a"}}"#,
    ] {
        assert_eq!(shown(text), [r#"Root("/a")"#], "{text}");
    }
    let twice = r#"{"root":{"path":"/a","path":"/b"},"x":{"root":{"path":"/c"}}}"#;
    assert_eq!(shown(twice), [r#"Root("/a")"#, r#"Root("/b")"#]);
    assert!(shown(r#"{"root":{"path":"/a\u0000"}}"#).contains(&"Unclear".to_owned()));
}

#[test]
fn the_name_of_an_annotation_ends_at_a_nul() {
    let text = r#"{"annotations":{"run.oci.hooks.stdout\u0000x":"1","b\u0000":"2","\u0000c":"3"}}"#;
    let names = ["", "b", "run.oci.hooks.stdout"];
    assert_eq!(shown(text), names.map(|name| format!("{:?}", Seen::Annotation(name))));
}

#[test]
fn what_two_places_could_fill_is_unclear() {
    let rules = |first: &str, second: &str| {
        shown(&format!(
            r#"{{"linux":{{"resources":{{"devices":[{first}],"devices":[{second}]}}}}}}"#
        ))
    };
    let allow = r#"{"allow":true,"type":"c","major":1,"access":"rwm"}"#;
    // Go reads the second list into what is left of the first.
    let merged = rules(allow, r#"{"major":195}"#);
    assert!(merged.iter().any(|s| s.contains("allow: true") && s.contains("195")), "{merged:?}");
    let deny = rules(allow, r#"{"allow":false,"access":"rwm"}"#);
    assert_eq!(deny.iter().filter(|s| s.contains("allow: true")).count(), 1, "{deny:?}");
    let unclear = |text: &str| shown(text).contains(&"Unclear".to_owned());
    for text in [
        r#"{"linux":{"devices":[{"path":"/x","type":"c","major":1,"Major":195,"minor":0}]}}"#,
        r#"{"linux":{"devices":[{"major":195}],"devices":[{"path":"/x","type":"c"}]}}"#,
        r#"{"mounts":[{"source":"/a"}],"Mounts":[{"destination":"/b","type":"bind"}]}"#,
        r#"{"mounts":[{"source":"/a","source":"/run/mpsgate","destination":"/b"}]}"#,
        r#"{"mounts":[{"source":"/run/mpsgate\u0000","destination":"/b"}]}"#,
        r#"{"linux":{"resources":{"devices":[{"allow":false,"allow":true}]}}}"#,
    ] {
        assert!(unclear(text), "{text}");
    }
    for text in [
        r#"{"mounts":[{"source":"/a","source":"/a","destination":"/b"}]}"#,
        r#"{"mounts":[{"source":"/a","destination":"/b"}],"mounts":[{"source":"/c","destination":"/d"}]}"#,
    ] {
        assert!(!unclear(text), "{text}");
    }
}

#[test]
fn size_depth_and_bad_text_are_no_obstacle() {
    let rule = r#""linux":{"resources":{"devices":[{"allow":true,"type":"c","major":195}]}}"#;
    let deep = format!("{}{}", "[".repeat(3000), "]".repeat(3000));
    let long = "x".repeat(200_000);
    for before in [
        format!(r#""x":{deep}"#),
        format!(r#""annotations":{{"big":"{long}"}}"#),
        format!(r#""{long}":1"#),
        r#""x":"\ud800""#.to_owned(),
        r#""x":1e999,"x":2"#.to_owned(),
    ] {
        let shown = shown(&format!("{{{before},{rule}}}"));
        assert!(shown.iter().any(|seen| seen.contains("195")), "{before:.40}");
    }
    let mut bad = b"{\"x\":\"\xff\",".to_vec();
    bad.extend(rule.bytes().chain(*b"}"));
    let mut rules = 0;
    glance(&mut &*bad, &mut |seen| rules += u32::from(matches!(seen, Seen::Rule(_)))).unwrap();
    assert_eq!(rules, 1);
}

#[test]
fn what_is_no_document_is_an_error() {
    for (text, expected) in [
        ("", "it is empty"),
        (" ", "it is empty"),
        ("{\"process\":", "it is cut off"),
        ("{]", "it is not JSON"),
        ("{} {}", "it is not JSON"),
        ("hello", "it is not JSON"),
        ("[]", "it is a list, not an object"),
        ("null", "it is null, not an object"),
        ("{\"a\":\"\u{0}\"}", "it is not JSON"),
    ] {
        let error = glance(&mut text.as_bytes(), &mut |_| {}).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}
