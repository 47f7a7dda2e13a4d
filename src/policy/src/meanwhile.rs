//! Whether a card's *no* is the card's: what mpsgated has seen of it while it was asked.
//!
//! A client that does not attach may have met a driver that cannot, or a control daemon that had
//! just ended. So a *no* counts only where nothing else was seen that could be its cause. A *yes*
//! needs no such care: what disturbs a card makes nothing hold on it.

use std::collections::BTreeMap;

use mpsgate_model::door_file::Reason;
use mpsgate_model::{Answer, Question, Verdict};

/// What may keep a card from answering as its driver would.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disturbance {
    /// It took no grants.
    NotReady,
    /// Its control daemon was started.
    Restarted,
    /// Its gate was started, or did not tell of its clients.
    Gate,
    /// Its gate ended a client.
    Ended(Reason),
    /// A process used it that has no grant on it.
    Outsider,
    /// Processes without a grant took more of its memory.
    Memory,
}

impl Disturbance {
    /// Whether a question brings it about by itself.
    fn is_of(self, question: Question) -> bool {
        match self {
            // What the client itself says or is: nobody else has a door to the card. And it is
            // ended when it has not answered in time.
            Self::Ended(
                Reason::Words
                | Reason::Word
                | Reason::Debugger
                | Reason::Sender
                | Reason::Uid
                | Reason::Talks
                | Reason::Ended,
            ) => true,
            // It tries the card from outside.
            Self::Outsider | Self::Memory => question == Question::Detour,
            Self::NotReady | Self::Restarted | Self::Gate | Self::Ended(_) => false,
        }
    }
}

/// What was seen of a card up to one moment: how often, and in which words last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sight(BTreeMap<Disturbance, (u64, String)>);

impl Sight {
    /// Takes note of one.
    pub fn saw(&mut self, what: Disturbance, words: impl Into<String>) {
        let (count, last) = self.0.entry(what).or_default();
        *count = count.saturating_add(1);
        *last = words.into();
    }

    /// What was seen since `before` that the question has not brought about, for people; empty
    /// where that is nothing.
    fn since(&self, before: &Self, question: Question) -> String {
        let count = |what| before.0.get(what).map_or(0, |(count, _)| *count);
        let new = self.0.iter().filter(|(what, (now, _))| *now > count(what));
        let new = new.filter(|(what, _)| !what.is_of(question));
        new.map(|(_, (_, words))| words.as_str()).collect::<Vec<_>>().join("; ")
    }
}

/// The answer as it counts; `before` and `after` are the moments between which it was found.
#[must_use]
pub fn judge(answer: Answer, before: &Sight, after: &Sight) -> Answer {
    // Where nothing follows from an answer a wrong one does no harm.
    let meanwhile =
        if answer.may_be_chance() { after.since(before, answer.question) } else { String::new() };
    let verdict = if meanwhile.is_empty() { answer.verdict } else { Verdict::Unanswered };
    Answer { verdict, meanwhile, ..answer }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(question: Question, verdict: Verdict) -> Answer {
        Answer {
            question,
            expected: String::new(),
            seen: "no answer in time".to_owned(),
            verdict,
            evidence: String::new(),
            // Whatever the command says of that is not heard.
            meanwhile: "the command's guess".to_owned(),
            mib: None,
            granted_mib: Some(2048),
            took_ms: 1,
            at_ms: 2,
        }
    }

    fn sight(seen: &[Disturbance]) -> Sight {
        let mut sight = Sight::default();
        seen.iter().for_each(|what| sight.saw(*what, format!("{what:?}")));
        sight
    }

    #[test]
    fn a_no_counts_where_nothing_else_was_seen_and_every_other_answer_counts() {
        use Disturbance::{Ended, Gate, Memory, NotReady, Outsider, Restarted};
        let silent = Ended(Reason::Silent);
        for (question, before, after, meanwhile) in [
            (Question::Attach, vec![], vec![], ""),
            (Question::Attach, vec![], vec![NotReady], "NotReady"),
            (Question::Attach, vec![], vec![Restarted], "Restarted"),
            (Question::Attach, vec![], vec![Gate], "Gate"),
            (Question::Attach, vec![], vec![silent], "Ended(Silent)"),
            (Question::Attach, vec![], vec![Ended(Reason::Elsewhere)], "Ended(Elsewhere)"),
            (Question::Attach, vec![], vec![Outsider], "Outsider"),
            (Question::Limit, vec![], vec![Memory], "Memory"),
            (Question::Limit, vec![], vec![Memory, NotReady], "NotReady; Memory"),
            // During an earlier question, and once more.
            (Question::Limit, vec![NotReady, Outsider], vec![NotReady, Outsider], ""),
            (Question::Limit, vec![NotReady], vec![NotReady, NotReady], "NotReady"),
            // A question's own doing, and what is beside it.
            (Question::Attach, vec![], vec![Ended(Reason::Ended)], ""),
            (Question::Attach, vec![], vec![Ended(Reason::Words)], ""),
            (Question::Bypass, vec![], vec![NotReady], ""),
            (Question::Commands, vec![], vec![Ended(Reason::Word)], ""),
            (Question::Commands, vec![], vec![Ended(Reason::Word), silent], "Ended(Silent)"),
            (Question::Detour, vec![], vec![Outsider, Memory], ""),
            (Question::Detour, vec![], vec![Outsider, NotReady], "NotReady"),
        ] {
            let (before, after) = (sight(&before), sight(&after));
            let verdict = if meanwhile.is_empty() { Verdict::No } else { Verdict::Unanswered };
            let judged = judge(answer(question, Verdict::No), &before, &after);
            assert_eq!(
                (judged.verdict, judged.meanwhile.as_str()),
                (verdict, meanwhile),
                "{question:?}"
            );
            assert_eq!(judged.seen, "no answer in time");
            // What was seen may have kept it from being asked again.
            for (other, meanwhile) in [(Verdict::Yes, ""), (Verdict::Unanswered, meanwhile)] {
                let judged = judge(answer(question, other), &before, &after);
                assert_eq!((judged.verdict, judged.meanwhile.as_str()), (other, meanwhile));
            }
            // No client was put to it, so nothing has kept it from its answer.
            let open = Answer { granted_mib: None, ..answer(question, Verdict::Unanswered) };
            let judged = judge(open, &before, &after);
            assert_eq!((judged.verdict, judged.meanwhile.as_str()), (Verdict::Unanswered, ""));
        }
    }
}
