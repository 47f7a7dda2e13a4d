//! The daemon's record of what is promised, reserved and granted; in memory, without I/O.
//!
//! ```text
//!            reserve                activate
//!   (none) ──────────► Reserved ──────────────► Active
//!                         │ expire, release        │ release
//!                         ▼                        ▼
//!                       (none)                   (none)
//! ```
//!
//! The invariant, kept by every operation: on each card the memory of all entries and promises is
//! at most the card's, and the entries are at most its MPS clients. Which card to take is
//! policy; whether it still fits is decided here, at the moment of writing.

use serde::{Deserialize, Serialize};

use crate::{GpuUuid, Grant, GrantKey, Mib};

/// A process, named so that a reused pid is not taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Pid in the daemon's pid namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot, field 22 of `/proc/<pid>/stat`.
    pub start_time: u64,
}

/// A cgroup, named so that a directory made anew under the same path is not taken for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupId {
    /// Absolute path of the directory.
    pub path: String,
    /// Inode of the directory.
    pub inode: u64,
}

/// Where an entry stands in its life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum State {
    /// Held for a container that is being created, as long as its creator lives.
    Reserved {
        /// The shim, which becomes the runtime: the pid survives the exec.
        holder: ProcessId,
    },
    /// A container has it.
    Active {
        /// The container's init.
        init: ProcessId,
        /// The container's cgroup, where the runtime told one.
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
    /// processes have lost the card. It counts like any other until its container ends. An older
    /// mpsgated reads past it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken_ms: Option<u64>,
    /// The hard limit that the driver was last seen to hold the container's cgroup to; never less than
    /// the grant. An older mpsgated reads past it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_limit: Option<Mib>,
}

/// Memory that Kubernetes has bound to a pod of this node whose container does not run now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// The pod's uid.
    pub pod_uid: String,
    /// The container's name in the pod.
    pub container: String,
    /// The card that the scheduler chose.
    pub card: GpuUuid,
    /// GPU memory.
    pub memory: Mib,
}

/// What a card can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// Memory that may be granted in all.
    pub memory: Mib,
    /// MPS clients that the card's server takes.
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
    /// The container has an entry already.
    #[error("container {key} has a grant already")]
    Exists {
        /// The existing key.
        key: GrantKey,
    },
    /// No such entry, or not in the state that the operation needs.
    #[error("no reservation for container {key}")]
    NotReserved {
        /// The key asked for.
        key: GrantKey,
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
}

impl Ledger {
    /// All entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// All promises.
    #[must_use]
    pub fn promises(&self) -> &[Promise] {
        &self.promises
    }

    /// Entries on one card.
    pub fn on_card<'a>(&'a self, card: &'a GpuUuid) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |e| e.grant.cards.iter().any(|c| c.uuid == *card))
    }

    /// Memory on one card that entries and promises hold. A file may hold amounts whose sum does not
    /// fit: the card is then full.
    #[must_use]
    pub fn committed(&self, card: &GpuUuid) -> Mib {
        let granted =
            self.on_card(card).fold(0, |sum: u64, e| sum.saturating_add(e.grant.memory.0));
        Mib(granted.saturating_add(self.promised(card).0))
    }

    /// Memory on one card that only promises hold.
    #[must_use]
    pub fn promised(&self, card: &GpuUuid) -> Mib {
        let on_card = self.promises.iter().filter(|p| p.card == *card);
        Mib(on_card.fold(0, |sum: u64, p| sum.saturating_add(p.memory.0)))
    }

    /// The entry of a key.
    #[must_use]
    pub fn get(&self, key: &GrantKey) -> Option<&Entry> {
        self.entries.iter().find(|e| e.grant.key == *key)
    }

    /// The entry of any life of the container that `key` names.
    #[must_use]
    pub fn of_container(&self, key: &GrantKey) -> Option<&Entry> {
        self.entries.iter().find(|e| e.grant.key.same_container(key))
    }

    /// Adds a reservation.
    ///
    /// # Errors
    /// Where the card has not enough memory or clients left, or the container has an entry.
    pub fn reserve(
        &mut self,
        grant: Grant,
        holder: ProcessId,
        capacity: &Capacity,
        now_ms: u64,
    ) -> Result<(), LedgerError> {
        if let Some(entry) = self.of_container(&grant.key) {
            return Err(LedgerError::Exists { key: entry.grant.key.clone() });
        }
        if grant.cards.is_empty() {
            return Err(LedgerError::NoCard { key: grant.key });
        }
        for card in &grant.cards {
            let free = capacity.memory.saturating_sub(self.committed(&card.uuid));
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
        });
        Ok(())
    }

    /// Turns a reservation into a grant. Asked again for the same init, it changes nothing.
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

    /// Notes what the driver holds the container's cgroup to. Whether that is news; `None` where the key
    /// has no grant.
    pub fn set_cgroup_limit(&mut self, key: &GrantKey, limit: Mib) -> Option<bool> {
        let active =
            |e: &&mut Entry| e.grant.key == *key && matches!(e.state, State::Active { .. });
        let entry = self.entries.iter_mut().find(active)?;
        Some(entry.cgroup_limit.replace(limit) != Some(limit))
    }

    /// Ends an entry, whatever its state. `None` where it is gone already.
    pub fn release(&mut self, key: &GrantKey) -> Option<Entry> {
        let at = self.entries.iter().position(|e| e.grant.key == *key)?;
        Some(self.entries.remove(at))
    }

    /// Ends a reservation whose creator is gone; an active grant stays. `None` where nothing ended.
    pub fn expire(&mut self, key: &GrantKey) -> Option<Entry> {
        match self.get(key)?.state {
            State::Reserved { .. } => self.release(key),
            State::Active { .. } => None,
        }
    }

    /// Two entries with one key: a file that no version of ours wrote.
    pub(crate) fn has_duplicates(&self) -> bool {
        self.entries
            .iter()
            .enumerate()
            .any(|(i, e)| self.entries.iter().skip(i + 1).any(|o| o.grant.key == e.grant.key))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        reason = "test code fails by panicking"
    )]
    use proptest::prelude::*;

    use super::*;
    use crate::{ContainerId, GrantedCard, Guarantee, Instance, Priority};

    pub(crate) fn card(n: u8) -> GpuUuid {
        GpuUuid::parse(&format!("GPU-000000{n:02x}-0000-0000-0000-000000000000")).unwrap()
    }

    pub(crate) fn grant(id: u8, life: u8, on: u8, mib: u64) -> Grant {
        Grant {
            key: GrantKey {
                runtime_root: "/run/runc".to_owned(),
                container_id: ContainerId::parse(&format!("c{id}")).unwrap(),
                instance: Instance::from_bytes([life; 16]),
            },
            cards: vec![GrantedCard { uuid: card(on), index: on.into(), minor: on.into() }],
            memory: Mib(mib),
            uid: 0,
            compute: None,
            priority: Priority::Normal,
            client_dir: "/run/mpsgate/mps/0/client".to_owned(),
            devices: Vec::new(),
            guarantee: Guarantee::Mps,
        }
    }

    const HOLDER: ProcessId = ProcessId { pid: 7, start_time: 1 };

    fn capacity() -> Capacity {
        Capacity { memory: Mib(100), max_clients: 3 }
    }

    #[test]
    fn a_reservation_becomes_a_grant_and_is_released_once() {
        let mut ledger = Ledger::default();
        let key = grant(1, 1, 0, 60).key;
        ledger.reserve(grant(1, 1, 0, 60), HOLDER, &capacity(), 0).unwrap();
        assert_eq!(ledger.committed(&card(0)), Mib(60));
        let init = ProcessId { pid: 9, start_time: 2 };
        ledger.activate(&key, init, None).unwrap();
        assert_eq!(ledger.expire(&key), None, "an active grant does not expire");
        ledger.activate(&key, init, None).unwrap();
        let other = ProcessId { pid: 10, start_time: 2 };
        assert!(ledger.activate(&key, other, None).is_err());
        assert!(ledger.release(&key).is_some());
        assert_eq!(ledger.release(&key), None);
        assert_eq!(ledger.committed(&card(0)), Mib(0));
    }

    #[test]
    fn the_death_of_a_control_daemon_breaks_the_grants_of_its_card_once_and_no_reservation() {
        let mut ledger = Ledger::default();
        for (id, on) in [(1, 0), (2, 0), (3, 1)] {
            ledger.reserve(grant(id, 1, on, 10), HOLDER, &capacity(), 0).unwrap();
        }
        for (id, on) in [(1, 0), (3, 1)] {
            let init = ProcessId { pid: 10 + u32::from(id), start_time: 1 };
            ledger.activate(&grant(id, 1, on, 0).key, init, None).unwrap();
        }
        assert_eq!(ledger.mark_broken(&card(0), 5), [grant(1, 1, 0, 0).key]);
        assert_eq!(ledger.mark_broken(&card(0), 6), []);
        let broken: Vec<_> = ledger.entries().iter().map(|entry| entry.broken_ms).collect();
        assert_eq!(broken, [Some(5), None, None]);
        assert_eq!(ledger.committed(&card(0)), Mib(20), "it counts until its container ends");
        // What an older mpsgated writes has no such field, and what it does not know it reads past.
        let text = serde_json::to_string(&ledger).unwrap();
        assert_eq!(text.matches("broken_ms").count(), 1);
        assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
        let older = text.replace(",\"broken_ms\":5", "");
        assert_eq!(serde_json::from_str::<Ledger>(&older).unwrap().entries()[0].broken_ms, None);
    }

    #[test]
    fn the_limit_of_a_cgroup_is_noted_for_a_grant_and_an_older_ledger_has_none() {
        let mut ledger = Ledger::default();
        let key = grant(1, 1, 0, 60).key;
        ledger.reserve(grant(1, 1, 0, 60), HOLDER, &capacity(), 0).unwrap();
        assert_eq!(ledger.set_cgroup_limit(&key, Mib(60)), None, "it has no container yet");
        let older = serde_json::to_string(&ledger).unwrap();
        ledger.activate(&key, ProcessId { pid: 9, start_time: 2 }, None).unwrap();
        assert_eq!(ledger.set_cgroup_limit(&key, Mib(64)), Some(true));
        assert_eq!(ledger.set_cgroup_limit(&key, Mib(64)), Some(false));
        let text = serde_json::to_string(&ledger).unwrap();
        assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
        assert!(text.contains("\"cgroup_limit\":64") && !older.contains("cgroup_limit"));
    }

    #[test]
    fn a_late_release_of_the_old_life_leaves_the_new_one() {
        let mut ledger = Ledger::default();
        ledger.reserve(grant(1, 2, 0, 60), HOLDER, &capacity(), 0).unwrap();
        assert_eq!(ledger.release(&grant(1, 1, 0, 60).key), None);
        assert_eq!(ledger.entries().len(), 1);
    }

    #[test]
    fn one_container_is_counted_once() {
        let mut ledger = Ledger::default();
        ledger.reserve(grant(1, 1, 0, 10), HOLDER, &capacity(), 0).unwrap();
        let again = ledger.reserve(grant(1, 2, 0, 10), HOLDER, &capacity(), 0);
        assert!(matches!(again, Err(LedgerError::Exists { .. })));
    }

    #[test]
    fn memory_and_clients_are_bounded_per_card() {
        let mut ledger = Ledger::default();
        ledger.reserve(grant(1, 1, 0, 60), HOLDER, &capacity(), 0).unwrap();
        assert_eq!(
            ledger.reserve(grant(2, 1, 0, 41), HOLDER, &capacity(), 0),
            Err(LedgerError::NoMemory { card: card(0), free: Mib(40), asked: Mib(41) })
        );
        ledger.reserve(grant(2, 1, 1, 41), HOLDER, &capacity(), 0).unwrap();
        ledger.reserve(grant(3, 1, 0, 1), HOLDER, &capacity(), 0).unwrap();
        ledger.reserve(grant(4, 1, 0, 1), HOLDER, &capacity(), 0).unwrap();
        assert_eq!(
            ledger.reserve(grant(5, 1, 0, 1), HOLDER, &capacity(), 0),
            Err(LedgerError::NoClient { card: card(0), clients: 3 })
        );
    }

    /// Found with its fuzz target: the sum wrapped round, and the card looked empty.
    #[test]
    fn a_card_whose_sum_does_not_fit_is_full() {
        let mut ledger = Ledger::default();
        let any = Capacity { memory: Mib(u64::MAX), max_clients: 48 };
        ledger.reserve(grant(1, 1, 0, u64::MAX), HOLDER, &any, 0).unwrap();
        let mut read = serde_json::to_value(&ledger).unwrap();
        let mut second = read["entries"][0].clone();
        second["grant"]["key"]["container_id"] = "c2".into();
        read["entries"].as_array_mut().unwrap().push(second);
        let promise = serde_json::json!({
            "pod_uid": "u", "container": "c", "card": card(0), "memory": u64::MAX
        });
        read["promises"] = serde_json::json!([promise, promise]);
        let mut ledger: Ledger = serde_json::from_value(read).unwrap();
        assert_eq!(ledger.committed(&card(0)), Mib(u64::MAX));
        let more = ledger.reserve(grant(3, 1, 0, 1), HOLDER, &capacity(), 0);
        assert!(matches!(more, Err(LedgerError::NoMemory { .. })));
    }

    #[derive(Debug, Clone)]
    enum Op {
        Reserve(u8, u8, u8, u64),
        Activate(u8, u8),
        Release(u8, u8),
        Expire(u8, u8),
    }

    fn op() -> impl Strategy<Value = Op> {
        let (id, life, on) = (0..6_u8, 0..3_u8, 0..2_u8);
        prop_oneof![
            (id.clone(), life.clone(), on, prop_oneof![0..120_u64, Just(u64::MAX)])
                .prop_map(|(i, l, c, m)| Op::Reserve(i, l, c, m)),
            (id.clone(), life.clone()).prop_map(|(i, l)| Op::Activate(i, l)),
            (id.clone(), life.clone()).prop_map(|(i, l)| Op::Release(i, l)),
            (id, life).prop_map(|(i, l)| Op::Expire(i, l)),
        ]
    }

    proptest! {
        #[test]
        fn no_sequence_of_operations_overcommits_a_card(ops in prop::collection::vec(op(), 0..80)) {
            let mut ledger = Ledger::default();
            for op in ops {
                let before = ledger.clone();
                let failed = match op {
                    Op::Reserve(i, l, c, m) => ledger.reserve(grant(i, l, c, m), HOLDER, &capacity(), 0).is_err(),
                    Op::Activate(i, l) => ledger.activate(&grant(i, l, 0, 0).key, HOLDER, None).is_err(),
                    Op::Release(i, l) => ledger.release(&grant(i, l, 0, 0).key).is_none(),
                    Op::Expire(i, l) => ledger.expire(&grant(i, l, 0, 0).key).is_none(),
                };
                if failed {
                    prop_assert_eq!(&before, &ledger, "a failed operation changed the ledger");
                }
                for c in 0..2 {
                    prop_assert!(ledger.committed(&card(c)) <= capacity().memory);
                    prop_assert!(ledger.on_card(&card(c)).count() <= 3);
                }
                prop_assert!(!ledger.has_duplicates());
            }
        }
    }
}
