//! The memory limits that a card's MPS should have: the default, which the next server takes, and a
//! running server's, which its next clients get.
//!
//! A container with a door gets its limit when its client is handed over, so nobody else needs more
//! than the smallest grant. A container with a direct channel may connect at any time: as long as
//! one lives, no limit may be below the largest of theirs, and that of a door may be above its
//! grant.

use mpsgate_config::Processes;
use mpsgate_model::{GpuUuid, Instance, Mib};

use super::Node;
use crate::limits::{MpsLimits, ServerLimit};

/// What a client gets that is to be handed over at a door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtDoor {
    /// Nothing: the container has no grant with a door to this card.
    NoGrant,
    /// What the container's other processes use has not been seen yet.
    Unseen,
    /// They use all of the grant.
    Full,
    /// This limit, from a server for this uid.
    Open {
        /// The server's.
        limit: Mib,
        /// The grant's.
        uid: u32,
    },
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

    /// What the next client at this container's door gets. `since`: the watchdog's looks when one
    /// of this container was handed over last; 0 where that is not known.
    pub fn at_door(
        &self,
        uuid: &GpuUuid,
        instance: &Instance,
        processes: Processes,
        since: u64,
    ) -> AtDoor {
        let mut entries = self.ledger().on_card(uuid);
        let entry = entries.find(|entry| entry.grant.key.instance == *instance);
        let (Some(entry), Some(card)) = (entry, self.card(uuid)) else { return AtDoor::NoGrant };
        let grant = &entry.grant;
        if !grant.has_door() {
            return AtDoor::NoGrant;
        }
        let mut left = grant.memory;
        if processes == Processes::Split && card.watched.blind.is_none() {
            // The look that ended first since then may have begun before.
            if card.watched.looks < since + 2 {
                return AtDoor::Unseen;
            }
            let used = card.watched.used.get(&grant.key).copied().unwrap_or_default();
            if used >= grant.memory {
                return AtDoor::Full;
            }
            left = Mib(grant.memory.0 - used.0);
        }
        let limit = left.max(self.largest_direct(uuid).unwrap_or_default());
        AtDoor::Open { limit, uid: grant.uid }
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
