//! The memory limits that a card's MPS should have: the default, which the next server takes, and
//! the running server's at each hand-over, which is the container's own. So nobody else needs more
//! than the smallest grant.

use mpsgate_config::Processes;
use mpsgate_model::{GpuUuid, Instance, Mib};

use super::Node;

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
    /// The limit of the next server's clients that come past the doors: the smallest grant; all of
    /// the card where there is none.
    pub fn default_limit(&self, uuid: &GpuUuid) -> Mib {
        let smallest = self.ledger().on_card(uuid).map(|entry| entry.grant.memory).min();
        let all = || self.card(uuid).map(|card| card.memory).unwrap_or_default();
        smallest.unwrap_or_else(all)
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
        if processes == Processes::Split && card.watched().blind.is_none() {
            // The look that ended first since then may have begun before.
            if card.watched().looks < since + 2 {
                return AtDoor::Unseen;
            }
            let used = card.watched().used.get(&grant.key).copied().unwrap_or_default();
            if used >= grant.memory {
                return AtDoor::Full;
            }
            left = Mib(grant.memory.0 - used.0);
        }
        AtDoor::Open { limit: left, uid: grant.uid }
    }
}
