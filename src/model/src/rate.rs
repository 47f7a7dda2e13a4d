//! So many at once, and one more in each time: of connections, of writes, of lines of a log.

use std::time::{Duration, Instant};

/// How many there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// So many at once.
    pub burst: u32,
    /// And one more in each of these.
    pub every: Duration,
}

/// What is spent of a [`Rate`]; nothing at the beginning.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bucket {
    /// Up to when all are paid for, one each `every`.
    paid: Option<Instant>,
}

impl Bucket {
    /// When there may be another one: `now`, or later.
    #[must_use]
    pub fn free_at(&self, rate: Rate, now: Instant) -> Instant {
        let ahead = rate.every.saturating_mul(rate.burst.saturating_sub(1));
        let free = self.paid.and_then(|paid| paid.checked_sub(ahead));
        free.map_or(now, |free| free.max(now))
    }

    /// There is another one, whether or not there may be.
    pub fn spend(&mut self, rate: Rate, now: Instant) {
        let from = self.paid.map_or(now, |paid| paid.max(now));
        self.paid = Some(from + rate.every);
    }

    /// Whether there may be another one; then there is.
    pub fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let is_free = self.free_at(rate, now) <= now;
        if is_free {
            self.spend(rate, now);
        }
        is_free
    }

    /// The last one does not count.
    pub fn give_back(&mut self, rate: Rate) {
        self.paid = self.paid.and_then(|paid| paid.checked_sub(rate.every));
    }
}

/// Lines of a log. Those beyond the rate are counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lines {
    bucket: Bucket,
    untold: u64,
}

impl Lines {
    /// Whether there may be one, and how many there might not be before it.
    pub fn take(&mut self, rate: Rate, now: Instant) -> Option<u64> {
        if self.bucket.take(rate, now) {
            return Some(std::mem::take(&mut self.untold));
        }
        self.untold += 1;
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
        let told: Vec<_> = (0..5).map(|_| lines.take(RATE, start)).collect();
        assert_eq!(told, [Some(0), Some(0), Some(0), None, None]);
        let later = start + 2 * RATE.every;
        assert_eq!([lines.take(RATE, later), lines.take(RATE, later)], [Some(2), Some(0)]);
    }
}
