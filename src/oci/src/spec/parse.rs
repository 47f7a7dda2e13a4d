//! Bytes to JSON, with the errors that a person can act on.

use std::fmt;

use serde_json::{Map, Value};

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

/// Why bytes are no `config.json`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No bytes at all.
    #[error("it is empty")]
    Empty,
    /// Not UTF-8, which JSON must be.
    #[error("it is not UTF-8 (byte {at})")]
    NotUtf8 {
        /// Offset of the first bad byte.
        at: usize,
    },
    /// Ends in the middle.
    #[error("it is cut off")]
    CutOff(#[source] serde_json::Error),
    /// Not JSON.
    #[error("it is not JSON")]
    NotJson(#[source] serde_json::Error),
    /// Nested deeper than 127 levels.
    #[error("it is nested deeper than 127 levels")]
    TooDeep,
    /// A key occurs twice in one object: readers differ in which one they take.
    #[error("the key {key:?} stands twice in one object")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// JSON, but not an object.
    #[error("it is {found}, not an object")]
    NotAnObject {
        /// What it is.
        found: &'static str,
    },
}

impl SpecError {
    /// Whether no runtime can make a container of it either. The other errors are limits of ours.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        matches!(self, Self::Empty | Self::CutOff(_) | Self::NotJson(_) | Self::NotAnObject { .. })
    }
}

/// Marks a duplicate key inside serde's error text; the rest of the message is the key.
const DUPLICATE: &str = "mpsgate: duplicate key ";

/// Parses the whole document, for editing.
///
/// # Errors
/// See [`SpecError`].
pub fn parse(bytes: &[u8]) -> Result<Value, SpecError> {
    parse_with(bytes, false)
}

/// Parses the document without the parts that no decision reads (`linux.seccomp`, which is half of
/// a usual one). Must not be written back.
///
/// # Errors
/// See [`SpecError`].
pub fn parse_for_decision(bytes: &[u8]) -> Result<Value, SpecError> {
    parse_with(bytes, true)
}

fn parse_with(bytes: &[u8], prune: bool) -> Result<Value, SpecError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| SpecError::NotUtf8 { at: error.valid_up_to() })?;
    if text.trim_start().is_empty() {
        return Err(SpecError::Empty);
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let seed = Node { prune: if prune { Prune::Root } else { Prune::Nothing } };
    let value = seed
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(classify)?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(SpecError::NotAnObject { found: crate::json_type(&value) })
    }
}

fn classify(error: serde_json::Error) -> SpecError {
    if error.is_eof() {
        return SpecError::CutOff(error);
    }
    let text = error.to_string();
    if text.starts_with("recursion limit exceeded") {
        return SpecError::TooDeep;
    }
    if let Some(rest) = text.strip_prefix(DUPLICATE) {
        // serde_json adds " at line L column C" to the text of a custom error.
        let key = rest.rsplit_once(" at line ").map_or(rest, |(key, _)| key);
        return SpecError::DuplicateKey { key: key.to_owned() };
    }
    SpecError::NotJson(error)
}

/// Which keys of the next object are skipped.
#[derive(Clone, Copy)]
enum Prune {
    Root,
    Linux,
    Nothing,
}

impl Prune {
    /// What to prune below `key`; `None` skips its value.
    fn below(self, key: &str) -> Option<Self> {
        match (self, key) {
            (Self::Root, "linux") => Some(Self::Linux),
            (Self::Linux, "seccomp") => None,
            _ => Some(Self::Nothing),
        }
    }
}

/// Like `Value`'s own `Deserialize`, but a key that stands twice is an error.
#[derive(Clone, Copy)]
struct Node {
    prune: Prune,
}

impl<'de> DeserializeSeed<'de> for Node {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        let item = Self { prune: Prune::Nothing };
        while let Some(value) = seq.next_element_seed(item)? {
            items.push(value);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if let Some(prune) = self.prune.below(&key) {
                if object.contains_key(&key) {
                    return Err(A::Error::custom(format_args!("{DUPLICATE}{key}")));
                }
                let value = map.next_value_seed(Self { prune })?;
                object.insert(key, value);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_bad_document_has_its_own_error() {
        let deep = format!("{}{}", "{\"a\":".repeat(200), "1");
        for (text, expected) in [
            ("", "it is empty"),
            ("  \n", "it is empty"),
            ("{\"process\":", "it is cut off"),
            ("{]", "it is not JSON"),
            ("{} {}", "it is not JSON"),
            ("[]", "it is a list, not an object"),
            ("null", "it is null, not an object"),
            ("{\"a\":{\"b\":1,\"b\":2}}", "the key \"b\" stands twice in one object"),
            (&deep, "it is nested deeper than 127 levels"),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().to_string(), expected, "{text}");
        }
        assert_eq!(parse(b"{\"a\":\"\xff\"}").unwrap_err().to_string(), "it is not UTF-8 (byte 6)");
    }

    #[test]
    fn only_seccomp_is_left_out_for_a_decision() {
        let text = br#"{"seccomp":1,"linux":{"seccomp":{"a":[1]},"devices":[{"seccomp":2}]}}"#;
        let pruned = parse_for_decision(text).unwrap();
        assert_eq!(pruned.to_string(), r#"{"seccomp":1,"linux":{"devices":[{"seccomp":2}]}}"#);
    }

    pub(crate) fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i32>().prop_map(|n| Value::from(f64::from(n) / 8.0)),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((".*", inner), 0..6)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_written_the_same(value in json()) {
            let object = serde_json::json!({ "any": value });
            let text = object.to_string();
            prop_assert_eq!(parse(text.as_bytes()).unwrap().to_string(), text);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = parse_for_decision(&bytes);
        }
    }
}
