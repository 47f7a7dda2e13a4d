//! Containers that were refused, or started with a note: one count since the start, for `status`
//! and for the metrics.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::BuildHasher as _;
use std::time::{Duration, Instant};

use mpsgate_model::{Code, Lines, OneOf, Rate};
use mpsgate_policy::NoteAction;

/// For what is no code of this version.
const OTHER: &str = "OTHER";
/// Longest code that is kept. Codes come from root's own programs, maybe of another version.
const CODE_MAX: usize = 40;
/// What `status` shows of containers that were started although something was found.
const NOTES_OF_STATUS: [NoteAction; 2] = [NoteAction::Stripped, NoteAction::Warned];

/// Notes that are remembered, each a container's, a code's and a text's, so that it counts once.
/// The oldest is forgotten.
const REMEMBERED: usize = 4096;
/// Lines of the log. What is beyond is counted.
const RATE: Rate = Rate { burst: 200, every: Duration::from_millis(100) };

/// What was reported, and of that what is told. One container cannot fill the log or the counters,
/// whatever is in its specification, and many cannot fill the log.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    by: RandomState,
    noted: HashSet<u64>,
    order: VecDeque<u64>,
    notes: Lines,
    refusals: Lines,
}

/// What is done with a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Telling {
    /// It is counted and logged; so many before it were counted alone.
    Told {
        /// How many that is.
        untold: u64,
    },
    /// It is counted.
    Counted,
    /// It was known.
    Known,
}

impl Heard {
    /// A container was refused, or started with a note.
    pub(crate) fn take(
        &mut self,
        container: &str,
        action: &OneOf<NoteAction>,
        code: &str,
        text: &str,
        now: Instant,
    ) -> Telling {
        let is_note = done(action) != NoteAction::Refused;
        if is_note && !self.is_new(self.by.hash_one((container, action.as_str(), code, text))) {
            return Telling::Known;
        }
        let lines = if is_note { &mut self.notes } else { &mut self.refusals };
        lines.take(RATE, now).map_or(Telling::Counted, |untold| Telling::Told { untold })
    }

    fn is_new(&mut self, note: u64) -> bool {
        if !self.noted.insert(note) {
            return false;
        }
        self.order.push_back(note);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.noted.remove(&oldest);
        }
        true
    }
}

/// A word that is not known is a refusal's.
fn done(action: &OneOf<NoteAction>) -> NoteAction {
    match action {
        OneOf::Known(action) => *action,
        OneOf::Other(_) => NoteAction::Refused,
    }
}

/// By what was done, and code.
#[derive(Debug, Clone, Default)]
pub struct CodeCounts(BTreeMap<(NoteAction, String), u64>);

impl CodeCounts {
    /// One more. What has not the form of a code is not kept.
    pub fn count(&mut self, action: &OneOf<NoteAction>, code: &str) {
        let is_code =
            code.len() <= CODE_MAX && code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        let code = if is_code { code } else { OTHER };
        *self.0.entry((done(action), code.to_owned())).or_default() += 1;
    }

    /// Refused, by code as it came.
    pub fn refusals(&self) -> BTreeMap<String, u64> {
        self.by_code(|action| action == NoteAction::Refused)
    }

    /// Stripped or warned of, and started, by code as it came.
    pub fn notes(&self) -> BTreeMap<String, u64> {
        self.by_code(|action| NOTES_OF_STATUS.contains(&action))
    }

    fn by_code(&self, wanted: impl Fn(NoteAction) -> bool) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for ((_, code), count) in self.0.iter().filter(|((action, _), _)| wanted(*action)) {
            *counts.entry(code.clone()).or_default() += count;
        }
        counts
    }

    /// Refused, for series: each code of this version, also without a refusal, because of a series
    /// that begins with 1 Prometheus does not see the first; those of other versions in one.
    pub fn refusal_series(&self) -> BTreeMap<&'static str, u64> {
        let codes = Code::ALL.iter().map(|code| code.as_str()).chain([OTHER]);
        let mut series: BTreeMap<_, _> = codes.map(|code| (code, 0)).collect();
        for ((action, code), count) in &self.0 {
            if *action == NoteAction::Refused {
                *series.entry(label(code)).or_default() += count;
            }
        }
        series
    }

    /// Started with a note, for series: by the word for what was done, and code.
    pub fn note_series(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        let mut series = BTreeMap::new();
        for ((action, code), count) in &self.0 {
            if *action != NoteAction::Refused {
                *series.entry((action.as_str(), label(code))).or_default() += count;
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
    #![expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
    use super::*;

    const REFUSED: OneOf<NoteAction> = OneOf::Known(NoteAction::Refused);
    const STRIPPED: OneOf<NoteAction> = OneOf::Known(NoteAction::Stripped);
    const WARNED: OneOf<NoteAction> = OneOf::Known(NoteAction::Warned);
    const NOTED: OneOf<NoteAction> = OneOf::Known(NoteAction::Noted);
    const TOLD: Telling = Telling::Told { untold: 0 };

    #[test]
    fn a_note_counts_once_for_each_container_and_code() {
        let (mut heard, now) = (Heard::default(), Instant::now());
        assert_eq!(heard.take("a", &STRIPPED, "E_DEVICE_RULE", "why", now), TOLD);
        for _ in 0..100_000 {
            assert_eq!(heard.take("a", &STRIPPED, "E_DEVICE_RULE", "why", now), Telling::Known);
        }
        for (container, action, code) in [
            ("b", &STRIPPED, "E_DEVICE_RULE"),
            ("a", &STRIPPED, "E_ANNOTATION"),
            ("a", &WARNED, "E_DEVICE_RULE"),
        ] {
            assert_eq!(
                heard.take(container, action, code, "why", now),
                TOLD,
                "{container} {action} {code}"
            );
        }
        // A container that is refused each time it is started is refused each time.
        assert_eq!(heard.take("a", &REFUSED, "E_SPEC", "why", now), TOLD);
        assert_eq!(heard.take("a", &REFUSED, "E_SPEC", "why", now), TOLD);
    }

    #[test]
    fn a_flood_of_containers_is_counted_and_not_logged_and_hides_no_refusal() {
        let (mut heard, start) = (Heard::default(), Instant::now());
        let told = |heard: &mut Heard, range: std::ops::Range<u32>, now| {
            let one = |n| heard.take(&n_th(n), &NOTED, "E_ANNOTATION", "why", now);
            let all: Vec<_> = range.map(one).collect();
            all.iter().filter(|telling| matches!(telling, Telling::Told { .. })).count()
        };
        assert_eq!(told(&mut heard, 0..100_000, start), RATE.burst as usize);
        assert_eq!(heard.take("r", &REFUSED, "E_SPEC", "why", start), TOLD);
        let later = start + 2 * RATE.every;
        let untold = u64::from(100_000 - RATE.burst);
        assert_eq!(heard.take("n", &NOTED, "E_ANNOTATION", "why", later), Telling::Told { untold });
        assert_eq!(told(&mut heard, 100_000..200_000, later), 1);
        assert!(heard.noted.len() <= REMEMBERED && heard.order.len() <= REMEMBERED);
    }

    fn n_th(n: u32) -> String {
        format!("c{n}")
    }

    #[test]
    fn a_code_of_another_version_makes_no_series_of_its_own() {
        let mut counts = CodeCounts::default();
        for code in ["E_FUTURE", "", "E_NO_CAPACITY\"} 1\n"] {
            counts.count(&REFUSED, code);
        }
        counts.count(&OneOf::Other("what is this".to_owned()), "E_NO_CAPACITY");
        let series = counts.refusal_series();
        assert_eq!(series.len(), Code::ALL.len() + 1);
        assert_eq!((series[OTHER], series["E_NO_CAPACITY"], series["E_SPEC"]), (3, 1, 0));
        assert!(counts.note_series().is_empty());
    }

    #[test]
    fn status_names_a_code_of_another_version_but_nothing_that_is_none() {
        let mut counts = CodeCounts::default();
        let long = "E".repeat(CODE_MAX + 1);
        for code in ["E_FUTURE", "e_small", "E_1", &long] {
            counts.count(&REFUSED, code);
        }
        assert_eq!(counts.refusals(), [("E_FUTURE".to_owned(), 1), (OTHER.to_owned(), 3)].into());
    }

    #[test]
    fn what_was_only_noted_is_in_the_metrics_alone() {
        let mut counts = CodeCounts::default();
        for action in [&STRIPPED, &STRIPPED, &WARNED, &NOTED] {
            counts.count(action, "E_VISIBLE_DEVICES");
        }
        counts.count(&STRIPPED, "E_FUTURE");
        let series = [
            (("noted", "E_VISIBLE_DEVICES"), 1),
            (("stripped", OTHER), 1),
            (("stripped", "E_VISIBLE_DEVICES"), 2),
            (("warned", "E_VISIBLE_DEVICES"), 1),
        ];
        assert_eq!(counts.note_series(), series.into());
        let notes = [("E_FUTURE".to_owned(), 1), ("E_VISIBLE_DEVICES".to_owned(), 3)];
        assert_eq!(counts.notes(), notes.into());
        assert!(counts.refusals().is_empty());
    }
}
