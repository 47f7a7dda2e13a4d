//! Containers that were refused, or started with a note: one count since the start, for `status` and for
//! the metrics.

use std::collections::BTreeMap;

use mpsgate_policy::{Code, NoteAction};

/// For what is no code of this version.
const OTHER: &str = "OTHER";
/// Longest code that is kept. Codes come from root's own programs, maybe of another version.
const CODE_MAX: usize = 40;
/// A container that was started although something was found; what `status` shows of them.
const NOTES: [NoteAction; 3] = [NoteAction::Stripped, NoteAction::Warned, NoteAction::Noted];
const NOTES_OF_STATUS: [NoteAction; 2] = [NoteAction::Stripped, NoteAction::Warned];

/// By what was done, and code. Any action but a note's is a refusal (`None`).
#[derive(Debug, Clone, Default)]
pub(crate) struct Judged(BTreeMap<(Option<NoteAction>, String), u64>);

impl Judged {
    /// One more. What has not the form of a code is not kept.
    pub(crate) fn count(&mut self, action: &str, code: &str) {
        let note = NOTES.into_iter().find(|note| note.as_str() == action);
        let is_code =
            code.len() <= CODE_MAX && code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        let code = if is_code { code } else { OTHER };
        *self.0.entry((note, code.to_owned())).or_default() += 1;
    }

    /// Refused, by code as it came.
    pub(crate) fn refusals(&self) -> BTreeMap<String, u64> {
        self.by_code(|note| note.is_none())
    }

    /// Stripped or warned of, and started, by code as it came.
    pub(crate) fn notes(&self) -> BTreeMap<String, u64> {
        self.by_code(|note| note.is_some_and(|note| NOTES_OF_STATUS.contains(&note)))
    }

    fn by_code(&self, wanted: impl Fn(Option<NoteAction>) -> bool) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for ((_, code), count) in self.0.iter().filter(|((note, _), _)| wanted(*note)) {
            *counts.entry(code.clone()).or_default() += count;
        }
        counts
    }

    /// Refused, for series: each code of this version, also without a refusal, because of a series that
    /// begins with 1 Prometheus does not see the first; those of other versions in one.
    pub(crate) fn refusal_series(&self) -> BTreeMap<&'static str, u64> {
        let codes = Code::ALL.iter().map(|code| code.as_str()).chain([OTHER]);
        let mut series: BTreeMap<_, _> = codes.map(|code| (code, 0)).collect();
        for ((note, code), count) in &self.0 {
            if note.is_none() {
                *series.entry(label(code)).or_default() += count;
            }
        }
        series
    }

    /// Started with a note, for series: by the word for what was done, and code.
    pub(crate) fn note_series(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        let mut series = BTreeMap::new();
        for ((note, code), count) in &self.0 {
            if let Some(note) = note {
                *series.entry((note.as_str(), label(code))).or_default() += count;
            }
        }
        series
    }
}

fn label(code: &str) -> &'static str {
    Code::parse(code).map_or(OTHER, Code::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_another_version_makes_no_series_of_its_own() {
        let mut judged = Judged::default();
        for code in ["E_FUTURE", "", "E_NO_CAPACITY\"} 1\n"] {
            judged.count("refused", code);
        }
        judged.count("what is this", "E_NO_CAPACITY");
        let series = judged.refusal_series();
        assert_eq!(series.len(), Code::ALL.len() + 1);
        assert_eq!((series[OTHER], series["E_NO_CAPACITY"], series["E_SPEC"]), (3, 1, 0));
        assert!(judged.note_series().is_empty());
    }

    #[test]
    fn status_names_a_code_of_another_version_but_nothing_that_is_none() {
        let mut judged = Judged::default();
        let long = "E".repeat(CODE_MAX + 1);
        for code in ["E_FUTURE", "e_small", "E_1", &long] {
            judged.count("refused", code);
        }
        assert_eq!(judged.refusals(), [("E_FUTURE".to_owned(), 1), (OTHER.to_owned(), 3)].into());
    }

    #[test]
    fn what_was_only_noted_is_in_the_metrics_alone() {
        let mut judged = Judged::default();
        for action in ["stripped", "stripped", "warned", "noted"] {
            judged.count(action, "E_VISIBLE_DEVICES");
        }
        judged.count("stripped", "E_FUTURE");
        let series = [
            (("noted", "E_VISIBLE_DEVICES"), 1),
            (("stripped", OTHER), 1),
            (("stripped", "E_VISIBLE_DEVICES"), 2),
            (("warned", "E_VISIBLE_DEVICES"), 1),
        ];
        assert_eq!(judged.note_series(), series.into());
        let notes = [("E_FUTURE".to_owned(), 1), ("E_VISIBLE_DEVICES".to_owned(), 3)];
        assert_eq!(judged.notes(), notes.into());
        assert!(judged.refusals().is_empty());
    }
}
