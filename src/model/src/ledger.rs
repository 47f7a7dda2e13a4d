//! The daemon's record of what is promised, reserved and granted; in memory, without I/O.
//!
//! ```text
//!            reserve                activate
//!   (none) ──────────► Reserved ──────────────► Active
//!                         │ expire, release        │ release
//!                         ▼                        ▼    and on the way: resize
//!                       (none)                   (none)
//! ```
//!
//! The invariant, kept by every operation: on each card the memory of all entries is at most the
//! card's, and the entries are at most its MPS clients. The caller decides whom promises
//! (`promises`) bind, and leaves them out of the capacity. Which card to take is policy; whether it
//! still fits is decided here, at the moment of writing.

use serde::{Deserialize, Serialize};

use crate::{GpuUuid, Grant, GrantKey, Handed, Mib, PreparedClaim};

mod handed;
mod prepared;
mod promises;

pub use self::prepared::{PrepareError, Unprepared};
pub use self::promises::Promise;
pub use mpsgate_host::cgroup::CgroupId;
pub use mpsgate_host::process::ProcessId;

/// Where an entry is in its lifecycle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum State {
    /// Memory is set aside for a container that is being created, as long as its creator lives.
    Reserved {
        /// The shim, which becomes the runtime: the pid survives the exec.
        holder: ProcessId,
    },
    /// A container has the grant.
    Active {
        /// The container's init.
        init: ProcessId,
        /// The container's cgroup, where the runtime named one.
        cgroup: Option<CgroupId>,
    },
}

/// One grant and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// What was given.
    pub grant: Grant,
    /// Reserved or active.
    #[serde(flatten)]
    pub state: State,
    /// When it was reserved, milliseconds since 1970.
    pub since_ms: u64,
    /// When the MPS control daemon of its card died under it, milliseconds since 1970: its CUDA
    /// processes have lost the card. The entry counts like any other until its container ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken_ms: Option<u64>,
    /// The hard limit that the driver was last seen to have for the container's cgroup; never less
    /// than the grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_limit: Option<Mib>,
    /// Whether that limit was set when a program of the container may have run already. A driver
    /// that counts by itself counts from the moment of the limit on, and not what was there before
    /// (r615's `memacct.c`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub limited_late: bool,
    /// The container's memory on each card at its creation, where `mpsgate resize` has changed it
    /// since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_with: Option<Mib>,
    /// To which pod and as which resource kubelet handed it out, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handed: Option<Handed>,
}

impl Entry {
    /// The container's memory on each card at its creation.
    #[must_use]
    pub fn created_with(&self) -> Mib {
        self.created_with.unwrap_or(self.grant.memory)
    }
}

/// What a card can hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Memory that may be granted in all, without what is promised to others.
    pub memory: Mib,
    /// The most entries: the clients of its MPS server, or any number without MPS.
    pub max_clients: u32,
}

/// Why an operation was not carried out. The ledger is then as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The card has less free than was asked.
    #[error("card {card} has {free} free, {asked} asked")]
    NoMemory {
        /// The card.
        card: GpuUuid,
        /// What is free.
        free: Mib,
        /// What was asked.
        asked: Mib,
    },
    /// The card's MPS server takes no more clients.
    #[error("card {card} has {clients} MPS clients, its most")]
    NoClient {
        /// The card.
        card: GpuUuid,
        /// Entries on it.
        clients: u32,
    },
    /// The container already has an entry.
    #[error("container {key} has a grant already")]
    Exists {
        /// The existing key.
        key: GrantKey,
    },
    /// No entry has the key, or it is not in the state that the operation needs.
    #[error("no reservation for container {key}")]
    NotReserved {
        /// The key asked for.
        key: GrantKey,
    },
    /// No entry has the key, or it is a reservation.
    #[error("container {key} has no grant")]
    NotActive {
        /// The key asked for.
        key: GrantKey,
    },
    /// A grant names a card twice, and the ledger would count its memory once.
    #[error("grant for {key} names card {card} twice")]
    CardTwice {
        /// Its key.
        key: GrantKey,
        /// The card.
        card: GpuUuid,
    },
    /// A grant names no card.
    #[error("grant for {key} names no card")]
    NoCard {
        /// Its key.
        key: GrantKey,
    },
}

/// All entries and promises of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ledger {
    entries: Vec<Entry>,
    promises: Vec<Promise>,
    /// Claims of Kubernetes that are prepared on this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    claims: Vec<PreparedClaim>,
    /// Claims whose preparation was taken back, and the pod of each, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unprepared: Vec<Unprepared>,
}

impl Ledger {
    /// All entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Entries on one card.
    pub fn on_card<'a>(&'a self, card: &'a GpuUuid) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |e| e.grant.cards.iter().any(|c| c.uuid == *card))
    }

    /// Memory on one card that entries hold. A file may have amounts whose sum overflows: the card
    /// is then full.
    #[must_use]
    pub fn granted(&self, card: &GpuUuid) -> Mib {
        Mib(self.on_card(card).fold(0, |sum: u64, e| sum.saturating_add(e.grant.memory.0)))
    }

    /// The entry of a key.
    #[must_use]
    pub fn get(&self, key: &GrantKey) -> Option<&Entry> {
        self.entries.iter().find(|e| e.grant.key == *key)
    }

    /// The entry of any instance of the container that `key` names.
    #[must_use]
    pub fn of_container(&self, key: &GrantKey) -> Option<&Entry> {
        self.entries.iter().find(|e| e.grant.key.same_container(key))
    }

    /// Adds a reservation, on all of its cards or on none; `capacities` are theirs, in the grant's
    /// order.
    ///
    /// # Errors
    /// Where a card has not enough memory or clients left, or the container has an entry.
    pub fn reserve(
        &mut self,
        grant: Grant,
        holder: ProcessId,
        capacities: &[Capacity],
        now_ms: u64,
    ) -> Result<(), LedgerError> {
        if let Some(entry) = self.of_container(&grant.key) {
            return Err(LedgerError::Exists { key: entry.grant.key.clone() });
        }
        if grant.cards.is_empty() {
            return Err(LedgerError::NoCard { key: grant.key });
        }
        for (position, card) in grant.cards.iter().enumerate() {
            if grant.cards.iter().skip(position + 1).any(|other| other.uuid == card.uuid) {
                return Err(LedgerError::CardTwice { key: grant.key, card: card.uuid.clone() });
            }
            // A card of which nothing is known has no memory to give.
            let capacity = capacities.get(position).cloned().unwrap_or_default();
            let free = capacity.memory.saturating_sub(self.granted(&card.uuid));
            if grant.memory > free {
                return Err(LedgerError::NoMemory {
                    card: card.uuid.clone(),
                    free,
                    asked: grant.memory,
                });
            }
            let clients = u32::try_from(self.on_card(&card.uuid).count()).unwrap_or(u32::MAX);
            if clients >= capacity.max_clients {
                return Err(LedgerError::NoClient { card: card.uuid.clone(), clients });
            }
        }
        self.entries.push(Entry {
            grant,
            state: State::Reserved { holder },
            since_ms: now_ms,
            broken_ms: None,
            cgroup_limit: None,
            limited_late: false,
            created_with: None,
            handed: None,
        });
        Ok(())
    }

    /// Turns a reservation into a grant. Doing so again for the same init changes nothing.
    ///
    /// # Errors
    /// Where the key has no reservation.
    pub fn activate(
        &mut self,
        key: &GrantKey,
        init: ProcessId,
        cgroup: Option<CgroupId>,
    ) -> Result<&Entry, LedgerError> {
        let missing = || LedgerError::NotReserved { key: key.clone() };
        let entry = self.entries.iter_mut().find(|e| e.grant.key == *key).ok_or_else(missing)?;
        match &entry.state {
            State::Reserved { .. } => entry.state = State::Active { init, cgroup },
            State::Active { init: known, .. } if *known == init => {}
            State::Active { .. } => return Err(missing()),
        }
        Ok(entry)
    }

    /// Changes a grant's memory on each of its cards, on all of them or on none; `capacities` are
    /// theirs, in the grant's order. Less always fits.
    ///
    /// # Errors
    /// Where the key has no grant, or a card has not so much left.
    pub fn resize(
        &mut self,
        key: &GrantKey,
        memory: Mib,
        capacities: &[Capacity],
    ) -> Result<&Entry, LedgerError> {
        let missing = || LedgerError::NotActive { key: key.clone() };
        let is_it = |e: &Entry| e.grant.key == *key && matches!(e.state, State::Active { .. });
        let at = self.entries.iter().position(is_it).ok_or_else(missing)?;
        let Grant { cards, memory: has, .. } = &self.entries.get(at).ok_or_else(missing)?.grant;
        for (position, card) in cards.iter().enumerate().filter(|_| memory > *has) {
            let capacity = capacities.get(position).cloned().unwrap_or_default();
            let others = self.granted(&card.uuid).saturating_sub(*has);
            let free = capacity.memory.saturating_sub(others);
            if memory > free {
                return Err(LedgerError::NoMemory { card: card.uuid.clone(), free, asked: memory });
            }
        }
        let entry = self.entries.get_mut(at).ok_or_else(missing)?;
        let created_with = entry.created_with();
        entry.created_with = (created_with != memory).then_some(created_with);
        entry.grant.memory = memory;
        Ok(entry)
    }

    /// Marks the grants of a card whose MPS control daemon has died, and names those that were not
    /// marked before. Reservations stay as they are: their containers have not started yet.
    pub fn mark_broken(&mut self, card: &GpuUuid, now_ms: u64) -> Vec<GrantKey> {
        let mut marked = Vec::new();
        for entry in &mut self.entries {
            let active = matches!(entry.state, State::Active { .. });
            if active
                && entry.broken_ms.is_none()
                && entry.grant.cards.iter().any(|c| c.uuid == *card)
            {
                entry.broken_ms = Some(now_ms);
                marked.push(entry.grant.key.clone());
            }
        }
        marked
    }

    /// Records the limit that the driver has for the container's cgroup, and whether it came
    /// `late`: see [`Entry::limited_late`]. Returns whether anything changed; `None` where the key
    /// has no grant.
    pub fn set_cgroup_limit(&mut self, key: &GrantKey, limit: Mib, late: bool) -> Option<bool> {
        let active =
            |e: &&mut Entry| e.grant.key == *key && matches!(e.state, State::Active { .. });
        let entry = self.entries.iter_mut().find(active)?;
        let was =
            (entry.cgroup_limit.replace(limit), std::mem::replace(&mut entry.limited_late, late));
        Some(was != (Some(limit), late))
    }

    /// Ends an entry, whatever its state. `None` where it is gone already.
    pub fn release(&mut self, key: &GrantKey) -> Option<Entry> {
        let at = self.entries.iter().position(|e| e.grant.key == *key)?;
        Some(self.entries.remove(at))
    }

    /// Ends a reservation whose creator has ended; an active grant stays. `None` where nothing
    /// ended.
    pub fn expire(&mut self, key: &GrantKey) -> Option<Entry> {
        match self.get(key)?.state {
            State::Reserved { .. } => self.release(key),
            State::Active { .. } => None,
        }
    }

    /// Whether two entries have one key: no version of mpsgate wrote such a file.
    pub(crate) fn has_duplicates(&self) -> bool {
        self.entries
            .iter()
            .enumerate()
            .any(|(i, e)| self.entries.iter().skip(i + 1).any(|o| o.grant.key == e.grant.key))
    }
}

#[cfg(test)]
pub(crate) mod tests;
