//! The memory limits that a card's MPS should have: the default, which the next server takes, and a
//! running server's, which its next clients get.
//!
//! A container with a door gets its limit when its client is handed over, so nobody else needs more
//! than the smallest grant. A container with a direct channel may connect at any time: as long as
//! one lives, no limit may be below the largest of theirs, and that of a door may be above its
//! grant.

use mpsgate_model::{GpuUuid, Instance, Mib};

use super::Node;
use crate::limits::{MpsLimits, ServerLimit};

/// Whose client is to be handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtDoor {
    /// The limit that its server must have.
    pub limit: Mib,
    /// The uid of its grant.
    pub uid: u32,
}

impl Node {
    /// What the card's MPS should be told.
    pub fn mps_limits(&self, uuid: &GpuUuid) -> MpsLimits {
        let (direct, doors) = (self.largest_direct(uuid), self.smallest_door(uuid));
        let all = || self.card(uuid).map(|card| card.memory).unwrap_or_default();
        let default = direct.or(doors).unwrap_or_else(all);
        let servers = match (direct, doors) {
            (None, Some(_)) => ServerLimit::Any,
            (Some(_), Some(_)) => ServerLimit::AtLeast(default),
            (_, None) => ServerLimit::Exactly(default),
        };
        MpsLimits { default, servers }
    }

    /// What has to be so when a client at this container's door is handed over; `None` where the
    /// container has no grant with a door to this card.
    pub fn at_door(&self, uuid: &GpuUuid, instance: &Instance) -> Option<AtDoor> {
        let mut entries = self.ledger().on_card(uuid);
        let entry = entries.find(|entry| entry.grant.key.instance == *instance)?;
        let limit = entry.grant.memory.max(self.largest_direct(uuid).unwrap_or_default());
        entry.grant.has_door().then_some(AtDoor { limit, uid: entry.grant.uid })
    }

    fn largest_direct(&self, uuid: &GpuUuid) -> Option<Mib> {
        let direct = self.ledger().on_card(uuid).filter(|entry| !entry.grant.has_door());
        direct.map(|entry| entry.grant.memory).max()
    }

    fn smallest_door(&self, uuid: &GpuUuid) -> Option<Mib> {
        let doors = self.ledger().on_card(uuid).filter(|entry| entry.grant.has_door());
        doors.map(|entry| entry.grant.memory).min()
    }
}
