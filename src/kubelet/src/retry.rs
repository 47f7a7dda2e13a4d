//! How a service comes back to kubelet, over every restart of either: a repeated failure is
//! reported once, and the step is tried again, later each time or after a change.

use std::time::Duration;

use mpsgate_model::Backoff;
use tokio::time::Instant;

use crate::kubelet_directory::Changes;

/// How long to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Before the second try; doubled with each further try.
    pub first: Duration,
    /// The longest wait.
    pub most: Duration,
    /// Between two looks at kubelet's directories, where inotify saw nothing.
    pub poll: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(200),
            most: Duration::from_secs(60),
            poll: Duration::from_secs(10),
        }
    }
}

/// The waits of a service, and the failure that it reported last.
#[derive(Debug)]
pub struct Retries {
    changes: Changes,
    retry: Retry,
    backoff: Backoff,
    reported: Option<String>,
}

impl Retries {
    /// `changes` decides what counts as a change.
    #[must_use]
    pub fn new(changes: Changes, retry: Retry) -> Self {
        Self { changes, retry, backoff: Backoff::new(retry.first, retry.most), reported: None }
    }

    /// See [`Changes::follow`].
    pub fn follow(&self) {
        self.changes.follow();
    }

    /// Waits for a change, or `limit`.
    pub async fn wait(&mut self, limit: Duration) {
        self.changes.wait(limit).await;
    }

    /// Waits for a change, or until it is time to look.
    pub async fn look(&mut self) {
        self.wait(self.retry.poll).await;
    }

    /// Waits for a change after a failure, longer each time.
    pub async fn back_off(&mut self) {
        let pause = self.backoff.pause();
        self.wait(pause).await;
    }

    /// The wait after a success that began at `since`. If that lasted as long as this wait,
    /// everything starts over as after [`Self::reset`]; so a success that always ends at once is
    /// not retried at full speed for ever.
    pub fn pause_after(&mut self, since: Instant) -> Duration {
        let well_for = since.elapsed();
        if well_for >= self.retry.most {
            self.reported = None;
        }
        self.backoff.pause_after(well_for)
    }

    /// The next wait is the first again; the last reported failure stays known.
    pub fn restart(&mut self) {
        self.backoff.restart();
    }

    /// Everything is well: the next failure is news, even if it is the same as the last.
    pub fn reset(&mut self) {
        self.restart();
        self.reported = None;
    }

    /// Whether `text` differs from the last report, so that it has to be reported.
    pub fn is_news(&mut self, text: String) -> bool {
        let is_news = self.reported.as_ref() != Some(&text);
        self.reported = Some(text);
        is_news
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn the_same_failure_is_reported_once_until_all_was_well() {
        let changes = Changes::new([PathBuf::from("/nowhere")], ["kubelet.sock".to_owned()]);
        let retry = Retry { most: Duration::from_secs(3600), ..Retry::default() };
        let mut retries = Retries::new(changes, retry);
        let news = ["a", "a", "b", "a"].map(|text| retries.is_news(text.to_owned()));
        assert_eq!(news, [true, false, true, true]);
        let now = Instant::now();
        assert_eq!(
            [retries.pause_after(now), retries.pause_after(now)],
            [retry.first, retry.first * 2]
        );
        retries.restart();
        assert_eq!(retries.pause_after(now), retry.first);
        assert!(!retries.is_news("a".to_owned()));
        retries.reset();
        assert!(retries.is_news("a".to_owned()));
    }
}
