//! A card that is asked what holds on it: its answers, and what was seen of it meanwhile.

use mpsgate_model::door_file::Counts;
use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{Answer, Mib, Qualification, Subject};
use mpsgate_policy::{Conclusion, Disturbance, Sight};

use super::{Card, Trouble};

/// Processes that a sentence names.
const NAMED: usize = 6;
/// Of a card, what others may take of it while it is asked: a desktop does, as windows come and go.
const MUCH: Mib = Mib(256);

/// What a card was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Qualified {
    /// Its answers.
    pub found: Option<Qualification>,
    /// Why they cannot be read, where there are some.
    pub unreadable: Option<String>,
    /// What follows from them with the driver of today.
    pub conclusion: Conclusion,
    /// Why it takes no grant, where that follows.
    pub refusal: Option<Trouble>,
    /// It is being asked now.
    pub asking: Option<Asking>,
    /// Kubelet is told of it once it was asked, or nobody came for that.
    pub is_awaited: bool,
}

/// A card that is being asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asking {
    /// How the ids of the containers begin that ask it.
    pub id: String,
    /// Of what it is asked.
    pub subject: Subject,
    /// What everybody else is told.
    pub trouble: Trouble,
    /// What it has answered so far, as it counts.
    pub answers: Vec<Answer>,
    /// What else was seen of it so far.
    pub sight: Sight,
    /// `sight` as it was at the last answer: what was seen since may be the cause of the next one.
    pub before: Sight,
    /// How often its gate has told of its clients.
    pub told: u64,
    /// Bytes of it that processes without a grant had at the least.
    pub others: Option<u64>,
}

impl Asking {
    /// Of a card that has said nothing yet.
    pub fn new(id: &str, subject: Subject, trouble: Trouble) -> Self {
        Self {
            id: id.to_owned(),
            subject,
            trouble,
            answers: Vec::new(),
            sight: Sight::default(),
            before: Sight::default(),
            told: 0,
            others: None,
        }
    }
}

impl Card {
    /// Takes note of what may keep it from answering as its driver would, while it is asked.
    pub(crate) fn saw(&mut self, what: Disturbance, words: impl Into<String>) {
        if let Some(asking) = &mut self.qualified.asking {
            asking.sight.saw(what, words);
        }
    }

    /// Takes what its gate says of its clients.
    pub(super) fn count_clients(&mut self, counts: Counts, gate: Option<ProcessId>) {
        let is_other = self.gate_process.is_some() && self.gate_process != gate;
        // What the first gate of this mpsgated tells is of before.
        let before = match self.gate.take() {
            Some(before) if !is_other => before,
            Some(_) => Counts::default(),
            None => counts.clone(),
        };
        if is_other {
            self.saw(Disturbance::Gate, "its gate was started anew");
        }
        for (reason, count) in &counts.ended {
            let new = count.saturating_sub(before.ended.get(reason).copied().unwrap_or_default());
            if new > 0 {
                let words = format!("its gate ended clients ({} {new})", reason.as_str());
                self.saw(Disturbance::Ended(*reason), words);
            }
        }
        if let Some(asking) = &mut self.qualified.asking {
            asking.told += 1;
        }
        (self.gate, self.gate_process) = (Some(counts), gate);
    }

    /// Takes who uses it without a grant, and how much they have where NVML tells all.
    pub(super) fn note_others(&mut self, outsiders: &[u32], others: Option<u64>) {
        if !outsiders.is_empty() {
            let pids: Vec<String> = outsiders.iter().take(NAMED).map(u32::to_string).collect();
            let words = format!("processes without a grant used it: pid {}", pids.join(", "));
            self.saw(Disturbance::Outsider, words);
        }
        let (Some(asking), Some(now)) = (&mut self.qualified.asking, others) else { return };
        let least = asking.others.map_or(now, |least| least.min(now));
        asking.others = Some(least);
        let more = now.saturating_sub(least) >> 20;
        if more > MUCH.0 {
            let words = format!("processes without a grant took {} more of it", Mib(more));
            self.saw(Disturbance::Memory, words);
        }
    }
}
