//! How a service comes back to kubelet, over every restart of either: what fails is told once, and
//! tried again later each time or when something has changed.

use std::time::Duration;

use mpsgate_model::Backoff;
use tokio::time::Instant;

use crate::directory::Changes;

/// How long to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Before what failed is tried for the second time; doubled with each further time.
    pub first: Duration,
    /// At most.
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

/// Waits for a service, and knows what was told last.
#[derive(Debug)]
pub struct Retries {
    changes: Changes,
    retry: Retry,
    backoff: Backoff,
    told: Option<String>,
}

impl Retries {
    /// What counts as a change is `changes`'.
    #[must_use]
    pub fn new(changes: Changes, retry: Retry) -> Self {
        Self { changes, retry, backoff: Backoff::new(retry.first, retry.most), told: None }
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

    /// How long to wait after what went well since then. Was that long, all is as after
    /// [`Self::reset`]: what always ends at once is not tried at full speed for ever.
    pub fn pause_after(&mut self, since: Instant) -> Duration {
        let well_for = since.elapsed();
        if well_for >= self.retry.most {
            self.told = None;
        }
        self.backoff.pause_after(well_for)
    }

    /// The next wait is the first again; what was told stays so.
    pub fn restart(&mut self) {
        self.backoff.restart();
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
    use std::path::PathBuf;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn the_same_is_told_once_until_all_was_well() {
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
