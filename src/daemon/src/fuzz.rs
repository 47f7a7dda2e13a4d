//! Doors for `tests/fuzz`: the parsers of this crate that read what others wrote, one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use mpsgate_host::format::FormatError;
use mpsgate_model::GpuUuid;
use mpsgate_node::holders::Holders;

pub use crate::node_cdi::{Cache as Specifications, KIND};

/// The pid, and the nested ones, in the `fdinfo` of a pidfd.
#[must_use]
pub fn fdinfo(text: &str) -> Option<(u32, Vec<u32>)> {
    crate::process_end::parse_fdinfo(text).map(|found| (found.pid, found.nested))
}

/// NVIDIA's majors in the text of `/proc/devices`.
#[must_use]
pub fn majors(text: &str) -> BTreeMap<String, u32> {
    crate::device_nodes::parse_majors(text)
}

/// `swarm-resource` in the NVIDIA container toolkit's settings.
#[must_use]
pub fn swarm_resources(text: &str) -> Vec<String> {
    crate::snapshot::parse_swarm_resources(text)
}

/// `annotation-prefixes` there.
#[must_use]
pub fn annotation_prefixes(text: &str) -> Vec<String> {
    crate::snapshot::parse_annotation_prefixes(text)
}

/// The cards in `managed.json`.
///
/// # Errors
/// `InvalidData` for what is no list of ours.
pub fn managed(text: &[u8]) -> io::Result<BTreeSet<GpuUuid>> {
    crate::managed::parse(text).map(|found| found.cards)
}

/// Whose the pids on each card were, in `holders.json`.
///
/// # Errors
/// What is wrong with it.
pub fn holders(text: &[u8]) -> Result<BTreeMap<GpuUuid, Holders>, FormatError> {
    crate::watchdog::pid_record::parse(text)
}
