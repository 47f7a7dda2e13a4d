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

/// The beginning of a limit of which kube-scheduler makes a claim of whole devices. The class's
/// name comes after it.
const CLASS: &str = "deviceclass.resource.kubernetes.io/";
/// The end of the names of mpsgate's own classes. What class of another name has mpsgate's cards,
/// its node knows.
const OURS: &str = "mpsgate.io";
/// The longest name of a class.
const LONGEST_CLASS: usize = 253;

/// The key, where labels or annotations of that name are read.
fn known(key: &str) -> Option<&'static str> {
    let known = [MIRROR, GPU_COUNT].into_iter().chain(MEMORY_ANNOTATIONS).chain(WRITTEN);
    known.into_iter().find(|known| *known == key)
}

/// Whether a resource of that name is one of ours.
fn is_ours(resource: &str) -> bool {
    DOMAINS.iter().any(|domain| resource.starts_with(domain))
}

/// Whether a resource of that name is a whole card by the name of its class.
fn is_class(resource: &str) -> bool {
    let class = resource.strip_prefix(CLASS).filter(|class| class.len() <= LONGEST_CLASS);
    class.is_some_and(|class| {
        class.ends_with(OURS)
            && class.bytes().all(|one| one.is_ascii_alphanumeric() || matches!(one, b'.' | b'-'))
    })
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
pub(super) struct Quantities {
    pub(super) ours: BTreeMap<String, Box<RawValue>>,
    /// A resource that is a whole card by the name of its class.
    pub(super) class: Option<String>,
}

impl<'de> Shape<'de> for Quantities {
    fn of_map<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut kept = Self::default();
        while let Some(key) = map.next_key::<String>()? {
            if is_ours(&key) {
                if kept.ours.len() == MOST {
                    return Err(A::Error::custom(TOO_LONG));
                }
                kept.ours.insert(key, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
                if is_class(&key) {
                    kept.class = Some(key);
                }
            }
        }
        Ok(kept)
    }
}
