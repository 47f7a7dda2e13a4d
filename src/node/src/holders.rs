//! Whose the memory is that NVML lists under a pid, also when its process has ended or cannot be
//! seen, and when another process has the pid by then.
//!
//! A driver goes on listing the pid of a process that has ended while a child of it holds the
//! descriptors that it inherited. So of each pid that a card's list has it is kept whose it was:
//!
//! ```text
//!  handed over at a door ──┐
//!  first seen by a look ───┴─► holder (pid, start time, grant, what it had)
//!                                 │ listed, its grant lives: the grant's, whoever has the pid now
//!                                 │ listed, it lives without: a server's or a stranger's
//!                                 │ listed, neither: nobody's
//!                                 └ listed no more, and no living client: forgotten
//! ```
//! A process that has ended takes no more. So what is more than it had, when another has its pid,
//! is not its own: it is the other's, if that came to a door, and else nobody's. What is less by
//! then may have been given back by either: it stays the ended one's, and what is more later is
//! not. Where nobody knows what it had, all that is listed is nobody's: it may be anyone's.
//! A process of the same living grant is no other, so that grant answers for all of it.
//!
//! All of this rests on looks that follow each other: where there was none for a while, the pid of
//! one that has ended may have been listed for another's memory since. So that is nobody's, unless
//! one that was looked at before has the pid still.

use std::collections::BTreeMap;

use mpsgate_model::GrantKey;
use mpsgate_model::ledger::ProcessId;
use serde::{Deserialize, Serialize};

use crate::overuse::Whose;

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
    /// What it had when it was last looked at, in bytes; `None` where the driver did not tell, and
    /// where there was no look that it still rests on.
    pub used: Option<u64>,
    /// There was no look for a while, and it had been looked at before, and lived after. Not known
    /// after a restart.
    #[serde(skip)]
    pub stayed: bool,
}

/// Who has a listed pid now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Now {
    /// This process, and whose it is.
    Living(ProcessId, Whose),
    /// Nobody: its process has ended.
    Ended,
    /// It cannot be read in this moment, and may be anyone's. Nothing is kept of such a look.
    Unreadable,
}

impl Now {
    fn living(self) -> Option<(ProcessId, Whose)> {
        match self {
            Self::Living(process, whose) => Some((process, whose)),
            Self::Ended | Self::Unreadable => None,
        }
    }
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

/// In bytes: as far as what is kept of a process may be from what it has. The watchdog tolerates
/// more where nothing else is set.
const NEAR: u64 = 64 << 20;

/// Whether somebody of another grant, or of none, has had the pid after a process.
fn is_followed<'a>(
    process: &ProcessId,
    grant: Option<&GrantKey>,
    now: Option<&(ProcessId, Whose)>,
    mut later: impl Iterator<Item = &'a Holder>,
) -> bool {
    let is_another = |of: Option<&GrantKey>| of.is_none() || of != grant;
    let lives = |(now, whose): &(ProcessId, Whose)| {
        now.start_time > process.start_time && is_another(whose.grant())
    };
    now.is_some_and(lives) || later.any(|next| is_another(next.grant.as_ref()))
}

/// Whether `its` is what one that has ended, and `had` so much, has left. What nobody knew of it is
/// not found out any more, but where nothing is listed it has left nothing.
fn is_left(had: Option<u64>, its: Option<u64>) -> bool {
    its == Some(0) || had.is_some() && its.is_some()
}

impl Holders {
    /// A client is handed over to MPS at the door of this grant.
    pub fn hand_over(
        &mut self,
        client: ProcessId,
        grant: GrantKey,
        lives: impl Fn(&GrantKey) -> bool,
    ) {
        if let Some(holders) = self.0.get_mut(&client.pid) {
            make_room(holders, client.start_time, lives);
        } else if self.0.len() >= MOST_PIDS {
            return;
        }
        let holder = self.holder(client);
        holder.grant = Some(grant);
        holder.at_door = true;
    }

    /// Whom the memory under a listed pid counts for. `used`: how much it is, in bytes, where the
    /// driver tells. `before`: the moment in ticks before NVML was asked; who started later is not
    /// meant.
    pub fn share(
        &mut self,
        pid: u32,
        used: Option<u64>,
        now: Now,
        before: Option<u64>,
        lives: impl Fn(&GrantKey) -> bool,
    ) -> Vec<Share> {
        if now == Now::Ended {
            self.0.entry(pid).or_insert_with(|| vec![Holder::new(UNKNOWN)]);
        }
        // Of one that cannot be read nobody knows whether it is the one that has the pid.
        let is_read = now != Now::Unreadable;
        let is_meant = |start_time: u64| before.is_none_or(|before| start_time <= before);
        let now = now.living().filter(|(process, _)| is_meant(process.start_time));
        if let Some((process, whose)) = &now {
            self.see(*process, whose);
        }
        let mut known = self.0.get_mut(&pid).map(Vec::as_mut_slice).unwrap_or_default();
        let was_granted = known.iter().any(|holder| holder.grant.is_some());
        let mut shares = Vec::new();
        // What is left of it, and what is nobody's, in bytes.
        let (mut rest, mut nobodys) = (used, 0_u64);
        while let Some((holder, later)) = known.split_first_mut() {
            known = later;
            if !is_meant(holder.start_time) {
                continue;
            }
            let process = ProcessId { pid, start_time: holder.start_time };
            let grant = holder.grant.clone().filter(&lives);
            let later = known.iter().filter(|next| is_meant(next.start_time));
            let is_followed = is_followed(&process, grant.as_ref(), now.as_ref(), later);
            let had = holder.used;
            let its = match had.filter(|_| is_followed) {
                Some(had) => rest.map(|rest| rest.min(had)),
                None => rest,
            };
            let is_found = if is_followed { is_left(had, its) } else { is_read };
            if is_found {
                holder.used = its;
            }
            rest = rest.zip(its).map(|(rest, its)| rest - its);
            let living = now.as_ref().filter(|(living, _)| *living == process);
            let whose = grant
                .map(Whose::Grant)
                // A server's or a stranger's, while it lives.
                .or_else(|| living.map(|(_, whose)| whose.clone()))
                .filter(|_| !is_followed || had.is_some());
            match (whose, its) {
                (None, its) => nobodys += its.unwrap_or(0),
                (Some(_), Some(0)) if is_followed || !shares.is_empty() || nobodys > 0 => {}
                (Some(_), None) if !shares.is_empty() => {}
                (Some(whose), its) => {
                    shares.push(Share { of: Some((process, whose)), used: its, was_granted });
                }
            }
        }
        let nobodys = rest.map(|rest| nobodys + rest);
        if shares.is_empty() || nobodys.is_some_and(|bytes| bytes > 0) {
            shares.push(Share { of: None, used: nobodys, was_granted });
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
            let oldest = holders.first().map(|holder| holder.start_time);
            holders.retain_mut(|holder| {
                let process = ProcessId { pid: *pid, start_time: holder.start_time };
                let counts = holder.grant.as_ref().is_some_and(&lives);
                if is_listed {
                    // The oldest stays: who has the pid after it is another. And what others have
                    // left is not the next one's.
                    return Some(holder.start_time) == oldest || counts || holder.used != Some(0);
                }
                holder.used = Some(0);
                counts && holder.at_door && is_alive(&process)
            });
            !holders.is_empty()
        });
    }

    /// There was no look for a while. Who lives has still what it has, and nobody knows how much.
    pub fn lapse(&mut self, is_alive: impl Fn(&ProcessId) -> bool) {
        for (pid, holders) in &mut self.0 {
            let lives =
                |holder: &Holder| is_alive(&ProcessId { pid: *pid, start_time: holder.start_time });
            // Who was looked at before and lives has had the pid ever since: nobody came in
            // between, and who had ended before took no more.
            if let Some((last, before)) = holders.split_last_mut()
                && (last.stayed || last.used.is_some())
                && lives(last)
            {
                last.stayed = true;
                last.used = None;
                // Its memory was counted with theirs.
                let is_its =
                    |holder: &&mut Holder| holder.grant.is_some() && holder.grant == last.grant;
                before.iter_mut().rev().take_while(is_its).for_each(|holder| holder.used = None);
                continue;
            }
            for holder in holders {
                holder.used = None;
                if !lives(holder) {
                    holder.grant = None;
                    holder.at_door = false;
                }
            }
        }
    }

    /// Whether `kept` will do for these: the same holders, and about as much of each.
    #[must_use]
    pub fn is_about(&self, kept: &Self) -> bool {
        let is_same = |(one, other): (&Holder, &Holder)| {
            let is_near = match (one.used, other.used) {
                (Some(one), Some(other)) => one.abs_diff(other) <= NEAR,
                (one, other) => one == other,
            };
            is_near
                && (one.start_time, &one.grant, one.at_door)
                    == (other.start_time, &other.grant, other.at_door)
        };
        self.0.len() == kept.0.len()
            && self.0.iter().zip(&kept.0).all(|((pid, own), (kept_pid, kept))| {
                pid == kept_pid && own.len() == kept.len() && own.iter().zip(kept).all(is_same)
            })
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
            // A client may have ended, and left memory, before the first look.
            holders.insert(at, Holder { used: None, ..Holder::new(start_time) });
        }
        &mut holders[at]
    }
}

impl Holder {
    fn new(start_time: u64) -> Self {
        Self { start_time, grant: None, at_door: false, used: Some(0), stayed: false }
    }
}

/// Before one more comes. All of these have ended, as the new one has their pid. What two had that
/// no living grant answers for is kept as one: dropped, it would count for the new one.
fn make_room(holders: &mut Vec<Holder>, start_time: u64, lives: impl Fn(&GrantKey) -> bool) {
    let is_known = holders.iter().any(|holder| holder.start_time == start_time);
    if is_known || holders.len() < MOST_OF_A_PID {
        return;
    }
    let is_nobodys = |holder: &Holder| !holder.grant.as_ref().is_some_and(&lives);
    // Where all grants live, the oldest but the first become nobody's.
    let kept = holders.iter().position(is_nobodys).unwrap_or(1);
    let gone = (kept + 1..holders.len())
        .find(|at| is_nobodys(&holders[*at]))
        .unwrap_or(if kept == 1 { 2 } else { 1 });
    let used = holders[kept].used.zip(holders[gone].used);
    let used = used.map(|(one, other)| one.saturating_add(other));
    holders[kept] = Holder { used, ..Holder::new(holders[kept].start_time) };
    holders.remove(gone);
}
