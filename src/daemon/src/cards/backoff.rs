//! How long a card task waits before it tries again.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LAST: Duration = Duration::from_secs(60);
/// For how long all must have been well before a failure counts as the first one again: a control
/// daemon that dies every half minute is to be started less and less often.
const WELL: Duration = Duration::from_secs(60);

/// 1, 2, 4 … 60 s.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: FIRST }
    }

    /// The wait after a failure, before which all was well for so long.
    pub(super) fn after(&mut self, well_for: Duration) -> Duration {
        if well_for >= WELL {
            self.next = FIRST;
        }
        let wait = self.next;
        self.next = (wait * 2).min(LAST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_longer_until_all_was_well_for_a_minute() {
        let mut backoff = Backoff::new();
        let mut waits = |well: &[u64]| -> Vec<u64> {
            well.iter().map(|s| backoff.after(Duration::from_secs(*s)).as_secs()).collect()
        };
        assert_eq!(waits(&[0, 0, 0, 0, 0, 0, 0, 0]), [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(waits(&[59]), [60], "a daemon that flaps does back off");
        assert_eq!(waits(&[60, 0]), [1, 2]);
    }
}
