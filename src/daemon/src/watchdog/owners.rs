//! Whose a process on a card is: the grant whose cgroup holds it.
//!
//! NVML names pids alone. A pid is bound to its start time, and one that started after NVML was
//! asked is not the one that it meant. What was found out once holds while /proc/PID/cgroup says
//! the same and no grant has come or gone. Of pids whose process has ended see
//! [`mpsgate_node::holders`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mpsgate_gpu::{GpuProcess, ProcessKind};
use mpsgate_host::cgroup::text_of;
use mpsgate_model::ledger::{Entry, ProcessId};
use mpsgate_model::{GpuUuid, GrantKey};
use mpsgate_node::holders::{Holders, Now, Share};
use mpsgate_node::overuse::{Kind, Limit, Unnamed, User, Whose};

use super::pid_record::Record;
use crate::owner::Trees;
use crate::process_end;

/// Between two looks at a card at which its holders still rest on them: two of those at a card
/// without grants, or ten of the others.
const LAPSE: Duration = Duration::from_secs(10);

/// What was found out about processes.
#[derive(Debug, Default)]
pub(super) struct Owners {
    known: HashMap<ProcessId, Known>,
    /// By card.
    holders: BTreeMap<GpuUuid, Holders>,
    /// By card: until when what NVML last told of its holders counts. Each look at the card sets it
    /// anew. Before the first look it counts from the card's first holder on.
    until: BTreeMap<GpuUuid, Instant>,
    record: Arc<Mutex<Record>>,
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
        let rest = record.age().and_then(|age| LAPSE.checked_sub(age));
        if rest.is_none() {
            holders.values_mut().for_each(|holders| holders.lapse(process_end::is_alive));
        }
        let until = Instant::now() + rest.unwrap_or(LAPSE);
        let until = holders.keys().map(|card| (card.clone(), until)).collect();
        Self { holders, until, record: Arc::new(Mutex::new(record)), ..Self::default() }
    }

    /// Forgets whose the pids on cards are that nobody looks at any more.
    pub(super) fn keep_cards(&mut self, is_watched: impl Fn(&GpuUuid) -> bool) {
        self.holders.retain(|card, _| is_watched(card));
        self.until.retain(|card, _| is_watched(card));
    }

    /// A client is handed over at a door of this card.
    pub(super) fn hand_over(
        &mut self,
        card: GpuUuid,
        client: ProcessId,
        grant: GrantKey,
        lives: impl Fn(&GrantKey) -> bool,
    ) {
        self.until.entry(card.clone()).or_insert_with(|| Instant::now() + LAPSE);
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

    /// After them: forgets who is on no card any more. What writes down what is known, and blocks;
    /// `None` where the one before has not been done yet: the next has what it would write.
    pub(super) fn end(&mut self) -> Option<impl FnOnce() + Send + use<>> {
        for (card, holders) in &mut self.holders {
            lapse(holders, self.until.get(card).copied());
        }
        let round = self.round;
        self.known.retain(|_, known| known.round == round);
        let is_idle = Arc::strong_count(&self.record) == 1;
        let (record, holders) =
            is_idle.then(|| (Arc::clone(&self.record), self.holders.clone()))?;
        Some(move || record.lock().unwrap_or_else(PoisonError::into_inner).keep(&holders))
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
        lapse(&mut holders, self.until.get(card).copied());
        self.until.insert(card.clone(), Instant::now() + LAPSE);
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
            let now = now(process_end::find(pid), whose);
            for Share { of, used, was_granted } in holders.share(pid, used, now, before, lives) {
                match of {
                    Some((process, whose)) => users.named.push(User { process, used, kind, whose }),
                    None => users.unnamed.push(Unnamed { pid, used, kind, was_granted }),
                }
            }
        }
        let pids: BTreeSet<u32> = listed.iter().map(|listed| listed.pid).collect();
        holders.keep(|pid| pids.contains(&pid), process_end::is_alive, lives);
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
fn lapse(holders: &mut Holders, until: Option<Instant>) {
    if until.is_some_and(|until| until <= Instant::now()) {
        holders.lapse(process_end::is_alive);
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
    use std::fs::File;
    use std::time::SystemTime;

    use mpsgate_model::{ContainerId, Instance, Mib, example_gpu};
    use mpsgate_testing::Spawned;
    use rustix::io::Errno;

    use super::*;

    fn grant() -> GrantKey {
        GrantKey {
            runtime_root: "/run/runc".to_owned(),
            container_id: ContainerId::parse("web").unwrap(),
            instance: Instance::from_bytes([7; 16]),
        }
    }

    /// What each look names, of a pid that a container's process has.
    fn looks(found: [io::Result<Option<ProcessId>>; 2]) -> Vec<Option<Whose>> {
        let grant = Whose::Grant(grant());
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

    /// Ends a round, as the watchdog does.
    fn end(owners: &mut Owners) {
        owners.end().unwrap()();
    }

    /// A client of the grant that was looked at while it lived, and what knows of it.
    fn client(record: PathBuf) -> (Owners, Spawned) {
        let client = Spawned::new();
        let mut owners = Owners::open(record);
        let process = process_end::identify(client.pid()).unwrap();
        owners.hand_over(example_gpu(0), process, grant(), |_| true);
        assert!(is_its(&mut owners, &client));
        end(&mut owners);
        (owners, client)
    }

    /// Whether a look names its grant for what is listed under its pid; nobody where it does not.
    fn is_its(owners: &mut Owners, client: &Spawned) -> bool {
        let listed = GpuProcess { pid: client.pid(), used_bytes: Some(10), kind: ProcessKind::Mps };
        let limits = [Limit { key: grant(), memory: Mib(1) }];
        let users = owners.users(&example_gpu(0), &[listed], None, &limits, &[], |_| false);
        assert_eq!(users.named.len() + users.unnamed.len(), 1);
        users.named.iter().any(|user| user.whose == Whose::Grant(grant()))
    }

    #[test]
    fn what_an_ended_client_left_is_its_grants_while_looks_follow_each_other() {
        /// What happens between two looks.
        type Step = fn(&mut Owners);
        fn wait(owners: &mut Owners) {
            let until = owners.until.get_mut(&example_gpu(0)).unwrap();
            assert!(*until > Instant::now());
            *until = Instant::now();
        }
        let cases: [(&str, Step, bool); 5] = [
            ("a look", |_| {}, true),
            ("its round ends", end, true),
            ("no look for a while", wait, false),
            (
                "no look for a while, and rounds without this card",
                |owners| {
                    wait(owners);
                    end(owners);
                    owners.until.insert(example_gpu(0), Instant::now() + LAPSE);
                },
                false,
            ),
            ("the card is not managed any more", |owners| owners.keep_cards(|_| false), false),
        ];
        for (title, step, expected) in cases {
            let root = tempfile::tempdir().unwrap();
            let (mut owners, mut client) = client(root.path().join("holders.json"));
            client.kill();
            step(&mut owners);
            assert_eq!(is_its(&mut owners, &client), expected, "{title}");
        }
        // A client that no look has seen: from when it came.
        for (is_late, expected) in [(false, true), (true, false)] {
            let (mut owners, mut client) = (Owners::default(), Spawned::new());
            let process = process_end::identify(client.pid()).unwrap();
            owners.hand_over(example_gpu(0), process, grant(), |_| true);
            client.kill();
            if is_late {
                wait(&mut owners);
            }
            assert_eq!(is_its(&mut owners, &client), expected, "late: {is_late}");
        }
    }

    #[test]
    fn over_a_restart_the_age_of_what_was_kept_counts() {
        let seconds = Duration::from_secs;
        // The age, whether the client lives at the restart, and whether what it has left is its.
        let cases = [
            (Some(seconds(5)), false, true),
            (Some(seconds(3600)), false, false),
            (Some(seconds(3600)), true, true),
            // The clock was set: nobody can tell it.
            (None, false, false),
        ];
        for (age, lives, expected) in cases {
            let root = tempfile::tempdir().unwrap();
            let record = root.path().join("holders.json");
            let (_, mut client) = client(record.clone());
            let now = SystemTime::now();
            let written = match age {
                Some(age) => now - age,
                None => now + seconds(3600),
            };
            File::options().write(true).open(&record).unwrap().set_modified(written).unwrap();
            if !lives {
                client.kill();
            }
            let mut owners = Owners::open(record);
            // The time away counts.
            let rest = owners.until[&example_gpu(0)].saturating_duration_since(Instant::now());
            assert!(age != Some(seconds(5)) || rest <= seconds(5), "{rest:?}");
            client.kill();
            assert_eq!(is_its(&mut owners, &client), expected, "{age:?} {lives}");
        }
    }
}
