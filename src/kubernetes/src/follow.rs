//! A list and watch that never ends: reported to whoever keeps the result, begun anew after every
//! failure.
//!
//! ```text
//!  connect ─► list ─► watch ─┬─► the server ends it after 20 s, or it is cut: watched on from the last version
//!     ▲                      ├─► nothing was heard for 25 s
//!     │                      ├─► refused, 401, 410, garbage …
//!     └────── back off ◄─────┘
//! ```
//! What cannot be read as a whole is named, once, in the log.
//!
//! Anew means: new credentials, new list. Else nobody would know, on a quiet node, that the API
//! server is back.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use kube::Client;
use kube::runtime::watcher::{DefaultBackoff, Event};

use crate::listen::{Listener, Lists};
use crate::objects::Objects;
use crate::read::{Found, LeftOut, Object, key_of, look};
use crate::{Error, Settings};

/// Lines of the log about objects of one kind that cannot be read, in an [`HOUR`].
const LINES: usize = 16;
const HOUR: Duration = Duration::from_secs(3600);
/// Objects of one kind that are named in what is shown: all are told again with each change of one.
const NAMED: usize = 256;

/// Whether what is shown is what the API server has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing was ever heard; where something went wrong, what.
    #[default]
    Waiting,
    /// Nothing was ever heard, because of this.
    Failing {
        /// The error and its causes.
        error: String,
        /// What to do about it.
        hint: String,
    },
    /// Listed, and watched since.
    Current,
    /// Listed once, but not watched any more.
    Stale {
        /// Since when.
        since: Instant,
        /// The error and its causes.
        error: String,
        /// What to do about it.
        hint: String,
    },
}

impl State {
    /// Whether what is shown is what the API server has.
    #[must_use]
    pub fn is_current(&self) -> bool {
        matches!(self, Self::Current)
    }

    /// Whether there ever was a whole list.
    #[must_use]
    pub fn was_synced(&self) -> bool {
        matches!(self, Self::Current | Self::Stale { .. })
    }

    /// After `error`. The beginning of staleness stays.
    pub(crate) fn fail(&mut self, error: &Error) {
        let (error, hint) = (error.line(), error.hint());
        *self = match self {
            Self::Waiting | Self::Failing { .. } => Self::Failing { error, hint },
            Self::Current => Self::Stale { since: Instant::now(), error, hint },
            Self::Stale { since, .. } => Self::Stale { since: *since, error, hint },
        }
    }
}

/// What a follower is told.
pub(crate) enum Told<K> {
    /// Of the watch, or of a list.
    Kube(Event<Found<K>>),
    /// The objects that are there and cannot be read, at most 256 of them, whenever that has
    /// changed.
    LeftOut(Vec<LeftOut>),
    /// Another attempt follows.
    Lost(Error),
}

/// Lists and watches what `api` and `fields` name, for ever. `what` names it in errors.
pub(crate) async fn follow<K>(
    settings: &Settings,
    lists: Lists,
    what: &str,
    fields: &str,
    objects: impl Fn(Client) -> Objects<K>,
    mut tell: impl FnMut(Told<K>),
) -> Infallible
where
    K: Object + Send + 'static,
{
    let told = |told| {
        tell(told);
        None
    };
    follow_at(settings, lists, what, fields, objects, told).await
}

/// As [`follow`]; where `tell` names a time, that is waited until the next attempt.
pub(crate) async fn follow_at<K>(
    settings: &Settings,
    lists: Lists,
    what: &str,
    fields: &str,
    objects: impl Fn(Client) -> Objects<K>,
    mut tell: impl FnMut(Told<K>) -> Option<Duration>,
) -> Infallible
where
    K: Object + Send + 'static,
{
    let mut pause = Pause::default();
    let mut left = Left::default();
    loop {
        let error = match settings.connect().await {
            Err(error) => error,
            Ok(client) => {
                let patience = settings.patience;
                let listener = Listener { objects: objects(client), lists, what, fields, patience };
                let told = |event: Event<Found<K>>| {
                    // A server that lists but cannot be watched is still one to be patient with.
                    if matches!(event, Event::Apply(_) | Event::Delete(_)) {
                        pause.worked();
                    }
                    let news = left.hear(&event);
                    let _none = tell(Told::Kube(event));
                    if let Some(all) = news {
                        let _none = tell(Told::LeftOut(all));
                    }
                };
                listener.listen(told).await
            }
        };
        log::debug!(what, error = error.line().as_str(); "lost the API server");
        match tell(Told::Lost(error)) {
            Some(time) => tokio::time::sleep(time).await,
            None => pause.wait().await,
        }
    }
}

/// What cannot be read, by name.
#[derive(Default)]
struct Left {
    shown: BTreeMap<String, LeftOut>,
    coming: BTreeMap<String, LeftOut>,
    /// Lines of the log, since when.
    lines: usize,
    since: Option<Instant>,
}

impl Left {
    /// All of it, where `event` has changed what it is.
    fn hear<K: Object>(&mut self, event: &Event<Found<K>>) -> Option<Vec<LeftOut>> {
        let changed = match event {
            Event::Init => {
                self.coming.clear();
                false
            }
            Event::InitApply(Ok(_)) => false,
            Event::InitApply(Err(unread)) => {
                self.log(&unread.left);
                put(&mut self.coming, &unread.left);
                false
            }
            Event::InitDone => {
                let coming = std::mem::take(&mut self.coming);
                let before = std::mem::replace(&mut self.shown, coming);
                before != self.shown
            }
            Event::Apply(Err(unread)) => {
                self.log(&unread.left);
                put(&mut self.shown, &unread.left)
            }
            // No key is made of each change where there is none to be found.
            Event::Apply(Ok(_)) | Event::Delete(_) if self.shown.is_empty() => false,
            Event::Apply(found @ Ok(_)) | Event::Delete(found) => {
                self.shown.remove(&key_of(found)).is_some()
            }
        };
        changed.then(|| self.shown.values().cloned().collect())
    }

    /// Whoever may write objects must not fill the log.
    fn log(&mut self, left: &LeftOut) {
        if self.shown.get(&left.name) == Some(left) {
            return;
        }
        let line = self.line(Instant::now());
        if line == LINES {
            log::warn!(kind = left.kind; "more objects of the API server cannot be read as a whole");
        }
        if line >= LINES {
            return;
        }
        let LeftOut { kind, name, why, counts } = left;
        let hint = format!("{} shows it; have it corrected or deleted", look(kind, name));
        log::warn!(kind, object = name.as_str(), why = why.as_str(), counts, hint = hint.as_str();
            "an object of the API server cannot be read as a whole");
    }

    /// The number of the next line, in its hour.
    fn line(&mut self, now: Instant) -> usize {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= HOUR) {
            (self.lines, self.since) = (0, Some(now));
        }
        let line = self.lines;
        self.lines = line.saturating_add(1);
        line
    }
}

/// Whether that has changed what is shown. It is in the log in any case.
fn put(all: &mut BTreeMap<String, LeftOut>, left: &LeftOut) -> bool {
    if all.len() >= NAMED && !all.contains_key(&left.name) {
        return false;
    }
    all.insert(left.name.clone(), left.clone()).as_ref() != Some(left)
}

/// Between attempts: from 0.8 s doubling to 30 s, each with jitter; from the start after two quiet
/// minutes.
#[derive(Default)]
pub(crate) struct Pause(DefaultBackoff);

impl Pause {
    pub(crate) fn worked(&mut self) {
        kube::runtime::utils::Backoff::reset(&mut self.0);
    }

    pub(crate) fn next(&mut self) -> Duration {
        self.0.next().unwrap_or(Duration::from_secs(30))
    }

    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::read;
    use crate::wire::WirePod;

    fn pod(name: &str, label: &str) -> Found<WirePod> {
        let metadata = format!(r#"{{"name":"{name}","namespace":"n","labels":{{"a":{label}}}}}"#);
        read(&format!(r#"{{"metadata":{metadata}}}"#))
    }

    fn bad(name: &str) -> Found<WirePod> {
        pod(name, "1")
    }

    fn good(name: &str) -> Found<WirePod> {
        pod(name, r#""x""#)
    }

    fn names(all: Option<Vec<LeftOut>>) -> Option<Vec<String>> {
        Some(all?.into_iter().map(|left| left.name).collect())
    }

    fn some(names: &[&str]) -> Option<Vec<String>> {
        Some(names.iter().map(|name| format!("n/{name}")).collect())
    }

    #[test]
    fn what_cannot_be_read_is_told_when_it_changes_and_only_then() {
        let mut left = Left::default();
        for (event, told) in [
            (Event::Init, None),
            (Event::InitApply(good("a")), None),
            (Event::InitApply(bad("b")), None),
            (Event::InitDone, some(&["b"])),
            (Event::Apply(bad("b")), None),
            (Event::Apply(good("a")), None),
            (Event::Delete(good("a")), None),
            (Event::Apply(bad("c")), some(&["b", "c"])),
            (Event::Apply(pod("c", "[]")), some(&["b", "c"])),
            // Lost, and listed anew.
            (Event::Init, None),
            (Event::InitApply(bad("b")), None),
            (Event::Init, None),
            (Event::InitApply(bad("b")), None),
            (Event::InitApply(pod("c", "[]")), None),
            (Event::InitDone, None),
            (Event::Apply(good("b")), some(&["c"])),
            (Event::Delete(bad("c")), some(&[])),
            (Event::Delete(bad("c")), None),
        ] {
            assert_eq!(names(left.hear(&event)), told, "{:?}", left.shown);
        }
    }

    #[test]
    fn of_10001_that_cannot_be_read_some_are_named_and_the_log_is_not_filled() {
        let mut left = Left::default();
        let mut told = 0;
        for number in 0..10_001 {
            told += usize::from(left.hear(&Event::Apply(bad(&number.to_string()))).is_some());
        }
        assert_eq!((told, left.shown.len()), (NAMED, NAMED));
        left.hear(&Event::<Found<WirePod>>::Init);
        for number in 0..10_001 {
            left.hear(&Event::InitApply(bad(&number.to_string())));
        }
        assert_eq!(left.coming.len(), NAMED);
        assert!(left.lines > LINES, "{}", left.lines);
        // One that comes and goes has no more lines, and the next hour has its own.
        let since = left.since.expect("begun");
        assert!(left.line(since + HOUR - Duration::from_secs(1)) > LINES);
        assert_eq!([left.line(since + HOUR), left.line(since + HOUR)], [0, 1]);
    }
}
