//! The GPU memory of a node that was granted and used over time: a file for each day, which the
//! daemon writes and `mpsgate usage` reads.
//!
//! Amounts are integrals: KiB × milliseconds, whole numbers, so that sums of days, containers and
//! cards are exact. A card of 192 GiB that is full for a day has 1.7e16 of them.

use std::collections::BTreeMap;

use mpsgate_host::format::{self, FormatError};
use mpsgate_model::PodContainer;
use serde::{Deserialize, Serialize};

use crate::CardMemory;

/// Format of the files.
pub const USAGE_FORMAT: u32 = 1;

/// One day (UTC) of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsageDay {
    /// [`USAGE_FORMAT`].
    pub format: u32,
    /// As `2026-11-26`.
    pub day: String,
    /// Cards by UUID.
    pub cards: BTreeMap<String, CardUsage>,
    /// Grants by card and instance of the container.
    pub grants: BTreeMap<String, GrantUsage>,
}

/// A card's part of a day.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardUsage {
    /// NVML's index, as last seen.
    pub index: u32,
    /// How long the watchdog looked.
    pub looked_ms: u64,
    /// How long NVML reported the parts of its memory.
    pub told_ms: u64,
    /// The parts of its memory during that time, in KiB × ms.
    pub memory: CardMemory,
}

/// A grant's part of a day on one card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantUsage {
    /// The container or plain process, by its name; `(more)` for all beyond [`MOST_GRANTS`].
    pub container_id: String,
    /// Its pod, if kubelet handed the memory out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodContainer>,
    /// The card's UUID.
    pub card: String,
    /// Host uid of its CUDA processes.
    pub uid: u32,
    /// How long the watchdog looked.
    pub looked_ms: u64,
    /// How long NVML reported its memory.
    pub told_ms: u64,
    /// Granted, in KiB × ms.
    pub granted: u64,
    /// Used while NVML reported it, in KiB × ms.
    pub used: u64,
}

/// The most grants of a day that have a row of their own.
pub const MOST_GRANTS: usize = 20_000;

impl UsageDay {
    /// A day without any record yet.
    #[must_use]
    pub fn new(day: String) -> Self {
        Self { format: USAGE_FORMAT, day, cards: BTreeMap::new(), grants: BTreeMap::new() }
    }

    /// The key of a grant on a card.
    #[must_use]
    pub fn key(card: &str, instance: &str) -> String {
        format!("{card}/{instance}")
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// If another version wrote them, or they are not a file of mpsgate.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        format::read(bytes, USAGE_FORMAT)
    }
}
