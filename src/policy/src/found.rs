//! What was found in a spec, told in a bounded way: a spec may show one thing three hundred
//! thousand times.

use mpsgate_model::{Code, printable};
use mpsgate_oci::spec::Edit;

/// Of things of one kind, how many are told in words.
const TOLD: usize = 3;

/// Things of one kind: the first few in words, the others counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Few {
    told: Vec<String>,
    more: usize,
}

impl Few {
    /// One more; `tell` is asked only where it is told.
    pub(crate) fn add(&mut self, tell: impl FnOnce() -> String) {
        if self.told.len() < TOLD {
            self.told.push(printable::line(&tell()).into_owned());
        } else {
            self.more += 1;
        }
    }

    /// All of them as one part of a sentence; `None` where there is none.
    pub(crate) fn text(&self) -> Option<String> {
        let text = self.told.join("; ");
        match (self.told.is_empty(), self.more) {
            (true, _) => None,
            (false, 0) => Some(text),
            (false, more) => Some(format!("{text}; and {more} more")),
        }
    }

    fn first(&self) -> &str {
        self.told.first().map(String::as_str).unwrap_or_default()
    }
}

/// What of a spec reaches a managed card in one way. There is at most one of each code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    /// Code of the refusal that it would be.
    pub code: Code,
    /// Whether all of it can be taken away.
    pub removable: bool,
    found: Few,
    /// What takes it away.
    pub(crate) remove: Vec<Edit>,
}

impl Signal {
    /// What was found first, as the beginning of a sentence.
    #[must_use]
    pub fn found(&self) -> &str {
        self.found.first()
    }

    /// What was found, the first few in words and the others counted, as the beginning of a
    /// sentence.
    #[must_use]
    pub fn text(&self) -> String {
        self.found.text().unwrap_or_default()
    }

    /// One that nothing takes away.
    #[must_use]
    pub fn fixed(code: Code, found: String) -> Self {
        let mut signals = Signals::default();
        signals.add(code, || found, None);
        let none = Self { code, removable: false, found: Few::default(), remove: Vec::new() };
        signals.into_vec().pop().unwrap_or(none)
    }
}

/// The signals of a spec, in the order in which their codes were met first.
#[derive(Debug, Default)]
pub(crate) struct Signals(Vec<Signal>);

impl Signals {
    /// One more thing that was found, with what takes it away: `None` where nothing can.
    pub(crate) fn add(
        &mut self,
        code: Code,
        tell: impl FnOnce() -> String,
        remove: Option<Vec<Edit>>,
    ) {
        let at = self.0.iter().position(|signal| signal.code == code).unwrap_or_else(|| {
            let found = Few::default();
            self.0.push(Signal { code, removable: true, found, remove: Vec::new() });
            self.0.len() - 1
        });
        let Some(signal) = self.0.get_mut(at) else { return };
        signal.found.add(tell);
        match remove {
            None => signal.removable = false,
            Some(edits) => edits.into_iter().for_each(|edit| join(&mut signal.remove, edit)),
        }
    }

    pub(crate) fn into_vec(self) -> Vec<Signal> {
        self.0
    }
}

/// Appends an edit. Variables that are dropped one by one are dropped at once.
fn join(edits: &mut Vec<Edit>, edit: Edit) {
    match (edits.last_mut(), edit) {
        (Some(Edit::Env { drop, set }), Edit::Env { drop: more, set: none })
            if set.is_empty() && none.is_empty() =>
        {
            drop.extend(more);
        }
        (_, edit) => edits.push(edit),
    }
}

/// Something to be logged about a container that is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// What was done about it.
    pub action: NoteAction,
    /// The code of what was found.
    pub code: Code,
    /// What was found, as a sentence.
    pub text: String,
}

/// What was done about something that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoteAction {
    /// The container was refused. A note is of one that is started; a report may be of this one.
    Refused,
    /// Taken away.
    Stripped,
    /// Let through, because the settings say so.
    Warned,
    /// Nothing: it is not mpsgate's to decide.
    Noted,
}

mpsgate_model::words!(NoteAction:
    Refused = "refused", Stripped = "stripped", Warned = "warned", Noted = "noted",
);

impl Note {
    pub(crate) fn new(action: NoteAction, code: Code, text: impl Into<String>) -> Self {
        let text: String = text.into();
        Self { action, code, text: printable::line(&text).into_owned() }
    }

    pub(crate) fn noted(code: Code, text: String) -> Self {
        Self::new(NoteAction::Noted, code, text)
    }

    /// Of several things of one kind; `None` where there is none.
    pub(crate) fn of_few(code: Code, found: &Few) -> Option<Self> {
        found.text().map(|text| Self::noted(code, text))
    }
}

/// What one rule finds of a container that has no request: what changes it, and what is said.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) edits: Vec<Edit>,
    pub(crate) notes: Vec<Note>,
}

impl Findings {
    pub(crate) fn stripped(code: Code, text: impl Into<String>, edits: Vec<Edit>) -> Self {
        Self { edits, notes: vec![Note::new(NoteAction::Stripped, code, text)] }
    }

    pub(crate) fn warned(code: Code, found: &str) -> Self {
        let text = format!("{found}; let through by policy.unallocated = \"warn\"");
        Self { edits: Vec::new(), notes: vec![Note::new(NoteAction::Warned, code, text)] }
    }

    /// Told in this order: what nobody is stopped for, what was taken away, what is let through.
    pub(crate) fn in_order(mut self) -> Self {
        self.notes.sort_by_key(|note| (note.action != NoteAction::Noted, note.action));
        self
    }
}

impl Extend<Self> for Findings {
    fn extend<I: IntoIterator<Item = Self>>(&mut self, more: I) {
        for Self { edits, notes } in more {
            self.edits.extend(edits);
            self.notes.extend(notes);
        }
    }
}

/// Notes of the same code and action as one: each is a message to mpsgated.
pub(crate) fn one_of_each(notes: Vec<Note>) -> Vec<Note> {
    let mut kept: Vec<Note> = Vec::new();
    for note in notes {
        match kept.iter_mut().find(|k| (k.action, k.code) == (note.action, note.code)) {
            Some(same) => same.text = format!("{}; {}", same.text, note.text),
            None => kept.push(note),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn many_of_a_kind_are_one_signal_with_a_count() {
        let mut signals = Signals::default();
        for i in 0..300_000 {
            let remove = Edit::Env { drop: vec![format!("V{i}")], set: Vec::new() };
            signals.add(Code::SwarmResource, || format!("V{i}\n"), Some(vec![remove]));
        }
        signals.add(Code::MpsMount, || "it mounts it".to_owned(), Some(Vec::new()));
        signals.add(Code::MpsMount, || "and this".to_owned(), None);
        let [many, mount]: [Signal; 2] = signals.into_vec().try_into().unwrap();
        assert_eq!(many.text(), "V0\\n; V1\\n; V2\\n; and 299997 more");
        assert_eq!((many.found(), many.removable), ("V0\\n", true));
        assert!(matches!(&many.remove[..], [Edit::Env { drop, .. }] if drop.len() == 300_000));
        assert_eq!((mount.text().as_str(), mount.removable), ("it mounts it; and this", false));
    }
}
