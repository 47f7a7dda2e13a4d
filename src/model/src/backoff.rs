//! A back-off: what fails is tried again, later each time.

use std::time::Duration;

/// A back-off: each pause is twice as long as the one before, up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// A back-off whose pauses grow from `first` to `most`.
    #[must_use]
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: first }
    }

    /// Returns this pause; the next one is twice as long.
    pub fn pause(&mut self) -> Duration {
        let now = self.next;
        self.next = now.saturating_mul(2).min(self.most);
        now
    }

    /// As [`Self::pause`], but starts over where all was well for at least the longest pause before
    /// the failure. Something that fails every half minute is tried less and less often.
    pub fn pause_after(&mut self, well_for: Duration) -> Duration {
        if well_for >= self.most {
            self.restart();
        }
        self.pause()
    }

    /// Starts over: the next pause is the first again.
    pub fn restart(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_longer_until_all_was_well_for_a_minute() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let mut waits = |well: &[u64]| -> Vec<u64> {
            well.iter().map(|s| backoff.pause_after(Duration::from_secs(*s)).as_secs()).collect()
        };
        assert_eq!(waits(&[0, 0, 0, 0, 0, 0, 0, 0]), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(waits(&[59]), [60], "what flaps is tried less often");
        assert_eq!(waits(&[60, 0]), [1, 2]);
    }
}
