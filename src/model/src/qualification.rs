//! What a node has shown of a card: questions, answers, and the subject of the answers.
//!
//! The file `questions` has the list of all questions. `mpsgate qualify` asks those of the stage
//! `qualify` on the node that has the card, `tests/gpu/run` asks the others.

use mpsgate_host::format::{self, FormatError};
use serde::{Deserialize, Serialize};

use crate::GpuUuid;

/// The version of the questions. It rises when a question or its answer changes its meaning, so
/// that the question is asked anew.
pub const QUESTIONS: u32 = 3;
/// The format of a card's file.
const FORMAT: u32 = 1;
/// The most characters of an answer's text.
const LONGEST: usize = 600;
const LIST: &str = include_str!("questions");

/// The questions of `mpsgate qualify`, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// Does a CUDA client attach through its container's door?
    Attach,
    /// Does a door take commands of the control daemon?
    Commands,
    /// Does a client with a `/dev/shm` of its own attach? Its IPC namespace is the host's: a
    /// container with another one is refused before the question, and libcuda 535 and 550 ignore
    /// the IPC namespace (measured).
    OwnShm,
    /// Does the limit hold?
    Limit,
    /// Does the server itself limit a client that has dropped its own limit? No driver's does: the
    /// client's library keeps the limit. Nothing follows from either answer.
    Bypass,
    /// Does NVML show the memory of each process?
    Processes,
    /// Can a process that bypasses MPS use the card?
    Detour,
    /// Do clients of two uids attach at once, each with its own limit?
    Users,
    /// Does `terminate_client` end one client alone?
    Terminate,
    /// Does the driver limit a container's cgroup?
    Cgroup,
    /// Do two clients work at once?
    Throughput,
}

// The question's name in the list, files and reports.
crate::words!(Question:
    Attach = "attach", Commands = "commands", OwnShm = "own-shm", Limit = "limit",
    Bypass = "bypass", Processes = "processes", Detour = "detour", Users = "users",
    Terminate = "terminate", Cgroup = "cgroup", Throughput = "throughput",
);

impl Question {
    /// The deciding questions, in their order.
    pub const ALL: [Self; 7] = [
        Self::Attach,
        Self::Commands,
        Self::OwnShm,
        Self::Limit,
        Self::Bypass,
        Self::Processes,
        Self::Detour,
    ];
    /// The questions that `--full` adds.
    pub const FULL: [Self; 4] = [Self::Users, Self::Terminate, Self::Cgroup, Self::Throughput];

    /// The question's text, for people.
    #[must_use]
    pub fn text(self) -> &'static str {
        self.field(3)
    }

    /// What a good card shows; empty where no answer is a failure.
    #[must_use]
    pub fn expected(self) -> &'static str {
        self.field(4)
    }

    /// Whether *no* means that the card lacks something that it should have.
    #[must_use]
    pub fn is_evaluated(self) -> bool {
        self.field(2) == "evaluated"
    }

    fn field(self, number: usize) -> &'static str {
        let rows = LIST.lines().map(|line| line.split('|').map(str::trim));
        let mut own = rows.filter(|row| row.clone().take(2).eq(["qualify", self.as_str()]));
        own.next().and_then(|mut row| row.nth(number)).unwrap_or_default()
    }
}

/// The verdict on an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The expected was seen.
    Yes,
    /// Something else was seen, or the client hung.
    No,
    /// The question could not be asked, or what was seen may have had another cause.
    Unanswered,
}

crate::words!(Verdict: Yes = "yes", No = "no", Unanswered = "unanswered");

/// The answer to one question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The question.
    pub question: Question,
    /// What a good card shows; empty where no answer is a failure.
    pub expected: String,
    /// What was seen, or why it was not asked.
    pub seen: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The evidence: figures and messages.
    pub evidence: String,
    /// What mpsgated saw meanwhile that may have caused a *no*, which does not count then, or that
    /// may be why a client left the question unanswered. Empty where mpsgated saw nothing. Where it
    /// saw something, the question is due again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub meanwhile: String,
    /// The figure that others follow from, in MiB: what a client got (`limit`, `bypass`), or what
    /// NVML shows of an idle one (`processes`).
    pub mib: Option<u64>,
    /// The grant of the client's container, in MiB; `None` where no client ran for the question, so
    /// that it is unanswered.
    pub granted_mib: Option<u64>,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

impl Answer {
    /// Whether the answer means that the card lacks something that it should have.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.verdict == Verdict::No && self.question.is_evaluated()
    }

    /// Whether something else than the card may have caused it: a client ran for a question whose
    /// answer counts, and did not show what is expected.
    #[must_use]
    pub fn may_be_chance(&self) -> bool {
        let is_missed = match self.verdict {
            Verdict::Yes => false,
            Verdict::No => true,
            Verdict::Unanswered => self.granted_mib.is_some(),
        };
        is_missed && self.question.is_evaluated()
    }

    /// Its texts cut to a length that a status can carry.
    #[must_use]
    pub fn cut(mut self) -> Self {
        for text in [&mut self.expected, &mut self.seen, &mut self.evidence, &mut self.meanwhile] {
            if let Some((at, _)) = text.char_indices().nth(LONGEST) {
                text.truncate(at);
                text.push('…');
            }
        }
        self
    }
}

/// What the answers are about. Where one of these values has changed, the questions should be asked
/// again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The card.
    pub card: GpuUuid,
    /// The driver's version, as NVML names it.
    pub driver: String,
    /// The control program: size and time of its file, or why they cannot be read.
    pub control: String,
    /// [`QUESTIONS`] of the program that asked.
    pub questions: u32,
    /// Whether the card is simulated: an answer of a simulated card proves nothing.
    pub simulated: bool,
}

/// All answers of a card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qualification {
    /// The format of the file.
    format: u32,
    /// What the answers are about.
    pub subject: Subject,
    /// At most one for each question.
    pub answers: Vec<Answer>,
}

impl Qualification {
    /// Answers that have just been given.
    #[must_use]
    pub fn new(subject: Subject, answers: Vec<Answer>) -> Self {
        Self { format: FORMAT, subject, answers: answers.into_iter().map(Answer::cut).collect() }
    }

    /// Parses a file.
    ///
    /// # Errors
    /// Where it is torn, of a newer mpsgate, or has two answers to a question.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let found: Self = format::read(bytes, FORMAT)?;
        let mut asked: Vec<Question> = found.answers.iter().map(|answer| answer.question).collect();
        asked.sort_unstable();
        if asked.windows(2).any(|pair| matches!(pair, [one, other] if one == other)) {
            let twice = serde::de::Error::custom("it answers a question twice");
            return Err(FormatError::Content(twice));
        }
        Ok(found)
    }

    /// Adds the answers of `older` to questions that could not be asked now: an answer stays, and
    /// is due again where mpsgated saw something meanwhile. `None` where no question could be asked
    /// and there are older answers.
    #[must_use]
    pub fn beside(mut self, older: Option<&Self>) -> Option<Self> {
        let Some(older) = older else { return Some(self) };
        let is_open = |answer: &Answer| answer.verdict == Verdict::Unanswered;
        if older.subject != self.subject {
            return (!self.answers.iter().all(is_open)).then_some(self);
        }
        for answer in self.answers.iter_mut().filter(|answer| is_open(answer)) {
            if let Some(seen) = older.answer(answer.question) {
                let meanwhile = std::mem::take(&mut answer.meanwhile);
                answer.clone_from(seen);
                if !meanwhile.is_empty() {
                    answer.meanwhile = meanwhile;
                }
            }
        }
        let asked = |answer: &Answer| self.answer(answer.question).is_some();
        let others: Vec<Answer> =
            older.answers.iter().filter(|answer| !asked(answer)).cloned().collect();
        self.answers.extend(others);
        Some(self)
    }

    /// The answer to a question.
    #[must_use]
    pub fn answer(&self, question: Question) -> Option<&Answer> {
        self.answers.iter().find(|answer| answer.question == question)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;
    use crate::example_gpu;

    fn subject() -> Subject {
        Subject {
            card: example_gpu(0),
            driver: "550.163.01".to_owned(),
            control: "71696 bytes".to_owned(),
            questions: QUESTIONS,
            simulated: false,
        }
    }

    fn answer(question: Question) -> Answer {
        Answer {
            question,
            expected: question.expected().to_owned(),
            seen: "x".repeat(2000),
            verdict: Verdict::Yes,
            evidence: String::new(),
            meanwhile: String::new(),
            mib: Some(1024),
            granted_mib: Some(1024),
            took_ms: 7,
            at_ms: 8,
        }
    }

    #[test]
    fn each_question_is_in_the_list_and_each_of_the_stage_is_known() {
        let all: Vec<Question> = Question::ALL.into_iter().chain(Question::FULL).collect();
        for question in &all {
            assert!(question.text().len() > 20, "{question:?}");
            assert_eq!(question.expected().is_empty(), !question.is_evaluated(), "{question:?}");
        }
        let recorded: Vec<&Question> = all.iter().filter(|one| !one.is_evaluated()).collect();
        assert_eq!(recorded, [&Question::Bypass]);
        let rows = LIST.lines().filter_map(|line| line.strip_prefix("qualify | "));
        let names: Vec<&str> = rows.map(|row| row.split(" | ").next().unwrap()).collect();
        let own: Vec<&str> = all.iter().map(|question| question.as_str()).collect();
        assert_eq!(names, own);
        let written: Vec<_> =
            all.iter().map(|question| serde_json::to_value(question).unwrap()).collect();
        assert_eq!(written, own);
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_long_texts_are_cut() {
        let made = Qualification::new(subject(), vec![answer(Question::Limit)]);
        let read = Qualification::parse(&serde_json::to_vec(&made).unwrap()).unwrap();
        assert_eq!(read, made);
        assert_eq!(read.answer(Question::Limit).unwrap().seen.chars().count(), LONGEST + 1);
        assert!(read.answer(Question::Attach).is_none());
    }

    #[test]
    fn what_could_not_be_asked_leaves_what_was_seen() {
        let of = |verdict, driver: &str| {
            let subject = Subject { driver: driver.to_owned(), ..subject() };
            let limit = Answer { verdict, ..answer(Question::Limit) };
            let attach = answer(Question::Attach);
            let attach = Answer { verdict: Verdict::Unanswered, ..attach };
            Qualification::new(subject, vec![attach, limit])
        };
        let (yes, open) = (of(Verdict::Yes, "550"), of(Verdict::Unanswered, "550"));
        assert_eq!(open.clone().beside(None), Some(open.clone()));
        assert_eq!(open.clone().beside(Some(&yes)), Some(yes.clone()));
        assert_eq!(of(Verdict::No, "550").beside(Some(&yes)), Some(of(Verdict::No, "550")));
        // An answer stays where something else may have caused a no, and the question is asked
        // again.
        let meanwhile = "its gate was started anew".to_owned();
        let disturbed = |answer: &Answer| Answer { meanwhile: meanwhile.clone(), ..answer.clone() };
        let mut disturbing = open.clone();
        disturbing.answers = open.answers.iter().map(disturbed).collect();
        let kept = disturbing.beside(Some(&yes)).unwrap();
        let both: Vec<_> =
            kept.answers.iter().map(|it| (it.verdict, it.meanwhile.as_str())).collect();
        assert_eq!(both, [Verdict::Unanswered, Verdict::Yes].map(|it| (it, meanwhile.as_str())));
        // Another run that could not ask leaves it due; a run that could ask does not.
        assert_eq!(open.clone().beside(Some(&kept)), Some(kept.clone()));
        let asked = of(Verdict::No, "550").beside(Some(&kept)).unwrap();
        assert_eq!(asked.answer(Question::Limit).unwrap().meanwhile, "");
        // An answer to a question that this run did not ask stays, too.
        let users = Answer { verdict: Verdict::Yes, ..answer(Question::Users) };
        let full = Qualification::new(subject(), vec![users]);
        let both = Qualification::new(subject(), vec![answer(Question::Limit)]).beside(Some(&full));
        let kept = both.unwrap().answer(Question::Users).map(|answer| answer.verdict);
        assert_eq!(kept, Some(Verdict::Yes));
        // Answers of another driver are not merged: either all new ones, or those of before.
        assert_eq!(of(Verdict::Unanswered, "580").beside(Some(&yes)), None);
        assert_eq!(of(Verdict::No, "580").beside(Some(&yes)), Some(of(Verdict::No, "580")));
    }

    #[test]
    fn what_is_torn_newer_or_contradicts_itself_is_no_qualification() {
        let two = vec![answer(Question::Limit), answer(Question::Limit)];
        let twice = serde_json::to_vec(&Qualification::new(subject(), two)).unwrap();
        assert!(Qualification::parse(&twice).unwrap_err().to_string().contains("twice"));
        assert!(Qualification::parse(twice.get(..40).unwrap()).is_err());
        let newer = br#"{"format":2,"answers":{}}"#;
        assert!(Qualification::parse(newer).unwrap_err().to_string().contains("format 2"));
        for text in ["", "[]", "{}", r#"{"format":1}"#] {
            assert!(Qualification::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
