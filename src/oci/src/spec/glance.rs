//! What a document shows at a glance: no tree is built, because this is read for every container of a
//! node, and nearly all of them ask for nothing of ours.
//!
//! As lenient as [`View`](super::View): a part of another type than expected is absent. Where a key
//! stands twice both are shown, so that no reader's choice is missed.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Device, DeviceRule, Mount, SpecError, parse};

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
}

/// Reads the document once and shows each part that can matter, in the order in which they stand.
///
/// # Errors
/// Where the bytes are no JSON object. What was shown until then counts for nothing.
pub fn glance(bytes: &[u8], mut see: impl FnMut(Seen<'_>)) -> Result<(), SpecError> {
    let text = parse::text(bytes)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let walk = Walk { at: At::Root, see: &mut see };
    walk.deserialize(&mut deserializer).and_then(|()| deserializer.end()).map_err(parse::classify)
}

/// Where in the document the reader is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Root,
    Annotations,
    Process,
    Env,
    Linux,
    Resources,
    Devices,
    Rules,
    Mounts,
}

impl At {
    /// What stands below a key; `None` for what no decision reads.
    fn below(self, key: &str) -> Option<Self> {
        match (self, key) {
            (Self::Root, "annotations") => Some(Self::Annotations),
            (Self::Root, "process") => Some(Self::Process),
            (Self::Root, "linux") => Some(Self::Linux),
            (Self::Root, "mounts") => Some(Self::Mounts),
            (Self::Process, "env") => Some(Self::Env),
            (Self::Linux, "devices") => Some(Self::Devices),
            (Self::Linux, "resources") => Some(Self::Resources),
            (Self::Resources, "devices") => Some(Self::Rules),
            _ => None,
        }
    }
}

struct Walk<'s, F> {
    at: At,
    see: &'s mut F,
}

impl<'de, F: FnMut(Seen<'_>)> DeserializeSeed<'de> for Walk<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Scalars that are not what was expected: they are absent.
macro_rules! absent {
    ($value:expr; $($visit:ident: $type:ty),+) => {
        $(fn $visit<E>(self, _: $type) -> Result<Self::Value, E> { Ok($value) })+
        fn visit_unit<E>(self) -> Result<Self::Value, E> { Ok($value) }
    };
}

impl<'de, F: FnMut(Seen<'_>)> Visitor<'de> for Walk<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    absent!((); visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        match self.at {
            At::Env => {
                while let Some(entry) = seq.next_element::<Scalar<'de>>()? {
                    if let Scalar::Text(entry) = entry {
                        let name = entry.split_once('=').map_or(&*entry, |(name, _)| name);
                        (self.see)(Seen::Variable(name));
                    }
                }
            }
            At::Devices | At::Rules | At::Mounts => {
                while let Some(entry) = seq.next_element::<Entry<'de>>()? {
                    if let Some(seen) = entry.seen(self.at) {
                        (self.see)(seen);
                    }
                }
            }
            _ => while seq.next_element::<IgnoredAny>()?.is_some() {},
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Scalar<'de>>()? {
            let key = key.text().unwrap_or_default();
            if self.at == At::Annotations {
                (self.see)(Seen::Annotation(&key));
            }
            match self.at.below(&key) {
                Some(at) => map.next_value_seed(Walk { at, see: &mut *self.see })?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// A text, number or boolean; anything else is absent.
enum Scalar<'a> {
    Text(Cow<'a, str>),
    Number(u32),
    Bool(bool),
    Absent,
}

impl<'a> Scalar<'a> {
    fn text(self) -> Option<Cow<'a, str>> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    fn number(&self) -> Option<u32> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }
}

impl<'de> serde::Deserialize<'de> for Scalar<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    absent!(Scalar::Absent; visit_i64: i64, visit_f64: f64);

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Scalar::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(u32::try_from(value).map_or(Scalar::Absent, Scalar::Number))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Absent)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Absent)
    }
}

/// The fields that devices, rules and mounts have, together.
#[derive(Default)]
struct Entry<'a> {
    path: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
    access: Cow<'a, str>,
    source: Cow<'a, str>,
    destination: Cow<'a, str>,
    major: Option<u32>,
    minor: Option<u32>,
    allow: Option<bool>,
    bind: bool,
}

impl Entry<'_> {
    fn seen(&self, at: At) -> Option<Seen<'_>> {
        let kind = self.kind.as_deref();
        Some(match at {
            At::Devices => Seen::Device(Device {
                path: self.path.as_deref()?,
                kind: kind?,
                major: self.major?,
                minor: self.minor?,
            }),
            At::Rules => Seen::Rule(DeviceRule {
                allow: self.allow?,
                kind: kind.unwrap_or_default(),
                major: self.major,
                minor: self.minor,
                access: &self.access,
            }),
            _ => Seen::Mount(Mount {
                destination: &self.destination,
                source: &self.source,
                is_bind: self.bind || kind == Some("bind"),
            }),
        })
    }
}

impl<'de> serde::Deserialize<'de> for Entry<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    absent!(
        Entry::default();
        visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str
    );

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Entry::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entry = Entry::default();
        while let Some(key) = map.next_key::<Scalar<'de>>()? {
            let key = key.text().unwrap_or_default();
            if key == "options" {
                entry.bind |= map.next_value::<Options>()?.0;
                continue;
            }
            let value = map.next_value::<Scalar<'de>>()?;
            match &*key {
                "major" => entry.major = value.number(),
                "minor" => entry.minor = value.number(),
                "allow" => entry.allow = if let Scalar::Bool(b) = value { Some(b) } else { None },
                "path" => entry.path = value.text(),
                "type" => entry.kind = value.text(),
                "access" => entry.access = value.text().unwrap_or_default(),
                "source" => entry.source = value.text().unwrap_or_default(),
                "destination" => entry.destination = value.text().unwrap_or_default(),
                _ => {}
            }
        }
        Ok(entry)
    }
}

/// Whether options of a mount say bind.
struct Options(bool);

impl<'de> serde::Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OptionsVisitor)
    }
}

struct OptionsVisitor;

impl<'de> Visitor<'de> for OptionsVisitor {
    type Value = Options;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    absent!(
        Options(false);
        visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str
    );

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut bind = false;
        while let Some(option) = seq.next_element::<Scalar<'de>>()? {
            bind |= matches!(option.text().as_deref(), Some("bind" | "rbind"));
        }
        Ok(Options(bind))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Options(false))
    }
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
        glance(text.as_bytes(), |seen| shown.push(format!("{seen:?}"))).unwrap();
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
            rules in prop::option::of(part(json!([]))),
        ) {
            let rule = json!([
                {"allow": allow, "type": kind, "major": major, "minor": minor, "access": access}
            ]);
            let spec = json!({
                "unknown": {"process": {"env": ["X=1"]}, "mounts": [{"type": "bind"}]},
                "process": {"args": ["linux"], "env": env},
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
            let _ = glance(&bytes, |_| {});
        }
    }

    #[test]
    fn a_key_that_stands_twice_is_shown_twice() {
        let text = r#"{"process":{"env":["A=1"]},"process":{"env":["B=1"],"env":["C=1"]}}"#;
        let names = ["A", "B", "C"].map(|name| format!("{:?}", Seen::Variable(name)));
        assert_eq!(shown(text), names);
    }

    #[test]
    fn what_is_no_document_is_an_error() {
        for text in ["", " ", "{\"process\":", "{]", "{} {}", "{\"a\":\"\u{0}\"}"] {
            assert!(glance(text.as_bytes(), |_| {}).is_err(), "{text}");
        }
        assert!(glance(b"{\"a\":\"\xff\"}", |_| {}).is_err());
    }
}
