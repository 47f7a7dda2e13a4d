//! What fails is tried again, later each time.

use std::time::Duration;

/// How long to wait: twice as long each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// From `first` to `most`.
    #[must_use]
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: first }
    }

    /// How long to wait this time.
    pub fn pause(&mut self) -> Duration {
        let now = self.next;
        self.next = now.saturating_mul(2).min(self.most);
        now
    }

    /// The same, where all was well for so long before. A failure counts as the first one only
    /// where that was as long as the longest wait: what fails every half minute is to be tried less
    /// and less often.
    pub fn pause_after(&mut self, well_for: Duration) -> Duration {
        if well_for >= self.most {
            self.restart();
        }
        self.pause()
    }

    /// The next wait is the first again.
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
