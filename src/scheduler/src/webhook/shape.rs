//! How a foreign document is read: by shape. What is of another shape than expected counts as not
//! there, what is of no interest is passed over as it is read. So what a body costs in memory is
//! what matters in it, and never more than some times its bytes: `[{},{},…]` costs nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Elements of one list that matter, or keys of one map: more than any pod has of anything. What
/// has more is not looked at.
pub(super) const MOST: usize = 10_000;
/// What is said of it.
pub(super) const TOO_LONG: &str = "a list of more than 10000";

/// A value that is made of whatever stands there.
pub(super) trait Shape<'de>: Default {
    fn read<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Any(PhantomData))
    }

    fn of_bool(_: bool) -> Self {
        Self::default()
    }

    fn of_text(_: &str) -> Self {
        Self::default()
    }

    fn of_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }

    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

struct Any<T>(PhantomData<T>);

impl<'de, T: Shape<'de>> Visitor<'de> for Any<T> {
    type Value = T;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("anything")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<T, E> {
        Ok(T::of_bool(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<T, E> {
        Ok(T::of_text(value))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::of_list(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::of_map(map)
    }
}

macro_rules! deserialized_by_shape {
    ($($type:ty $(, $parameter:ident: $bound:path)?;)+) => { $(
        impl<'de $(, $parameter: $bound)?> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                Shape::read(from)
            }
        }
    )+ };
}
pub(super) use deserialized_by_shape;

deserialized_by_shape! {
    Text;
    Flag;
    Texts;
    List<T>, T: Element<'de>;
    Object<T>, T: Deserialize<'de>;
}

/// A string.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Text(pub(super) Option<String>);

impl Text {
    pub(super) fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl Shape<'_> for Text {
    fn of_text(text: &str) -> Self {
        Self(Some(text.to_owned()))
    }
}

/// A boolean.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flag(pub(super) Option<bool>);

impl Flag {
    pub(super) fn is(self, value: bool) -> bool {
        self.0 == Some(value)
    }
}

impl Shape<'_> for Flag {
    fn of_bool(value: bool) -> Self {
        Self(Some(value))
    }
}

/// What may stand in a [`List`].
pub(super) trait Element<'de>: Deserialize<'de> {
    /// Whether it is worth keeping.
    fn matters(&self) -> bool {
        true
    }
}

impl Element<'_> for Text {}

impl<'de, T: Deserialize<'de> + Element<'de>> Element<'de> for Object<T> {
    fn matters(&self) -> bool {
        self.0.as_ref().is_some_and(Element::matters)
    }
}

/// The elements that matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct List<T>(pub(super) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Element<'de>> Shape<'de> for List<T> {
    fn of_list<A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut kept = Vec::new();
        while let Some(element) = list.next_element::<T>()? {
            if element.matters() {
                if kept.len() == MOST {
                    return Err(A::Error::custom(TOO_LONG));
                }
                kept.push(element);
            }
        }
        Ok(Self(kept))
    }
}

/// An object with fields of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object<T>(pub(super) Option<T>);

impl<T> Default for Object<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Shape<'de> for Object<T> {
    fn of_map<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|value| Self(Some(value)))
    }
}

/// Texts by name, all of them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Texts(pub(super) BTreeMap<String, Text>);

impl<'de> Shape<'de> for Texts {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut kept = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, Text>()? {
            if kept.len() == MOST {
                return Err(A::Error::custom(TOO_LONG));
            }
            kept.insert(key, value);
        }
        Ok(Self(kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_has_the_bound_and_the_bound_is_still_read() {
        assert!(TOO_LONG.ends_with(&MOST.to_string()));
        for (count, is_read) in [(MOST, true), (MOST + 1, false)] {
            let list = format!("[{}]", vec![r#""a""#; count].join(","));
            let map: Vec<String> = (0..count).map(|n| format!(r#""{n}":"""#)).collect();
            let map = format!("{{{}}}", map.join(","));
            let list = serde_json::from_str::<List<Text>>(&list).map(|list| list.0.len());
            let map = serde_json::from_str::<Texts>(&map).map(|map| map.0.len());
            for read in [list, map] {
                match read {
                    Ok(read) => assert!(is_read && read == count, "{read}"),
                    Err(why) => {
                        assert!(!is_read && why.to_string().starts_with(TOO_LONG), "{why}");
                    }
                }
            }
        }
    }
}
