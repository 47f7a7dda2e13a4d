//! What is asked of mpsgated: one question at a time, and one connection for each.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use mpsgate_model::door_file::{LONGEST_LINE, Prepared, Question};

use crate::sockets::{self, Heard};

/// For an mpsgated that answers. It may have a server to start, for which others must not wait.
const LIMIT: Duration = Duration::from_secs(5);

/// A question that was asked.
pub(crate) struct Asked {
    mpsgated: OwnedFd,
    question: Question,
    line: Vec<u8>,
    pipe: Option<OwnedFd>,
    until: Instant,
}

/// What mpsgated has answered.
pub(crate) struct Answered {
    pub(crate) prepared: Prepared,
    /// The control daemon's directory.
    pub(crate) pipe: Option<OwnedFd>,
}

impl Asked {
    /// Asks; `None` where nobody takes the question.
    pub(crate) fn ask(path: &Path, question: Question, now: Instant) -> Option<Self> {
        let mpsgated = sockets::say(path, &question.line()).ok()?;
        Some(Self { mpsgated, question, line: Vec::new(), pipe: None, until: now + LIMIT })
    }

    /// What may be asked instead, where it has closed the connection without a word: so does one
    /// that does not know what was said.
    pub(crate) fn of_before(&self) -> Option<Question> {
        self.question.of_before().filter(|_| self.line.is_empty())
    }

    /// Whether a client waits for the answer.
    pub(crate) fn is_for_client(&self) -> bool {
        matches!(self.question, Question::Prepare { .. })
    }

    /// What the answer is waited for on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.mpsgated.as_fd()
    }

    /// When it is over at the latest.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// The answer, where it is there; `Gone` where there will be none.
    pub(crate) fn answer(&mut self) -> Heard<Answered> {
        loop {
            let mut bytes = [0; LONGEST_LINE];
            match sockets::read(self.fd(), &mut bytes) {
                Heard::Said((length, pipe)) => {
                    self.line.extend(bytes.get(..length).unwrap_or_default());
                    self.pipe = pipe.or_else(|| self.pipe.take());
                }
                Heard::Nothing => return Heard::Nothing,
                Heard::Gone => return Heard::Gone,
            }
            if self.line.ends_with(b"\n") {
                let Ok(prepared) = Prepared::read(&self.line) else { return Heard::Gone };
                return Heard::Said(Answered { prepared, pipe: self.pipe.take() });
            }
            if self.line.len() >= LONGEST_LINE {
                return Heard::Gone;
            }
        }
    }
}
