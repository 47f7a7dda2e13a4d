//! A JSON object whose members are changed in its text: all else keeps its bytes.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::ConfigureError;
use crate::line_ends::place;

/// An object and where its members stand.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    /// The text of the object, from `{` to `}`.
    text: &'a str,
    members: Vec<(String, &'a str)>,
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit<'a>(std::marker::PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Visit<'a> {
            type Value = Members<'a>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'a>, A::Error> {
                let mut members: Vec<(String, &'a RawValue)> = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if members.iter().any(|(other, _)| *other == key) {
                        return Err(A::Error::custom(format_args!(
                            "the key {key:?} stands twice in one object"
                        )));
                    }
                    members.push((key, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Visit(std::marker::PhantomData))
    }
}

impl<'a> Object<'a> {
    /// Parses the object that `text` is, apart from space around it.
    pub(crate) fn of(path: &Path, text: &'a str) -> Result<Self, ConfigureError> {
        // RawValue does not look inside: what is nested must be JSON too, within serde's depth.
        let whole: Result<serde_json::Value, _> = serde_json::from_str(text);
        let members =
            whole.and_then(|_| serde_json::from_str::<Members<'a>>(text)).map_err(|error| {
                let said = error.to_string();
                let what = said.split(" at line ").next().unwrap_or(&said).to_owned();
                let (line, column) = if error.line() == 0 {
                    place(text, 0)
                } else {
                    (error.line(), error.column().max(1))
                };
                ConfigureError::Syntax { path: path.to_owned(), line, column, what }
            })?;
        let members = members.0.into_iter().map(|(key, raw)| (key, raw.get())).collect();
        Ok(Self { text: text.trim(), members })
    }

    /// A member's text.
    pub(crate) fn get(&self, key: &str) -> Option<&'a str> {
        self.members.iter().find(|(have, _)| have == key).map(|(_, text)| *text)
    }

    /// The object with `key` set to what `render` makes of the indentation, in the manner of the
    /// object.
    pub(crate) fn with(
        &self,
        key: &str,
        outer: &Style,
        render: impl Fn(&Style) -> String,
    ) -> String {
        let style = self.style(outer);
        if let Some(old) = self.get(key) {
            let at = self.offset(old);
            let new = render(&style);
            return [self.text.get(..at), Some(&new), self.text.get(at + old.len()..)]
                .into_iter()
                .flatten()
                .collect();
        }
        let member = format!("{}: {}", quote(key), render(&style));
        match self.members.last() {
            Some((_, last)) => {
                let end = self.offset(last) + last.len();
                let separator = style
                    .line
                    .as_ref()
                    .map_or_else(|| ", ".to_owned(), |line| format!(",\n{line}"));
                [self.text.get(..end), Some(&separator), Some(&member), self.text.get(end..)]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            None => style.object(&[member], outer),
        }
    }

    fn offset(&self, part: &str) -> usize {
        part.as_ptr().addr().saturating_sub(self.text.as_ptr().addr())
    }

    /// How this object's members stand: each on a line, so far in, or all on one.
    pub(crate) fn style(&self, outer: &Style) -> Style {
        let inside = self.text.get(1..).unwrap_or("");
        let space: &str = inside.split(|c: char| !c.is_whitespace()).next().unwrap_or("");
        if self.members.is_empty() {
            return outer.inner();
        }
        match space.rsplit_once('\n') {
            None => Style { line: None, step: outer.step.clone() },
            Some((_, line)) => {
                let outside = outer.line.as_deref().unwrap_or("");
                let step = line
                    .strip_prefix(outside)
                    .filter(|step| !step.is_empty())
                    .unwrap_or(&outer.step);
                Style { line: Some(line.to_owned()), step: step.to_owned() }
            }
        }
    }
}

/// How members of an object stand.
#[derive(Debug, Clone)]
pub(crate) struct Style {
    /// What stands before each; `None`: all on one line.
    line: Option<String>,
    /// What one level adds.
    step: String,
}

impl Style {
    /// What surrounds a file's object.
    pub(crate) fn file() -> Self {
        Self { line: Some(String::new()), step: "  ".to_owned() }
    }

    fn inner(&self) -> Self {
        Self {
            line: self.line.as_ref().map(|line| format!("{line}{}", self.step)),
            step: self.step.clone(),
        }
    }

    /// An object of rendered members, whose own style this is and which stands in `outer`.
    fn object(&self, members: &[String], outer: &Self) -> String {
        match (&self.line, &outer.line) {
            (Some(line), Some(outer)) => {
                format!("{{\n{line}{}\n{outer}}}", members.join(&format!(",\n{line}")))
            }
            _ => format!("{{{}}}", members.join(", ")),
        }
    }

    /// A new object that stands as a member in this style.
    pub(crate) fn nested(&self, members: &[(&str, String)]) -> String {
        let members: Vec<String> =
            members.iter().map(|(key, value)| format!("{}: {value}", quote(key))).collect();
        self.inner().object(&members, self)
    }
}

/// A text as JSON.
pub(crate) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    fn with(text: &str, key: &str, value: &str) -> String {
        let object = Object::of(Path::new("f"), text).unwrap();
        object.with(key, &Style::file(), |_| value.to_owned())
    }

    #[test]
    fn a_member_is_added_in_the_manner_of_its_neighbours() {
        assert_eq!(with("{}", "a", "1"), "{\n  \"a\": 1\n}");
        assert_eq!(with("{\"x\":1}", "a", "1"), "{\"x\":1, \"a\": 1}");
        assert_eq!(with("{\n\t\"x\": [ 1 ]\n}", "a", "1"), "{\n\t\"x\": [ 1 ],\n\t\"a\": 1\n}");
        assert_eq!(with("{\n    \"x\" : 1.50 }", "x", "2"), "{\n    \"x\" : 2 }");
        assert_eq!(with("{\"x\" : 1.50 }", "y", "2"), "{\"x\" : 1.50, \"y\": 2 }");
    }

    #[test]
    fn an_error_says_where() {
        for (text, at, part) in [
            ("{\n  // no\n}", (2, 3), "key must be a string"),
            ("{\"a\":1,\"a\":2}", (1, 10), "twice"),
            ("[]", (1, 1), "an object"),
        ] {
            let ConfigureError::Syntax { line, column, what, .. } =
                Object::of(Path::new("f"), text).unwrap_err()
            else {
                panic!()
            };
            assert!(what.contains(part), "{what}");
            assert_eq!((line, column), at, "{text}: {what}");
        }
    }
}
