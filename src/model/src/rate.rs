//! Rate limits of connections, writes and log lines: a burst, and one more in each interval.

use std::time::{Duration, Instant};

/// A rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many may come at once.
    pub burst: u32,
    /// The interval in which one more may come.
    pub every: Duration,
}

/// The state of a [`Rate`]; a new one is unspent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bucket {
    /// The time until which everything is paid for, one each `every`.
    paid: Option<Instant>,
}

impl Bucket {
    /// When the next one may come: `now`, or later.
    #[must_use]
    pub fn free_at(&self, rate: Rate, now: Instant) -> Instant {
        let ahead = rate.every.saturating_mul(rate.burst.saturating_sub(1));
        let free = self.paid.and_then(|paid| paid.checked_sub(ahead));
        free.map_or(now, |free| free.max(now))
    }

    /// Counts one, whether or not it may come.
    pub fn spend(&mut self, rate: Rate, now: Instant) {
        let from = self.paid.map_or(now, |paid| paid.max(now));
        self.paid = Some(from + rate.every);
    }

    /// Counts one if it may come; returns whether it may.
    pub fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let is_free = self.free_at(rate, now) <= now;
        if is_free {
            self.spend(rate, now);
        }
        is_free
    }

    /// Uncounts the last one.
    pub fn give_back(&mut self, rate: Rate) {
        self.paid = self.paid.and_then(|paid| paid.checked_sub(rate.every));
    }
}

/// A rate limit for log lines, which counts the lines beyond it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lines {
    bucket: Bucket,
    dropped: u64,
}

impl Lines {
    /// Returns whether a line may come: if so, the number of lines that were left out before it.
    pub fn take(&mut self, rate: Rate, now: Instant) -> Option<u64> {
        if self.bucket.take(rate, now) {
            return Some(std::mem::take(&mut self.dropped));
        }
        self.dropped += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an Instant has no other beginning")]
    use super::*;

    const RATE: Rate = Rate { burst: 3, every: Duration::from_secs(60) };

    #[test]
    fn after_a_burst_there_is_one_in_each_time_and_what_is_given_back_is_there_again() {
        let (mut bucket, start) = (Bucket::default(), Instant::now());
        let takes = |bucket: &mut Bucket, now| (0..10).filter(|_| bucket.take(RATE, now)).count();
        assert_eq!(takes(&mut bucket, start), 3);
        let next = start + RATE.every;
        assert_eq!(bucket.free_at(RATE, start), next);
        assert_eq!(takes(&mut bucket, next - Duration::from_secs(1)), 0);
        assert_eq!(takes(&mut bucket, next), 1);
        bucket.give_back(RATE);
        assert_eq!(takes(&mut bucket, next), 1);
        // However long it was quiet.
        assert_eq!(takes(&mut bucket, next + 100 * RATE.every), 3);
    }

    #[test]
    fn lines_that_are_too_many_are_counted_for_the_next_one() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let taken: Vec<_> = (0..5).map(|_| lines.take(RATE, start)).collect();
        assert_eq!(taken, [Some(0), Some(0), Some(0), None, None]);
        let later = start + 2 * RATE.every;
        assert_eq!([lines.take(RATE, later), lines.take(RATE, later)], [Some(2), Some(0)]);
    }
}
