//! Words of a fixed list: an enum in the code, and text in messages and files. A word that is not
//! in the list, from a peer of another version, is kept as it came and is not an error.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An enum whose values have words, given by [`words!`](crate::words).
pub trait Words: Copy {
    /// The word of this value.
    fn word(self) -> &'static str;
    /// The value of a word; `None` where the list has no such word.
    fn of(word: &str) -> Option<Self>;
}

/// Gives each value of an enum its word.
#[macro_export]
macro_rules! words {
    ($name:ident: $($value:ident = $word:literal),+ $(,)?) => {
        impl $name {
            /// The word of this value, in messages, files and tables.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $word,)+ }
            }

            /// The value of a word; `None` where the list has no such word.
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$value),)+ _ => None }
            }
        }

        impl $crate::Words for $name {
            fn word(self) -> &'static str {
                self.as_str()
            }

            fn of(word: &str) -> Option<Self> {
                Self::parse(word)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// A word of the list `T`, or another text in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OneOf<T> {
    /// A word of the list.
    Known(T),
    /// Another word, or a sentence.
    Other(String),
}

impl<T: Words> OneOf<T> {
    /// The text as messages have it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(value) => value.word(),
            Self::Other(text) => text,
        }
    }
}

impl<T: Words> From<T> for OneOf<T> {
    fn from(value: T) -> Self {
        Self::Known(value)
    }
}

impl<T: PartialEq> PartialEq<T> for OneOf<T> {
    fn eq(&self, value: &T) -> bool {
        matches!(self, Self::Known(known) if known == value)
    }
}

impl<T: Words> fmt::Display for OneOf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<T: Words> Serialize for OneOf<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de, T: Words> Deserialize<'de> for OneOf<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Ok(T::of(&text).map_or(Self::Other(text), Self::Known))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;
    use crate::ComputeMode;

    #[test]
    fn a_word_is_written_as_it_came_also_where_it_is_not_known() {
        for (text, is_known) in [("DEFAULT", true), ("default", false), ("not ready", false)] {
            let json = format!("\"{text}\"");
            let word: OneOf<ComputeMode> = serde_json::from_str(&json).unwrap();
            assert_eq!(word == ComputeMode::Default, is_known);
            assert_eq!(
                (word.to_string(), serde_json::to_string(&word).unwrap()),
                (text.to_owned(), json)
            );
        }
    }
}
