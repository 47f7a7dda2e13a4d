//! What a document shows at a glance, whatever its size, depth and spelling: no tree is built,
//! because this is read for every container of a node, and nearly all of them ask for nothing of
//! ours.
//!
//! What it shows is what any runtime would read. Keys are taken as [`places`](super::places) says,
//! both of a key that stands twice are shown, and where the fields of one part could come from two
//! places (Go reads a list that stands twice into the elements that it already has) that is shown
//! as [`Seen::Unclear`]. Else it is as lenient as [`View`](super::View): a part of another type
//! than expected is absent.

use std::io::Read;

use super::device::{Number, device_of, rule_of};
use super::places::{Key, Place, is};
use super::text::{Scalar, Text};
use super::{Device, DeviceRule, Mount, SpecError};

/// One thing in a document that can matter to a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen<'a> {
    /// Name of an annotation.
    Annotation(&'a str),
    /// Name of a variable of `process.env`.
    Variable(&'a str),
    /// Entry of `linux.devices`.
    Device(Device<'a>),
    /// Entry of `linux.resources.devices`.
    Rule(DeviceRule<'a>),
    /// Entry of `mounts`.
    Mount(Mount<'a>),
    /// `root.path`, which runtimes bind with all mounts below it.
    Root(&'a str),
    /// A device, rule or mount in which runtimes may read different things.
    Unclear,
    /// The list of rules, or a part on the way to it, stands twice or in another spelling: a
    /// runtime may read another list, or none.
    OtherRules,
}

/// Longest name of an annotation or variable that is shown whole: no known one is near it.
const NAME: usize = 4 << 10;
/// Longest text of a device, rule or mount. A path has 4 KiB at most.
const TEXT: usize = 64 << 10;
const NUMBER: usize = 32;

/// Reads the document once and shows each part that can matter, in the order in which they stand.
///
/// # Errors
/// Where the bytes are no JSON object, so that no runtime makes a container of them, or cannot be
/// read. What was shown until then counts for nothing.
pub fn glance(from: &mut dyn Read, see: &mut dyn FnMut(Seen<'_>)) -> Result<(), SpecError> {
    let mut walk = Walk { text: Text::new(from), see, lists: [0; 3], to_rules: [false; 3] };
    match walk.text.look()? {
        None => return Err(SpecError::Empty),
        Some(b'{') => walk.members(Place::Root)?,
        Some(first) => {
            walk.text.skip()?;
            return Err(SpecError::NotAnObject { found: type_by(first) });
        }
    }
    walk.text.ends_here()
}

fn type_by(first: u8) -> &'static str {
    match first {
        b'[' => "a list",
        b'"' => "text",
        b'n' => "null",
        b't' | b'f' => "true or false",
        _ => "a number",
    }
}

struct Walk<'r, 's> {
    text: Text<'r>,
    see: &'s mut dyn FnMut(Seen<'_>),
    /// How many lists of devices, rules and mounts have begun.
    lists: [u32; 3],
    /// Which parts on the way to the rules have been met: `linux`, its `resources`, their
    /// `devices`.
    to_rules: [bool; 3],
}

impl Walk<'_, '_> {
    fn members(&mut self, place: Place) -> Result<(), SpecError> {
        self.text.expect(b'{')?;
        let mut first = true;
        while self.text.follows(b'}', &mut first)? {
            self.text.key(NAME)?;
            let key = self.text.kept();
            if place == Place::Annotations {
                // crun looks for its names among C strings.
                (self.see)(Seen::Annotation(key.split('\0').next().unwrap_or_default()));
                self.text.skip()?;
                continue;
            }
            let known = place.key(key);
            let below = known.place();
            let on_the_way = [Place::Linux, Place::Resources, Place::Rules];
            if let Some(at) = on_the_way.iter().position(|part| *part == below) {
                let met = self.to_rules.get_mut(at).is_some_and(|met| std::mem::replace(met, true));
                if met || !matches!(known, Key::Known(_)) {
                    (self.see)(Seen::OtherRules);
                }
            }
            match (below, self.text.look()?) {
                (
                    Place::Annotations | Place::Process | Place::Linux | Place::Resources,
                    Some(b'{'),
                ) => self.members(below)?,
                (Place::RootFs, Some(b'{')) => self.root()?,
                (Place::Env, Some(b'[')) => self.variables()?,
                (Place::Devices, Some(b'[')) => self.entries(below, 0)?,
                (Place::Rules, Some(b'[')) => self.entries(below, 1)?,
                (Place::Mounts, Some(b'[')) => self.entries(below, 2)?,
                _ => self.text.skip()?,
            }
        }
        Ok(())
    }

    fn root(&mut self) -> Result<(), SpecError> {
        self.text.expect(b'{')?;
        let mut first = true;
        while self.text.follows(b'}', &mut first)? {
            self.text.key(NUMBER)?;
            if !is(self.text.kept(), "path") {
                self.text.skip()?;
            } else if self.text.scalar(TEXT)? == Scalar::Text {
                if self.text.kept().contains('\0') {
                    (self.see)(Seen::Unclear);
                }
                (self.see)(Seen::Root(self.text.kept()));
            }
        }
        Ok(())
    }

    fn variables(&mut self) -> Result<(), SpecError> {
        self.text.expect(b'[')?;
        let mut first = true;
        while self.text.follows(b']', &mut first)? {
            if self.text.scalar(NAME)? == Scalar::Text {
                let entry = self.text.kept();
                (self.see)(Seen::Variable(entry.split(['=', '\0']).next().unwrap_or_default()));
            }
        }
        Ok(())
    }

    fn entries(&mut self, place: Place, list: usize) -> Result<(), SpecError> {
        let again = self.lists.get(list).is_some_and(|lists| *lists > 0);
        if let Some(lists) = self.lists.get_mut(list) {
            *lists += 1;
        }
        self.text.expect(b'[')?;
        let mut first = true;
        while self.text.follows(b']', &mut first)? {
            if self.text.look()? != Some(b'{') {
                self.text.skip()?;
                continue;
            }
            let entry = Entry::read(&mut self.text)?;
            let mut unclear = entry.unclear || (again && entry.has_gaps(place));
            if place == Place::Rules && (entry.unclear || entry.is_spelled) {
                if !(entry.may_allow || (again && entry.allow.is_none())) {
                    // It denies to everybody, and what it denies is not clear: as if it were not
                    // there.
                    continue;
                }
                // Who knows one spelling alone reads less in it, and so a wider rule.
                unclear = true;
            }
            if unclear {
                (self.see)(Seen::Unclear);
            }
            if let Some(seen) = entry.seen(place, again) {
                (self.see)(seen);
            }
        }
        Ok(())
    }
}

/// The fields that devices, rules and mounts have, together.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "facts of which none follows from another")]
struct Entry {
    path: Option<String>,
    kind: Option<String>,
    access: Option<String>,
    source: Option<String>,
    destination: Option<String>,
    major: Number,
    minor: Number,
    allow: Option<bool>,
    bind: bool,
    /// A field stands twice with different values, or holds what runtimes read differently.
    unclear: bool,
    /// A field is in another spelling.
    is_spelled: bool,
    /// `allow` is true somewhere.
    may_allow: bool,
}

const FIELDS: [&str; 9] =
    ["destination", "type", "source", "options", "allow", "major", "minor", "access", "path"];

impl Entry {
    fn read(text: &mut Text<'_>) -> Result<Self, SpecError> {
        let mut entry = Self::default();
        let mut given = [false; FIELDS.len()];
        text.expect(b'{')?;
        let mut first = true;
        while text.follows(b'}', &mut first)? {
            text.key(NUMBER)?;
            let key = text.kept();
            let Some(at) = FIELDS.iter().position(|name| name.len() <= key.len() && is(key, name))
            else {
                text.skip()?;
                continue;
            };
            entry.is_spelled |= FIELDS.get(at) != Some(&key);
            let again = given.get_mut(at).is_some_and(|given| std::mem::replace(given, true));
            entry.field(at, again, text)?;
        }
        Ok(entry)
    }

    fn field(&mut self, at: usize, again: bool, text: &mut Text<'_>) -> Result<(), SpecError> {
        match at {
            3 => self.bind |= says_bind(text)?,
            4 => {
                let allow = match text.scalar(0)? {
                    Scalar::Bool(allow) => Some(allow),
                    _ => None,
                };
                self.unclear |= again && self.allow != allow;
                self.may_allow |= allow == Some(true);
                self.allow = allow;
            }
            5 | 6 => {
                let number = match text.scalar(NUMBER)? {
                    Scalar::Null => Number::Absent,
                    // `-0`, which other readers take for a fraction.
                    Scalar::Number if text.kept().starts_with("-0") => Number::Odd,
                    Scalar::Number => text.kept().parse().map_or(Number::Odd, Number::Is),
                    _ => Number::Odd,
                };
                let slot = if at == 5 { &mut self.major } else { &mut self.minor };
                self.unclear |= again && *slot != number;
                *slot = number;
            }
            _ => {
                let value = match text.scalar(TEXT)? {
                    Scalar::Text => Some(text.kept().to_owned()),
                    _ => None,
                };
                self.unclear |= value.as_ref().is_some_and(|v| text.is_cut || v.contains('\0'));
                let slot = match at {
                    0 => &mut self.destination,
                    1 => &mut self.kind,
                    2 => &mut self.source,
                    7 => &mut self.access,
                    _ => &mut self.path,
                };
                self.unclear |= again && *slot != value;
                *slot = value;
            }
        }
        Ok(())
    }

    /// Whether a field is missing that runc would take from an earlier list's entry. A rule is read
    /// as the widest that it could become instead.
    fn has_gaps(&self, place: Place) -> bool {
        match place {
            Place::Devices => {
                let absent = Number::Absent;
                self.path.is_none()
                    || self.kind.is_none()
                    || self.major == absent
                    || self.minor == absent
            }
            Place::Mounts => self.source.is_none() || self.destination.is_none(),
            _ => false,
        }
    }

    fn seen(&self, place: Place, again: bool) -> Option<Seen<'_>> {
        let kind = self.kind.as_deref();
        Some(match place {
            Place::Devices => {
                Seen::Device(device_of(self.path.as_deref()?, kind?, self.major, self.minor))
            }
            Place::Rules => Seen::Rule(rule_of(
                self.allow.or_else(|| again.then_some(true))?,
                kind.unwrap_or_default(),
                (self.major, self.minor),
                self.access.as_deref().unwrap_or_default(),
            )?),
            _ => Seen::Mount(Mount {
                destination: self.destination.as_deref().unwrap_or_default(),
                source: self.source.as_deref().unwrap_or_default(),
                is_bind: self.bind || kind == Some("bind") || again,
            }),
        })
    }
}

/// Whether options of a mount say bind.
fn says_bind(text: &mut Text<'_>) -> Result<bool, SpecError> {
    if text.look()? != Some(b'[') {
        return text.skip().map(|()| false);
    }
    text.expect(b'[')?;
    let (mut first, mut bind) = (true, false);
    while text.follows(b']', &mut first)? {
        // Longer than either word, so that a longer option is none of them. crun's strings end at a
        // NUL.
        let is_text = text.scalar(NUMBER)? == Scalar::Text;
        let option = text.kept().split('\0').next().unwrap_or_default();
        bind |= is_text && matches!(option, "bind" | "rbind");
    }
    Ok(bind)
}

#[cfg(test)]
mod tests {
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
        let mut viewed: Vec<String> = view
            .annotations()
            .map(|(name, _)| Seen::Annotation(name))
            .chain(view.env().map(|(name, _)| Seen::Variable(name)))
            .chain(view.devices().map(Seen::Device))
            .chain(view.device_rules().map(Seen::Rule))
            .chain(view.mounts().map(Seen::Mount))
            .chain(view.root().map(|root| Seen::Root(root.source)))
            .map(|seen| format!("{seen:?}"))
            .collect();
        viewed.sort();
        viewed
    }

    /// A part as it should be, or anything else in its place.
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
                    {"source": "/a"}
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
    fn a_key_that_stands_twice_is_shown_twice() {
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
            // Nor is what a reader sees who knows one spelling alone forgotten.
            assert!(shown.iter().any(|s| s == "OtherRules" || s == "Unclear"), "{to}: {shown:?}");
        }
        assert_eq!(shown(r#"{"PROCESS":{"Env":["A=1"]}}"#), [r#"Variable("A")"#]);
        let map = r#"{"annotations":{"Linux":"1"},"x":{"annotations":{"y":"1"}}}"#;
        assert_eq!(shown(map), [r#"Annotation("Linux")"#]);
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
        let text =
            r#"{"annotations":{"run.oci.hooks.stdout\u0000x":"1","b\u0000":"2","\u0000c":"3"}}"#;
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
        // Go reads the second into what is left of the first.
        let merged = rules(allow, r#"{"major":195}"#);
        assert!(
            merged.iter().any(|s| s.contains("allow: true") && s.contains("195")),
            "{merged:?}"
        );
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
}
