//! One object out of its JSON: read as a whole, in part or not at all. Pure.
//!
//! What nobody reads of it, such as `managedFields`, is skipped: serde_json does that without
//! recursion, to any depth, where a tree of it ends at 128.

use std::collections::BTreeMap;

use mpsgate_model::printable::plain;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Annotations of a pod that are kept: ours, and what the schedulers of ACK and gpushare write.
pub(crate) const KEPT: [&str; 4] = [
    "mpsgate.io/",
    "ALIYUN_COM_GPU_MEM_",
    "scheduler.framework.gpushare.",
    "gpushare.alibabacloud.com/",
];
/// What is told of an error, which may quote the object.
const LONGEST_TOLD: usize = 200;

/// A kind of objects.
pub(crate) trait Object: DeserializeOwned {
    /// `Pod`.
    const KIND: &'static str;
    /// `api/v1`, or `apis/GROUP/v1`.
    const GROUP: &'static str;
    /// `pods`.
    const PLURAL: &'static str;
    /// Its name.
    fn name(&self) -> Option<&str>;
    /// Its `resourceVersion`.
    fn version(&self) -> Option<&str>;
    /// Its namespace, where it has one.
    fn namespace(&self) -> Option<&str> {
        None
    }
    /// What counts of one that cannot be read as a whole; by default nothing does. `ours`: its
    /// bytes have a word of mpsgate's.
    fn part(_json: &str, _ours: bool) -> Option<Self> {
        None
    }
}

/// An object that was found, and read or not.
pub(crate) type Found<K> = Result<K, Box<Unread<K>>>;

/// What of a found object counts.
pub(crate) fn part<K>(found: Found<K>) -> Option<K> {
    found.map_or_else(|unread| unread.part, Some)
}

/// An object that is there and cannot be read as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// `Pod`.
    pub kind: &'static str,
    /// `namespace/name`, or the name of what has no namespace.
    pub name: String,
    /// Why, in words of the reader; text of the object's is printable in it.
    pub why: String,
    /// Something of it could be read all the same, and counts.
    pub counts: bool,
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, name, why, counts } = self;
        let what = if *counts { "what can be read of it counts" } else { "it is left out" };
        write!(out, "{kind} {name}: {why}; {what}")
    }
}

/// One that cannot be read, as it comes in.
#[derive(Debug, Clone)]
pub(crate) struct Unread<K> {
    pub(crate) left: LeftOut,
    pub(crate) meta: Meta,
    /// What of it counts.
    pub(crate) part: Option<K>,
}

impl<K: Object> Unread<K> {
    fn of(json: &str, error: &serde_json::Error) -> Self {
        let meta = Meta::lenient(member(json, "metadata").unwrap_or_default());
        let part = K::part(json, has_word_of_ours(json));
        let left = LeftOut {
            kind: K::KIND,
            name: key(meta.namespace.as_deref(), meta.name.as_deref()),
            why: plain(&error.to_string()).chars().take(LONGEST_TOLD).collect(),
            counts: part.is_some(),
        };
        Self { left, meta, part }
    }
}

/// One object from its JSON.
pub(crate) fn read<K: Object>(json: &str) -> Found<K> {
    serde_json::from_str(json).map_err(|error| Box::new(Unread::of(json, &error)))
}

/// `namespace/name`, by which one object is told from the others of its kind.
pub(crate) fn key(namespace: Option<&str>, name: Option<&str>) -> String {
    let name = plain(name.unwrap_or("(without a name)"));
    match namespace.filter(|namespace| !namespace.is_empty()) {
        Some(namespace) => format!("{}/{name}", plain(namespace)),
        None => name,
    }
}

pub(crate) fn key_of<K: Object>(found: &Found<K>) -> String {
    match found {
        Ok(object) => key(object.namespace(), object.name()),
        Err(unread) => unread.left.name.clone(),
    }
}

/// The command that shows an object, named as [`key`] has it.
pub(crate) fn look(kind: &str, name: &str) -> String {
    let kind = kind.to_lowercase();
    match name.split_once('/') {
        Some((namespace, name)) => format!("kubectl get {kind} -n {namespace} {name} -o json"),
        None => format!("kubectl get {kind} {name} -o json"),
    }
}

/// A member of a JSON object, as text.
pub(crate) fn member<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let mut all: BTreeMap<String, &'a RawValue> = serde_json::from_str(json).ok()?;
    all.remove(name).map(RawValue::get)
}

/// That member, where it can be read as what it should be.
pub(crate) fn member_as<T: DeserializeOwned>(json: &str, name: &str) -> Option<T> {
    serde_json::from_str(member(json, name)?).ok()
}

/// Whether an object may ask mpsgate for something: prefixes of its annotations and resources, and
/// of those that it serves in the place of others'. Of an object that cannot be read this is all
/// that is known.
fn has_word_of_ours(json: &str) -> bool {
    const RESOURCES: [&str; 2] = ["aliyun.com/gpu-", "nvidia.com/gpu-"];
    KEPT.iter().chain(&RESOURCES).any(|word| json.contains(*word))
}

/// `null` where Go writes an empty list or map.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// What is read of every object's metadata.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    pub(crate) name: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) annotations: Option<BTreeMap<String, String>>,
    /// Whether there is one is all that counts.
    pub(crate) deletion_timestamp: Option<IgnoredAny>,
}

impl Meta {
    /// What can be read of metadata that cannot be read as a whole.
    pub(crate) fn lenient(json: &str) -> Self {
        let texts = |name: &str| -> Option<BTreeMap<String, String>> {
            let all: BTreeMap<String, &RawValue> =
                serde_json::from_str(member(json, name)?).ok()?;
            let text = |value: &RawValue| serde_json::from_str(value.get()).ok();
            Some(all.into_iter().filter_map(|(key, value)| Some((key, text(value)?))).collect())
        };
        Self {
            name: member_as(json, "name"),
            namespace: member_as(json, "namespace"),
            uid: member_as(json, "uid"),
            resource_version: member_as(json, "resourceVersion"),
            labels: texts("labels"),
            annotations: texts("annotations"),
            deletion_timestamp: member_as::<Option<IgnoredAny>>(json, "deletionTimestamp")
                .flatten(),
        }
    }
}

#[cfg(test)]
mod tests;
