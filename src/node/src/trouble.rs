//! What is wrong with a card or an entry, for a sentence, a table and a refusal.

use std::fmt::Display;

use mpsgate_model::{Code, Refusal};

/// What is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The end of a sentence that begins with the card: `is in MIG mode`.
    pub why: String,
    /// What to do.
    pub hint: String,
}

impl Trouble {
    /// Of a sentence's end and a command.
    pub fn new(why: impl Into<String>, hint: impl Into<String>) -> Self {
        // One line: it becomes part of a sentence, of a table and of the runtime's log.
        Self { why: why.into().replace('\n', " | "), hint: hint.into() }
    }
}

impl Trouble {
    /// As a refusal that begins with `of`: the card, or what was tried.
    #[must_use]
    pub fn refusal(&self, of: impl Display) -> Refusal {
        Refusal::new(Code::GpuUnhealthy, format!("{of} {}", self.why), self.hint.clone())
    }
}

/// Of one that is a sentence by itself.
impl From<Trouble> for Refusal {
    fn from(Trouble { why, hint }: Trouble) -> Self {
        Self::new(Code::GpuUnhealthy, why, hint)
    }
}
