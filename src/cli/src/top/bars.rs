//! Amounts as bars and histories, in the characters that the terminal has.

/// Characters to draw with, from empty to full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ramp {
    /// Of a bar.
    empty: char,
    full: char,
    /// Of a history, from the least to the most.
    steps: &'static [char],
}

/// Block elements, which every font of a terminal has.
pub(crate) const UNICODE: Ramp =
    Ramp {
        empty: '░', full: '█', steps: &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
    };

/// Where the locale is not UTF-8.
pub(crate) const ASCII: Ramp =
    Ramp { empty: '.', full: '#', steps: &['_', '.', ':', '-', '=', '+', '*', '#'] };

impl Ramp {
    /// What fits the locale, as setlocale(3) finds it: the first of LC_ALL, LC_CTYPE and LANG that
    /// is set.
    pub(crate) fn of_locale(variable: impl Fn(&str) -> Option<String>) -> Self {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| variable(name).filter(|value| !value.is_empty()));
        let locale = locale.unwrap_or_default().to_ascii_lowercase();
        if locale.contains("utf-8") || locale.contains("utf8") { UNICODE } else { ASCII }
    }

    /// A bar of `width` characters; full where `value` is `most` or above, and never empty where it
    /// is above 0.
    pub(crate) fn bar(self, value: u64, most: u64, width: usize) -> String {
        let filled = share(value, most, width);
        let filled = if value > 0 { filled.max(1) } else { filled }.min(width);
        let part = |character: char, count| std::iter::repeat_n(character, count);
        part(self.full, filled).chain(part(self.empty, width - filled)).collect()
    }

    /// The last `width` samples, the newest at the right; a blank where nothing was seen.
    pub(crate) fn history(
        self,
        samples: impl DoubleEndedIterator<Item = Option<u64>>,
        most: u64,
        width: usize,
    ) -> String {
        let mut text: Vec<char> = samples
            .rev()
            .take(width)
            .map(|sample| {
                let Some(sample) = sample else { return ' ' };
                let last = self.steps.len() - 1;
                self.steps.get(share(sample, most, last).min(last)).copied().unwrap_or(' ')
            })
            .collect();
        text.resize(width, ' ');
        text.iter().rev().collect()
    }
}

/// `value` of `most`, in `parts`, rounded.
fn share(value: u64, most: u64, parts: usize) -> usize {
    let parts = parts as u128;
    let most = u128::from(most.max(1));
    usize::try_from((u128::from(value) * parts + most / 2) / most).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_the_share_and_never_hides_a_little() {
        for (value, most, bar) in [
            (0, 100, "...."),
            (1, 100, "#..."),
            (50, 100, "##.."),
            (99, 100, "####"),
            (100, 100, "####"),
            (900, 100, "####"),
            (0, 0, "...."),
            (u64::MAX, u64::MAX, "####"),
        ] {
            assert_eq!(ASCII.bar(value, most, 4), bar, "{value} of {most}");
        }
    }

    #[test]
    fn a_history_ends_at_the_right_with_the_newest() {
        let samples = [Some(0), None, Some(100), Some(50)];
        assert_eq!(UNICODE.history(samples.into_iter(), 100, 6), "  ▁ █▅");
        assert_eq!(UNICODE.history(samples.into_iter(), 100, 2), "█▅");
        assert_eq!(ASCII.history([Some(500)].into_iter(), 100, 1), "#");
    }

    #[test]
    fn the_first_variable_that_is_set_names_the_locale() {
        let of = |set: &'static [(&str, &str)]| {
            Ramp::of_locale(|name| {
                set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[("LANG", "de_DE.UTF-8")]), UNICODE);
        assert_eq!(of(&[("LC_ALL", ""), ("LANG", "C.utf8")]), UNICODE);
        assert_eq!(of(&[("LC_ALL", "C"), ("LANG", "C.UTF-8")]), ASCII);
        assert_eq!(of(&[]), ASCII);
    }
}
