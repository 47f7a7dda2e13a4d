//! Whose a process on a card is: the grant whose cgroup holds it.
//!
//! NVML names pids alone. A pid is bound to its start time, and one that started after NVML was asked is not
//! the one that it meant. What was found out once holds while /proc/PID/cgroup says the same and no grant
//! has come or gone.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use mpsgate_allocation::GrantKey;
use mpsgate_allocation::ledger::{Entry, ProcessId, State};
use mpsgate_gpu::{GpuProcess, ProcessKind};
use mpsgate_policy::watchdog::{Kind, Limit, User, Whose};

use crate::enforce::holds;
use crate::{cgroup, process};

/// What was found out about processes.
#[derive(Debug, Default)]
pub(super) struct Owners {
    known: HashMap<ProcessId, Known>,
    /// Read when the first process of a round asks for it.
    members: Option<Members>,
    /// Changes of the ledger when it was found out.
    changes: u64,
    round: u64,
}

#[derive(Debug)]
struct Known {
    /// `/proc/PID/cgroup`.
    cgroups: String,
    owner: Owner,
    /// When it was last on a card.
    round: u64,
}

/// Whoever belongs to nobody is looked up each time: a cgroup may have been unreadable for a moment.
#[derive(Debug, Clone)]
enum Owner {
    Container(GrantKey),
    Server,
}

/// The processes of all containers with a grant. To search every container for each process would take seconds
/// after each change of the ledger: 400 of both are 160,000 files.
#[derive(Debug)]
struct Members {
    /// By their cgroups; `None` where two containers claim a process.
    by_pid: HashMap<u32, Option<GrantKey>>,
}

impl Members {
    fn read(entries: &[Entry]) -> Self {
        let mut by_pid = HashMap::new();
        for entry in entries {
            let State::Active { cgroup: Some(cgroup), .. } = &entry.state else { continue };
            // A cgroup that cannot be read convicts nobody.
            for pid in cgroup::members(cgroup).unwrap_or_default() {
                match by_pid.entry(pid) {
                    Slot::Vacant(slot) => drop(slot.insert(Some(entry.grant.key.clone()))),
                    Slot::Occupied(mut slot) => *slot.get_mut() = None,
                }
            }
        }
        Self { by_pid }
    }

    /// The one container that holds the process; `None` where there is none, or more than one.
    fn container_of(&self, pid: u32, entries: &[Entry]) -> Option<GrantKey> {
        let without_cgroup =
            |entry: &&Entry| matches!(entry.state, State::Active { cgroup: None, .. });
        let mut others = entries.iter().filter(without_cgroup).filter(|entry| holds(entry, pid));
        match (self.by_pid.get(&pid), others.next(), others.next()) {
            (Some(key), None, _) => key.clone(),
            (None, Some(entry), None) => Some(entry.grant.key.clone()),
            _ => None,
        }
    }
}

impl Owners {
    /// Before the cards of a round.
    pub(super) fn begin(&mut self, changes: u64) {
        if self.changes != changes {
            self.known.clear();
            self.changes = changes;
        }
        self.members = None;
        self.round = self.round.wrapping_add(1);
    }

    /// After them: forgets who is on no card any more.
    pub(super) fn end(&mut self) {
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
    }

    /// The processes of one card that still live, with their owners. `before`: the moment in ticks
    /// before NVML was asked.
    pub(super) fn users(
        &mut self,
        listed: &[GpuProcess],
        before: Option<u64>,
        limits: &[Limit],
        entries: &[Entry],
        mut is_server: impl FnMut(u32) -> bool,
    ) -> Vec<User> {
        let mut users = Vec::new();
        for listed in listed {
            let Some(process) = process::identify(listed.pid) else { continue };
            if before.is_some_and(|before| process.start_time > before) {
                continue;
            }
            let kind = match listed.kind {
                ProcessKind::Graphics => Kind::Graphics,
                ProcessKind::Compute => Kind::Compute,
                ProcessKind::Mps => Kind::Client,
            };
            let mut is_server = |pid| kind == Kind::Compute && is_server(pid);
            let whose = match self.owner(process, entries, &mut is_server) {
                Some(Owner::Server) => Whose::Server,
                // A grant on another card is none on this one.
                Some(Owner::Container(key)) if limits.iter().any(|limit| limit.key == key) => {
                    Whose::Grant(key)
                }
                Some(Owner::Container(_)) | None => Whose::Nobody,
            };
            users.push(User { process, used: listed.used_bytes, kind, whose });
        }
        users
    }

    fn owner(
        &mut self,
        process: ProcessId,
        entries: &[Entry],
        is_server: &mut impl FnMut(u32) -> bool,
    ) -> Option<Owner> {
        let cgroups =
            std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).unwrap_or_default();
        if let Some(known) = self.known.get_mut(&process)
            && known.cgroups == cgroups
        {
            known.round = self.round;
            return Some(known.owner.clone());
        }
        let members = self.members.get_or_insert_with(|| Members::read(entries));
        let owner = match members.container_of(process.pid, entries) {
            Some(key) => Owner::Container(key),
            None if is_server(process.pid) => Owner::Server,
            None => return None,
        };
        let known = Known { cgroups, owner: owner.clone(), round: self.round };
        self.known.insert(process, known);
        Some(owner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_allocation::{ContainerId, Instance};

    use super::*;

    fn key(container: &str) -> GrantKey {
        GrantKey {
            runtime_root: "/run/runc".to_owned(),
            container_id: ContainerId::parse(container).unwrap(),
            instance: Instance::from_bytes([1; 16]),
        }
    }

    #[test]
    fn who_is_claimed_twice_belongs_to_nobody() {
        let members = Members { by_pid: [(7, Some(key("a"))), (8, None)].into() };
        assert_eq!(members.container_of(7, &[]), Some(key("a")));
        assert_eq!(members.container_of(8, &[]), None);
        assert_eq!(members.container_of(9, &[]), None);
    }
}
