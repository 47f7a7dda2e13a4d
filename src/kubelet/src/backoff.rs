//! What fails is tried again, later each time, and told once.

use std::time::Duration;

/// Waits longer each time, and knows what was told last.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
    told: Option<String>,
}

impl Backoff {
    /// From `first` on, doubled with each further time, to `most`.
    #[must_use]
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: first, told: None }
    }

    /// How long to wait this time.
    pub fn pause(&mut self) -> Duration {
        let now = self.next;
        self.next = now.saturating_mul(2).min(self.most);
        now
    }

    /// The next wait is the first again; what was told stays so.
    pub fn restart(&mut self) {
        self.next = self.first;
    }

    /// All is well: what fails next is new.
    pub fn reset(&mut self) {
        self.restart();
        self.told = None;
    }

    /// Whether `text` is another than the last, and so to be told.
    pub fn is_news(&mut self, text: String) -> bool {
        let is_news = self.told.as_ref() != Some(&text);
        self.told = Some(text);
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_waits_longer_each_time_and_tells_the_same_once() {
        let [first, most] = [20, 50].map(Duration::from_millis);
        let mut backoff = Backoff::new(first, most);
        let pauses: Vec<Duration> = (0..3).map(|_| backoff.pause()).collect();
        assert_eq!(pauses, [20, 40, 50].map(Duration::from_millis));
        let news = ["a", "a", "b", "a"].map(|text| backoff.is_news(text.to_owned()));
        assert_eq!(news, [true, false, true, true]);
        backoff.restart();
        assert!(backoff.pause() == first && !backoff.is_news("a".to_owned()));
        backoff.reset();
        assert!(backoff.pause() == first && backoff.is_news("a".to_owned()));
    }
}
