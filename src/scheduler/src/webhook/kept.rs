//! Labels, annotations and resources of foreign objects: which of them are read, by their names.

use std::collections::BTreeMap;

use mpsgate_kubernetes::WRITTEN;
use mpsgate_model::{GPU_COUNT, MEMORY_ANNOTATIONS};
use mpsgate_policy::{may_read_annotation, pod_annotation};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess};
use serde_json::value::RawValue;

use super::shape::{MOST, Shape, TOO_LONG, Text, deserialized_by_shape};

/// The kubelet's copy of a static pod: the pod runs, whatever becomes of the copy.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";
/// Domains that resources of ours are in; what others write wrong is theirs.
const DOMAINS: [&str; 3] = ["aliyun.com/", "nvidia.com/", "mpsgate.io/"];

/// The key, where labels or annotations of that name are read.
fn known(key: &str) -> Option<&'static str> {
    let known = [MIRROR, GPU_COUNT].into_iter().chain(MEMORY_ANNOTATIONS).chain(WRITTEN);
    known.into_iter().find(|known| *known == key)
}

/// Whether a resource of that name is one of ours.
fn is_ours(resource: &str) -> bool {
    DOMAINS.iter().any(|domain| resource.starts_with(domain))
}

deserialized_by_shape! {
    Kept;
    Quantities;
}

/// Labels or annotations: those that are read.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) known: BTreeMap<&'static str, Text>,
    /// Whether one of the others would have NVIDIA's toolkit give a card.
    pub(super) names_cards: bool,
}

impl Kept {
    pub(super) fn has(&self, key: &str) -> bool {
        self.known.contains_key(key)
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.known.get(key)?.0.as_deref()
    }
}

impl<'de> Shape<'de> for Kept {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut kept = Self::default();
        while let Some(key) = map.next_key::<String>()? {
            match known(&key) {
                Some(key) => drop(kept.known.insert(key, map.next_value()?)),
                None if may_read_annotation(&key) => {
                    let value: Text = map.next_value()?;
                    kept.names_cards |= pod_annotation(&key, value.as_str());
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(kept)
    }
}

/// Amounts of resources of ours, as written.
#[derive(Debug, Default)]
pub(super) struct Quantities(pub(super) BTreeMap<String, Box<RawValue>>);

impl<'de> Shape<'de> for Quantities {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut kept = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            if is_ours(&key) {
                if kept.len() == MOST {
                    return Err(A::Error::custom(TOO_LONG));
                }
                kept.insert(key, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Self(kept))
    }
}
