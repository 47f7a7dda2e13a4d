//! Whose a process on a card is: the grant whose cgroup holds it.
//!
//! NVML names pids alone. A pid is bound to its start time, and one that started after NVML was
//! asked is not the one that it meant. What was found out once holds while /proc/PID/cgroup says
//! the same and no grant has come or gone. Of pids whose process has ended see
//! [`mpsgate_node::holders`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mpsgate_gpu::{GpuProcess, ProcessKind};
use mpsgate_host::cgroup::text_of;
use mpsgate_model::ledger::{Entry, ProcessId};
use mpsgate_model::{GpuUuid, GrantKey};
use mpsgate_node::holders::{Holders, Now, Share};
use mpsgate_node::watchdog::{Kind, Limit, Unnamed, User, Whose};

use super::record::Record;
use crate::owner::Trees;
use crate::process;

/// Between two looks at a card at which its holders still rest on them: two of those at a card
/// without grants, or ten of the others.
const LAPSE: Duration = Duration::from_secs(10);

/// What was found out about processes.
#[derive(Debug, Default)]
pub(super) struct Owners {
    known: HashMap<ProcessId, Known>,
    /// By card.
    holders: BTreeMap<GpuUuid, Holders>,
    /// When NVML last told of each card, or, before it did, when its holders began to be known.
    looked: BTreeMap<GpuUuid, Instant>,
    record: Record,
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

/// The processes of a card, and what is listed beside them.
#[derive(Debug, Default)]
pub(super) struct Users {
    pub(super) named: Vec<User>,
    pub(super) unnamed: Vec<Unnamed>,
}

impl Owners {
    /// With what an mpsgated before this one knew.
    pub(super) fn open(record: PathBuf) -> Self {
        let (record, mut holders) = Record::open(record);
        if record.age().is_none_or(|age| age > LAPSE) {
            holders.values_mut().for_each(|holders| holders.lapse(process::is_alive));
        }
        let looked = holders.keys().map(|card| (card.clone(), Instant::now())).collect();
        Self { holders, looked, record, ..Self::default() }
    }

    /// Forgets whose the pids on cards are that nobody looks at any more.
    pub(super) fn keep_cards(&mut self, is_watched: impl Fn(&GpuUuid) -> bool) {
        self.holders.retain(|card, _| is_watched(card));
        self.looked.retain(|card, _| is_watched(card));
    }

    /// A client is handed over at a door of this card.
    pub(super) fn hand_over(
        &mut self,
        card: GpuUuid,
        client: ProcessId,
        grant: GrantKey,
        lives: impl Fn(&GrantKey) -> bool,
    ) {
        self.looked.entry(card.clone()).or_insert_with(Instant::now);
        self.holders.entry(card).or_default().hand_over(client, grant, lives);
    }

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
        for (card, holders) in &mut self.holders {
            lapse(holders, self.looked.get(card).copied());
        }
        self.record.keep(&self.holders);
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
    }

    /// The processes of one card, with their owners. `before`: the moment in ticks before NVML was
    /// asked.
    pub(super) fn users(
        &mut self,
        card: &GpuUuid,
        listed: &[GpuProcess],
        before: Option<u64>,
        limits: &[Limit],
        entries: &[Entry],
        mut is_server: impl FnMut(u32) -> bool,
    ) -> Users {
        let mut holders = self.holders.remove(card).unwrap_or_default();
        lapse(&mut holders, self.looked.get(card).copied());
        self.looked.insert(card.clone(), Instant::now());
        let lives = |key: &GrantKey| limits.iter().any(|limit| limit.key == *key);
        let mut users = Users::default();
        for listed in listed {
            let kind = match listed.kind {
                ProcessKind::Graphics => Kind::Graphics,
                ProcessKind::Compute => Kind::Compute,
                ProcessKind::Mps => Kind::Client,
            };
            let mut is_server = |pid| kind == Kind::Compute && is_server(pid);
            let (pid, used) = (listed.pid, listed.used_bytes);
            let whose = |process| match self.owner(process, entries, &mut is_server) {
                Some(Owner::Server) => Whose::Server,
                // A grant on another card is none on this one.
                Some(Owner::Container(key)) if lives(&key) => Whose::Grant(key),
                Some(Owner::Container(_)) | None => Whose::Nobody,
            };
            let now = now(process::find(pid), whose);
            for Share { of, used, was_granted } in holders.share(pid, used, now, before, lives) {
                match of {
                    Some((process, whose)) => users.named.push(User { process, used, kind, whose }),
                    None => users.unnamed.push(Unnamed { pid, used, kind, was_granted }),
                }
            }
        }
        let pids: BTreeSet<u32> = listed.iter().map(|listed| listed.pid).collect();
        holders.keep(|pid| pids.contains(&pid), process::is_alive, lives);
        self.holders.insert(card.clone(), holders);
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

/// Where the last look at their card was too long ago.
fn lapse(holders: &mut Holders, looked: Option<Instant>) {
    if looked.is_some_and(|looked| looked.elapsed() > LAPSE) {
        holders.lapse(process::is_alive);
    }
}

/// What has been found out about who has a pid.
fn now(found: io::Result<Option<ProcessId>>, whose: impl FnOnce(ProcessId) -> Whose) -> Now {
    match found {
        Ok(Some(process)) => Now::Living(process, whose(process)),
        Ok(None) => Now::Ended,
        Err(_) => Now::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_model::{ContainerId, Instance};
    use rustix::io::Errno;

    use super::*;

    /// What each look names, of a pid that a container's process has.
    fn looks(found: [io::Result<Option<ProcessId>>; 2]) -> Vec<Option<Whose>> {
        let grant = Whose::Grant(GrantKey {
            runtime_root: "/run/runc".to_owned(),
            container_id: ContainerId::parse("web").unwrap(),
            instance: Instance::from_bytes([7; 16]),
        });
        let mut holders = Holders::default();
        let mut named = Vec::new();
        for found in found {
            let now = now(found, |_| grant.clone());
            let shares = holders.share(7, Some(10), now, None, |_| true);
            named.extend(shares.into_iter().map(|share| share.of.map(|(_, whose)| whose)));
            holders.keep(|_| true, |_| true, |_| true);
        }
        assert!(named.iter().flatten().all(|whose| *whose == grant));
        named
    }

    #[test]
    fn one_read_that_fails_leaves_a_process_its_memory_and_its_end_does_not() {
        let process = ProcessId { pid: 7, start_time: 70 };
        let is_named = |first| {
            let named = looks([first, Ok(Some(process))]);
            named.iter().map(Option::is_some).collect::<Vec<_>>()
        };
        for errno in [Errno::MFILE, Errno::NOMEM] {
            assert_eq!(is_named(Err(errno.into())), [false, true], "{errno}");
        }
        assert_eq!(is_named(Err(io::ErrorKind::InvalidData.into())), [false, true], "a torn line");
        assert_eq!(is_named(Ok(Some(process))), [true, true]);
        assert_eq!(is_named(Ok(None)), [false, false]);
    }
}
