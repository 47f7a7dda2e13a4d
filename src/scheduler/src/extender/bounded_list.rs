//! A list of which no more is read than it may have.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Reads a list of at most so many, `null` as an empty one.
///
/// # Errors
/// Where it is no such list, or has more.
pub(super) fn read<'de, T: Deserialize<'de>>(
    from: &'de RawValue,
    most: usize,
) -> Result<Vec<T>, serde_json::Error> {
    let mut from = serde_json::Deserializer::from_str(from.get());
    AtMost { most, of: PhantomData }.deserialize(&mut from)
}

struct AtMost<T> {
    most: usize,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for AtMost<T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<T>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for AtMost<T> {
    type Value = Vec<T>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "a list of at most {}", self.most)
    }

    fn visit_unit<E>(self) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = from.next_element()? {
            if all.len() == self.most {
                return Err(A::Error::custom(format_args!(
                    "it names more than {} nodes, and the cluster has not so many",
                    self.most
                )));
            }
            all.push(one);
        }
        Ok(all)
    }
}
