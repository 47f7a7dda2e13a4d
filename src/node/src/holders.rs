//! Whose the memory is that NVML lists under a pid, also when its process has ended or cannot be
//! seen, and when another process has the pid by then.
//!
//! A driver goes on listing the pid of a process that has ended while a child of it holds the
//! descriptors that it inherited. So of each pid that a card's list has it is kept whose it was:
//!
//! ```text
//!  handed over at a door ──┐
//!  first seen by a look ───┴─► holder (pid, start time, grant)
//!                                 │ listed, its grant lives: the grant's, whoever has the pid now
//!                                 │ listed, its grant has ended: nobody's, unless the process that
//!                                 │ has the pid now is a client of its own (it came to a door)
//!                                 └ listed no more, and no living client: forgotten
//! ```
//! A process that has ended takes no more. So what is more than it had, when another has its pid,
//! is not its own: it is the other's, if that came to a door, and else nobody's.

use std::collections::BTreeMap;

use mpsgate_model::GrantKey;
use mpsgate_model::ledger::ProcessId;
use serde::{Deserialize, Serialize};

use crate::watchdog::Whose;

/// What is known of the pids on one card. Kept over a restart of mpsgated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holders(BTreeMap<u32, Vec<Holder>>);

/// A process that had memory of the card, or may have some.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// See [`ProcessId::start_time`].
    pub start_time: u64,
    /// Whose container it was in.
    pub grant: Option<GrantKey>,
    /// It came to the container's door, so it is a client, whatever had its pid before.
    pub at_door: bool,
    /// What it had when it was last looked at, in bytes; `None` where that was before a restart of
    /// mpsgated: it changes with each look, and is not kept.
    #[serde(skip)]
    pub used: Option<u64>,
}

/// A part of the memory under a pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The process, and whose it is; `None` where nobody can name one.
    pub of: Option<(ProcessId, Whose)>,
    /// In bytes, where the driver tells.
    pub used: Option<u64>,
    /// A container with a grant once had a process with this pid.
    pub was_granted: bool,
}

/// When a process was started that nobody has seen: before everybody who has its pid later.
const UNKNOWN: u64 = 0;

/// More living clients than any card has. They come as they like while NVML does not answer, and
/// what has ended is forgotten at the next look.
const MOST_PIDS: usize = 4096;
const MOST_OF_A_PID: usize = 8;

impl Holders {
    /// A client is handed over to MPS at the door of this grant.
    pub fn hand_over(&mut self, client: ProcessId, grant: GrantKey) {
        let is_full = match self.0.get(&client.pid) {
            Some(holders) => holders.len() >= MOST_OF_A_PID,
            None => self.0.len() >= MOST_PIDS,
        };
        if is_full {
            return;
        }
        let holder = self.holder(client);
        holder.grant = Some(grant);
        holder.at_door = true;
    }

    /// Whom the memory under a listed pid counts for. `used`: how much it is, in bytes, where the
    /// driver tells. `now`: the process that has the pid now, and whose it is. `before`: the moment
    /// in ticks before NVML was asked; who started later is not meant.
    pub fn share(
        &mut self,
        pid: u32,
        used: Option<u64>,
        now: Option<(ProcessId, Whose)>,
        before: Option<u64>,
        lives: impl Fn(&GrantKey) -> bool,
    ) -> Vec<Share> {
        if now.is_none() {
            self.0.entry(pid).or_insert_with(|| vec![Holder::new(UNKNOWN)]);
        }
        let is_meant = |start_time: u64| before.is_none_or(|before| start_time <= before);
        let now = now.filter(|(process, _)| is_meant(process.start_time));
        if let Some((process, whose)) = &now {
            self.see(*process, whose);
        }
        let lives = |holder: &Holder| holder.grant.as_ref().is_some_and(&lives);
        let mut known = self.0.get_mut(&pid).map(Vec::as_mut_slice).unwrap_or_default();
        let was_granted = known.iter().any(|holder| holder.grant.is_some());
        let (mut shares, mut rest) = (Vec::new(), used);
        while let Some((holder, later)) = known.split_first_mut() {
            known = later;
            let process = ProcessId { pid, start_time: holder.start_time };
            let living = now.as_ref().filter(|(living, _)| *living == process);
            let whose = match (&holder.grant, living) {
                (Some(key), _) if lives(holder) => Whose::Grant(key.clone()),
                // A server's or a stranger's, while it lives.
                (_, Some((_, whose))) => whose.clone(),
                (_, None) => continue,
            };
            if !is_meant(holder.start_time) {
                continue;
            }
            let is_followed =
                now.as_ref().is_some_and(|(now, _)| now.start_time > holder.start_time)
                    || known
                        .iter()
                        .any(|next| next.at_door && lives(next) && is_meant(next.start_time));
            let its = match holder.used.filter(|_| is_followed) {
                Some(had) => rest.map(|rest| rest.min(had)),
                None => rest,
            };
            holder.used = Some(its.unwrap_or(0));
            if its != Some(0) || !is_followed {
                shares.push(Share { of: Some((process, whose)), used: its, was_granted });
            }
            rest = rest.zip(its).map(|(rest, its)| rest - its);
            if rest.is_none_or(|rest| rest == 0) {
                break;
            }
        }
        if shares.is_empty() || rest.is_some_and(|rest| rest > 0) {
            shares.push(Share { of: None, used: rest, was_granted });
        }
        shares
    }

    /// Forgets who is not on the card any more, after a look at all of it.
    pub fn keep(
        &mut self,
        is_listed: impl Fn(u32) -> bool,
        is_alive: impl Fn(&ProcessId) -> bool,
        lives: impl Fn(&GrantKey) -> bool,
    ) {
        self.0.retain(|pid, holders| {
            let is_listed = is_listed(*pid);
            // The oldest stays: who has the pid after it is another.
            let oldest = holders.first().map(|holder| holder.start_time).filter(|_| is_listed);
            holders.retain(|holder| {
                let process = ProcessId { pid: *pid, start_time: holder.start_time };
                let counts = holder.grant.as_ref().is_some_and(&lives);
                Some(holder.start_time) == oldest
                    || counts && (is_listed || holder.at_door && is_alive(&process))
            });
            !holders.is_empty()
        });
    }

    fn see(&mut self, process: ProcessId, whose: &Whose) {
        let is_known = |holder: &Holder| holder.start_time == process.start_time;
        let is_another =
            self.0.get(&process.pid).is_some_and(|holders| !holders.iter().any(is_known));
        if is_another {
            return;
        }
        let holder = self.holder(process);
        // Who has left its container's cgroup is still of that container.
        if let Whose::Grant(key) = whose {
            holder.grant = Some(key.clone());
        }
    }

    /// By start time, the oldest first.
    fn holder(&mut self, process: ProcessId) -> &mut Holder {
        let holders = self.0.entry(process.pid).or_default();
        let start_time = process.start_time;
        let at = holders.partition_point(|holder| holder.start_time < start_time);
        if holders.get(at).is_none_or(|holder| holder.start_time != start_time) {
            holders.insert(at, Holder::new(start_time));
        }
        &mut holders[at]
    }
}

impl Holder {
    fn new(start_time: u64) -> Self {
        Self { start_time, grant: None, at_door: false, used: Some(0) }
    }
}
