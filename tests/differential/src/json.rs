//! JSON that need not be well made: objects with a key twice, numbers and strings as they shall be
//! written.

use std::fmt::Write as _;

use crate::Failure;

/// A value; `Raw` is written as it is.
#[derive(Debug, Clone)]
pub(crate) enum Json {
    Raw(Vec<u8>),
    List(Vec<Json>),
    /// Keys are written as they are, between quotes.
    Object(Vec<(String, Json)>),
}

impl Json {
    pub(crate) fn raw(text: &str) -> Self {
        Self::Raw(text.as_bytes().to_vec())
    }

    pub(crate) fn text(text: &str) -> Self {
        Self::Raw(serde_json::Value::from(text).to_string().into_bytes())
    }

    pub(crate) fn object<const N: usize>(members: [(&str, Json); N]) -> Self {
        Self::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// A member, made where it is missing or not of this kind.
    pub(crate) fn member(&mut self, key: &str, make: Json) -> &mut Json {
        if !matches!(self, Self::Object(_)) {
            *self = Self::Object(Vec::new());
        }
        let Self::Object(members) = self else { unreachable!("made above") };
        let at = members.iter().position(|(found, _)| found == key).unwrap_or_else(|| {
            members.push((key.to_owned(), make));
            members.len() - 1
        });
        &mut members[at].1
    }

    pub(crate) fn set(&mut self, key: &str, value: Json) {
        *self.member(key, Self::raw("null")) = value;
    }

    /// Adds to a list; whatever else was there is replaced by one.
    pub(crate) fn push(&mut self, value: Json) {
        if let Self::List(items) = self {
            items.push(value);
        } else {
            *self = Self::List(vec![value]);
        }
    }

    pub(crate) fn list(&mut self) -> &mut Vec<Json> {
        if !matches!(self, Self::List(_)) {
            *self = Self::List(Vec::new());
        }
        let Self::List(items) = self else { unreachable!("made above") };
        items
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let between = |out: &mut Vec<u8>, at: usize| {
            if at > 0 {
                out.push(b',');
            }
        };
        match self {
            Self::Raw(bytes) => out.extend_from_slice(bytes),
            Self::List(items) => {
                out.push(b'[');
                for (at, item) in items.iter().enumerate() {
                    between(out, at);
                    item.write(out);
                }
                out.push(b']');
            }
            Self::Object(members) => {
                out.push(b'{');
                for (at, (key, value)) in members.iter().enumerate() {
                    between(out, at);
                    out.push(b'"');
                    out.extend_from_slice(key.as_bytes());
                    out.extend_from_slice(b"\":");
                    value.write(out);
                }
                out.push(b'}');
            }
        }
    }
}

pub(crate) fn parse(text: &str) -> Result<Json, Failure> {
    Ok(of(&serde_json::from_str(text)?))
}

fn of(value: &serde_json::Value) -> Json {
    match value {
        serde_json::Value::Array(items) => Json::List(items.iter().map(of).collect()),
        serde_json::Value::Object(members) => {
            Json::Object(members.iter().map(|(key, value)| (key.clone(), of(value))).collect())
        }
        other => Json::raw(&other.to_string()),
    }
}

/// A key in other letters that Go's encoding/json takes for the same: it folds case, and the two
/// letters beyond ASCII that fold to ASCII ones. Or the same key with one letter as an escape.
pub(crate) fn respelled(key: &str, how: u64) -> String {
    let mut letters = key.chars();
    match how % 5 {
        0 => key.to_uppercase(),
        1 => letters
            .next()
            .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect()),
        2 if key.contains('s') => key.replacen('s', "\u{17f}", 1),
        3 if key.contains('k') => key.replacen('k', "\u{212a}", 1),
        _ => {
            let mut text = String::new();
            for (at, letter) in key.chars().enumerate() {
                if at == 1 {
                    let _ = write!(text, "\\u{:04x}", u32::from(letter));
                } else {
                    text.push(letter);
                }
            }
            text
        }
    }
}
