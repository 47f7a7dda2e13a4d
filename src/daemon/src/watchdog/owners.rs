//! Whose a process on a card is: the grant whose cgroup holds it.
//!
//! NVML names pids alone. A pid is bound to its start time, and one that started after NVML was
//! asked is not the one that it meant. What was found out once holds while /proc/PID/cgroup says
//! the same and no grant has come or gone.

use std::collections::HashMap;

use mpsgate_gpu::{GpuProcess, ProcessKind};
use mpsgate_host::cgroup::text_of;
use mpsgate_model::GrantKey;
use mpsgate_model::ledger::{Entry, ProcessId};
use mpsgate_node::watchdog::{Kind, Limit, User, Whose};

use crate::owner::Trees;
use crate::process;

/// What was found out about processes.
#[derive(Debug, Default)]
pub(super) struct Owners {
    known: HashMap<ProcessId, Known>,
    /// Read when the first process of a round asks for them.
    trees: Trees,
    /// Changes of the ledger when it was found out.
    changes: u64,
    round: u64,
}

#[derive(Debug)]
struct Known {
    /// `/proc/PID/cgroup`.
    cgroups: Option<String>,
    owner: Owner,
    /// When it was last on a card.
    round: u64,
}

/// Whoever belongs to nobody is looked up each time: a cgroup may have been unreadable for a
/// moment.
#[derive(Debug, Clone)]
enum Owner {
    Container(GrantKey),
    Server,
}

impl Owners {
    /// Before the cards of a round.
    pub(super) fn begin(&mut self, changes: u64) {
        if self.changes != changes {
            self.known.clear();
            self.changes = changes;
        }
        self.trees = Trees::default();
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
        let cgroups = text_of(process.pid);
        if let Some(known) = self.known.get_mut(&process)
            && known.cgroups == cgroups
        {
            known.round = self.round;
            return Some(known.owner.clone());
        }
        let owner = match self.trees.owner(process.pid, cgroups.as_deref(), entries) {
            Some(entry) => Owner::Container(entry.grant.key.clone()),
            None if is_server(process.pid) => Owner::Server,
            None => return None,
        };
        let known = Known { cgroups, owner: owner.clone(), round: self.round };
        self.known.insert(process, known);
        Some(owner)
    }
}
