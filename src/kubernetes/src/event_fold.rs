//! Many reports become few events: the same again is counted, and each object and reason has a
//! budget. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mpsgate_model::printable::{cut_bytes, plain};
use mpsgate_model::{Backoff, Bucket, Rate};

/// What the API server takes as a message (events.k8s.io: `note`, 1 kB).
const LONGEST_MESSAGE: usize = 1024;
/// Writes of one object and reason.
const WRITES: Rate = Rate { burst: 3, every: Duration::from_secs(60) };
/// Messages of one object and reason that have events of their own; further ones replace the last.
const MESSAGES: usize = 3;
/// The API server forgets an event after an hour, and what is folded into a forgotten one is lost.
const FORGOTTEN: Duration = Duration::from_secs(50 * 60);
/// Objects and reasons that are remembered; beyond, the one that was quiet longest makes room.
const REMEMBERED: usize = 512;
/// How long an object and reason waits after the API server said no.
const ASIDE: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5 * 60));

/// Why an event is written: its one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A container was not let in.
    GpuMemoryRefused,
    /// A container was let in, and something of it may keep it from its GPU memory.
    GpuMemoryWarned,
    /// A container took from its neighbours what is theirs.
    GpuWatchdog,
    /// A container reached a GPU without a grant, or tried to.
    GpuBypassAttempt,
    /// MPS of a card failed, or its grants are broken.
    MpsFault,
    /// It works again.
    MpsRecovered,
    /// Kubelet had no devices for a pod, and failed it for good.
    GpuPodNotAdmitted,
    /// The node's mode cannot be switched while grants of the other one live.
    GpuModeSwitchDeferred,
    /// The node has another mode.
    GpuModeSwitched,
}

mpsgate_model::words!(Reason:
    GpuMemoryRefused = "GPUMemoryRefused", GpuMemoryWarned = "GPUMemoryWarned",
    GpuWatchdog = "GPUWatchdog", GpuBypassAttempt = "GPUBypassAttempt",
    MpsFault = "MPSFault", MpsRecovered = "MPSRecovered",
    GpuPodNotAdmitted = "GPUPodNotAdmitted", GpuModeSwitchDeferred = "GPUModeSwitchDeferred",
    GpuModeSwitched = "GPUModeSwitched",
);

/// Whether somebody has to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// No.
    Normal,
    /// Yes.
    Warning,
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
    /// This node.
    Node,
}

/// What is reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// About what.
    pub subject: Subject,
    /// Why.
    pub reason: Reason,
    /// Whether somebody has to act.
    pub severity: Severity,
    /// A sentence, then what to do; cut at 1024 bytes.
    pub message: String,
}

/// One event of the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folded {
    pub(crate) subject: Subject,
    pub(crate) reason: Reason,
    pub(crate) severity: Severity,
    pub(crate) message: String,
    /// How often, since the first.
    pub(crate) count: u32,
    /// Its name there, once it was created.
    pub(crate) name: Option<String>,
    /// RFC 3339.
    pub(crate) first: String,
    pub(crate) last: String,
    /// Something the API server does not have yet.
    unwritten: bool,
    /// Which of all it is.
    number: u64,
}

struct Budget {
    events: Vec<Folded>,
    writes: Bucket,
    heard: Instant,
    aside: Option<Aside>,
}

/// The API server said no: the others go on, and this one is tried again later.
#[derive(Clone, Copy)]
struct Aside {
    until: Instant,
    waits: Backoff,
}

/// All that is remembered.
#[derive(Default)]
pub(crate) struct Folding {
    budgets: BTreeMap<(Subject, Reason), Budget>,
    taken: u64,
}

/// What is to be written next.
#[derive(Debug)]
pub(crate) enum Next {
    /// This, now: [`Folding::written`], [`Folding::refused`] or [`Folding::unsent`] tells how it
    /// went.
    Write(Folded),
    /// Nothing before that moment, unless something is reported.
    At(Instant),
    /// Nothing, unless something is reported.
    Nothing,
}

/// How a write went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Under this name.
    Written(String),
    /// The API server has no such event any more: it is to be created anew.
    Forgotten,
    /// It will never take it: the namespace ends, or the pod's name is none. What it said.
    Refused(String),
}

impl Folding {
    pub(crate) fn take(&mut self, event: Event, now: Instant, time: &str) {
        let key = (event.subject.clone(), event.reason);
        self.budgets.retain(|_, budget| now.duration_since(budget.heard) < FORGOTTEN);
        if self.budgets.len() >= REMEMBERED && !self.budgets.contains_key(&key) {
            // Pods are many and anybody's; what is known of the node stays.
            let pods = self.budgets.iter().filter(|((subject, _), _)| *subject != Subject::Node);
            let quiet = pods.min_by_key(|(_, budget)| (budget.aside.is_none(), budget.heard));
            if let Some(key) = quiet.map(|(key, _)| key.clone()) {
                self.budgets.remove(&key);
            }
        }
        let budget = self.budgets.entry(key).or_insert_with(|| Budget {
            events: Vec::new(),
            writes: Bucket::default(),
            heard: now,
            aside: None,
        });
        budget.heard = now;
        let message = cut_bytes(plain(&event.message), LONGEST_MESSAGE);
        let same = budget.events.iter().position(|known| known.message == message);
        let place = match same {
            None if budget.events.len() >= MESSAGES => Some(MESSAGES - 1),
            known => known,
        };
        match place.and_then(|place| budget.events.get_mut(place)) {
            Some(known) => {
                known.count = known.count.saturating_add(1);
                known.severity = event.severity;
                known.message = message;
                time.clone_into(&mut known.last);
                known.unwritten = true;
            }
            None => {
                self.taken += 1;
                budget.events.push(Folded {
                    subject: event.subject,
                    reason: event.reason,
                    severity: event.severity,
                    message,
                    count: 1,
                    name: None,
                    first: time.to_owned(),
                    last: time.to_owned(),
                    unwritten: true,
                    number: self.taken,
                });
            }
        }
    }

    /// What is due, of the subjects that may be written now. A write takes from its budget when it
    /// is handed out.
    pub(crate) fn next(&mut self, now: Instant, may: impl Fn(&Subject) -> bool) -> Next {
        let mut soonest: Option<Instant> = None;
        for ((subject, _), budget) in &mut self.budgets {
            if !may(subject) {
                continue;
            }
            let Some(event) = budget.events.iter_mut().find(|event| event.unwritten) else {
                continue;
            };
            if let Some(Aside { until, .. }) = budget.aside.filter(|aside| aside.until > now) {
                soonest = Some(soonest.map_or(until, |soonest| soonest.min(until)));
                continue;
            }
            if budget.writes.take(WRITES, now) {
                event.unwritten = false;
                return Next::Write(event.clone());
            }
            let at = budget.writes.free_at(WRITES, now);
            soonest = Some(soonest.map_or(at, |soonest| soonest.min(at)));
        }
        soonest.map_or(Next::Nothing, Next::At)
    }

    /// The API server answered. What was reported meanwhile stays to be written.
    pub(crate) fn written(&mut self, event: &Folded, outcome: Outcome) {
        let Some((budget, place)) = self.place(event) else { return };
        budget.aside = None;
        let Some(known) = budget.events.get_mut(place) else { return };
        match outcome {
            Outcome::Written(name) => known.name = Some(name),
            Outcome::Forgotten => {
                known.name = None;
                known.first.clone_from(&known.last);
                known.count = 1;
                known.unwritten = true;
                // Not the pod's fault: that write was for nothing.
                budget.writes.give_back(WRITES);
            }
            Outcome::Refused(_) => drop(budget.events.remove(place)),
        }
    }

    /// The API server said no to this one, which says nothing of any other: it waits, and longer
    /// each time. Whether that is the first time in a row.
    pub(crate) fn refused(&mut self, event: &Folded, now: Instant) -> bool {
        self.unsent(event);
        let Some((budget, _)) = self.place(event) else { return false };
        let mut waits = budget.aside.map_or(ASIDE, |aside| aside.waits);
        let until = now + waits.pause();
        budget.aside.replace(Aside { until, waits }).is_none()
    }

    /// The API server could not be asked: it is to be written as before.
    pub(crate) fn unsent(&mut self, event: &Folded) {
        let Some((budget, place)) = self.place(event) else { return };
        budget.writes.give_back(WRITES);
        if let Some(known) = budget.events.get_mut(place) {
            known.unwritten = true;
        }
    }

    fn place(&mut self, event: &Folded) -> Option<(&mut Budget, usize)> {
        let budget = self.budgets.get_mut(&(event.subject.clone(), event.reason))?;
        let place = budget.events.iter().position(|known| known.number == event.number)?;
        Some((budget, place))
    }
}

#[cfg(test)]
mod tests;
