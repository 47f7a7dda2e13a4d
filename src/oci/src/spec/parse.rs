//! Bytes to JSON and back, with the errors that a person can act on.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::edit::{Edit, EditError, apply};
use super::error::SpecError;
use super::places::{Key, Place};
use super::spec_view::View;

/// Marks a duplicate key inside serde's error text; the rest of the message is the key.
const DUPLICATE: &str = "mpsgate: duplicate key ";
/// The same for a key in another spelling; the rest is the known key, a newline and the key.
const SPELLING: &str = "mpsgate: spelling ";
/// The same for a NUL in a text.
const NUL: &str = "mpsgate: NUL";

/// A parsed `config.json`.
///
/// `linux.seccomp` is half of a usual document and nothing here reads it, so it stays text: it is
/// neither parsed nor written anew.
#[derive(Debug, Clone)]
pub struct Document {
    /// The document, with null in the place of `linux.seccomp`.
    value: Value,
    seccomp: Option<Box<RawValue>>,
}

/// The bytes as the text of a document.
fn text(bytes: &[u8]) -> Result<&str, SpecError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| SpecError::NotUtf8 { at: error.valid_up_to() })?;
    if text.trim_start().is_empty() { Err(SpecError::Empty) } else { Ok(text) }
}

/// Parses a document that every runtime reads alike.
///
/// # Errors
/// See [`SpecError`].
pub fn parse(bytes: &[u8]) -> Result<Document, SpecError> {
    parse_at(bytes, Place::Root)
}

/// Parses the process of `exec`, which is a document of its own.
///
/// # Errors
/// See [`SpecError`].
pub fn parse_process(bytes: &[u8]) -> Result<Document, SpecError> {
    parse_at(bytes, Place::Process)
}

/// Parses the resources of `update`, which are a document of their own.
///
/// # Errors
/// See [`SpecError`].
pub fn parse_resources(bytes: &[u8]) -> Result<Document, SpecError> {
    parse_at(bytes, Place::Resources)
}

fn parse_at(bytes: &[u8], place: Place) -> Result<Document, SpecError> {
    let text = text(bytes)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let seccomp = Cell::new(None);
    let value = Element { place, seccomp: &seccomp }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(classify)?;
    if value.is_object() {
        Ok(Document { value, seccomp: seccomp.into_inner() })
    } else {
        Err(SpecError::NotAnObject { found: crate::json_type(&value) })
    }
}

impl Document {
    /// A read-only view of the document.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View::new(&self.value)
    }

    /// The document as JSON, for edits that are not [`Edit`]s; `linux.seccomp` is null in it.
    pub fn value_mut(&mut self) -> &mut Value {
        &mut self.value
    }

    /// Makes edits in order.
    ///
    /// # Errors
    /// See [`apply`].
    pub fn apply(&mut self, edits: &[Edit]) -> Result<(), EditError> {
        apply(&mut self.value, edits)
    }

    /// The document as text, without white space.
    ///
    /// # Errors
    /// No error in practice.
    pub fn to_vec(&self) -> serde_json::Result<Vec<u8>> {
        let mut text = Vec::with_capacity(32 << 10);
        match (&self.seccomp, &self.value) {
            (Some(seccomp), Value::Object(root)) => {
                write_object(&mut text, root, |text, key, value| match value {
                    Value::Object(linux) if key == "linux" => {
                        write_object(text, linux, |text, key, value| {
                            if key == "seccomp" && value.is_null() {
                                text.extend_from_slice(seccomp.get().as_bytes());
                                Ok(())
                            } else {
                                serde_json::to_writer(text, value)
                            }
                        })
                    }
                    _ => serde_json::to_writer(text, value),
                })?;
            }
            _ => serde_json::to_writer(&mut text, &self.value)?,
        }
        Ok(text)
    }
}

fn write_object(
    text: &mut Vec<u8>,
    object: &Map<String, Value>,
    mut member: impl FnMut(&mut Vec<u8>, &str, &Value) -> serde_json::Result<()>,
) -> serde_json::Result<()> {
    text.push(b'{');
    for (i, (key, value)) in object.iter().enumerate() {
        if i > 0 {
            text.push(b',');
        }
        serde_json::to_writer(&mut *text, key)?;
        text.push(b':');
        member(text, key, value)?;
    }
    text.push(b'}');
    Ok(())
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
    if let Some((known, rest)) = text.strip_prefix(SPELLING).and_then(|t| t.split_once('\n')) {
        let key = rest.rsplit_once(" at line ").map_or(rest, |(key, _)| key);
        return SpecError::Spelling { key: key.to_owned(), known: known.to_owned() };
    }
    if text.starts_with(NUL) {
        return SpecError::Nul;
    }
    SpecError::NotJson(error)
}

/// Like `Value`'s own `Deserialize`, but a duplicate key, a key in another spelling, and a NUL in a
/// text that runtimes read are errors; and `linux.seccomp` stays text.
#[derive(Clone, Copy)]
struct Element<'a> {
    place: Place,
    seccomp: &'a Cell<Option<Box<RawValue>>>,
}

impl Element<'_> {
    fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// Values of annotations are data: no runtime written in C reads them for a decision. It looks
    /// for their names.
    fn check<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if text.contains('\0') && self.place != Place::Annotations {
            return Err(E::custom(NUL));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Element<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Element<'_> {
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

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.check(value)?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: serde::de::Error>(self, value: String) -> Result<Value, E> {
        self.check(&value)?;
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        let item = self.at(self.place.element());
        while let Some(value) = seq.next_element_seed(item)? {
            items.push(value);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        // A rule has five members, and a map begins with room for four: this saves the growth of
        // each of up to 180,000 maps.
        let mut object = Map::with_capacity(if self.place == Place::Rule { 5 } else { 0 });
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("{DUPLICATE}{key}")));
            }
            if self.place == Place::Annotations && key.contains('\0') {
                return Err(A::Error::custom(NUL));
            }
            let place = match self.place.key(&key) {
                _ if self.place == Place::Annotations => Place::Annotations,
                Key::Known(place) => place,
                Key::Unknown => Place::Elsewhere,
                Key::OtherSpelling(known, _) => {
                    return Err(A::Error::custom(format_args!("{SPELLING}{known}\n{key}")));
                }
            };
            let value = if place == Place::Seccomp {
                self.seccomp.set(Some(map.next_value()?));
                Value::Null
            } else {
                map.next_value_seed(self.at(place))?
            };
            object.insert(key, value);
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
        let nul = |text: &str| matches!(parse(text.as_bytes()), Err(SpecError::Nul));
        assert!(nul(r#"{"annotations":{"run.oci.hooks.stdout\u0000":"/x"}}"#));
        assert!(!nul(r#"{"annotations":{"io.example/x":"a\u0000b"}}"#), "a value is data");
        assert_eq!(parse(b"{\"a\":\"\xff\"}").unwrap_err().to_string(), "it is not UTF-8 (byte 6)");
    }

    #[test]
    fn seccomp_stays_as_it_was_written() {
        let text = r#"{"seccomp":1,"linux":{"a":2,"seccomp":{ "x" : [1.0, 18446744073709551616] },"z":null},"b":{"seccomp":[]}}"#;
        let document = parse(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(document.to_vec().unwrap()).unwrap(), text);
        let odd = r#"{"linux":{"seccomp":null}}"#;
        assert_eq!(parse(odd.as_bytes()).unwrap().to_vec().unwrap(), odd.as_bytes());
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
                prop::collection::vec(("[^\u{0}]*", inner), 0..6)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_written_the_same(value in json()) {
            // A NUL is ordinary text here.
            let object = serde_json::json!({ "annotations": value });
            let text = object.to_string();
            prop_assert_eq!(parse(text.as_bytes()).unwrap().to_vec().unwrap(), text.as_bytes());
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
