//! A list and watch that never ends: reported to whoever keeps the result, begun anew after every
//! failure.
//!
//! ```text
//!  connect ─► list ─► watch ─┬─► the server ends it after 20 s, or it is cut: watched on from the last version
//!     ▲                      ├─► nothing was heard for 25 s
//!     │                      ├─► refused, 401, 410, garbage …
//!     └────── back off ◄─────┘
//! ```
//! Anew means: new credentials, new list. Else nobody would know, on a quiet node, that the API
//! server is back.

use std::convert::Infallible;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use kube::runtime::watcher::{DefaultBackoff, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::listen::{Listener, Lists};
use crate::{Error, Settings};

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
    Kube(Event<K>),
    /// Another attempt follows.
    Lost(Error),
}

/// Lists and watches what `api` and `fields` name, for ever. `what` names it in errors.
pub(crate) async fn follow<K>(
    settings: &Settings,
    lists: Lists,
    what: &str,
    fields: &str,
    api: impl Fn(Client) -> Api<K>,
    mut tell: impl FnMut(Told<K>),
) -> Infallible
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let told = |told| {
        tell(told);
        None
    };
    follow_at(settings, lists, what, fields, api, told).await
}

/// As [`follow`]; where `tell` names a time, that is waited until the next attempt.
pub(crate) async fn follow_at<K>(
    settings: &Settings,
    lists: Lists,
    what: &str,
    fields: &str,
    api: impl Fn(Client) -> Api<K>,
    mut tell: impl FnMut(Told<K>) -> Option<Duration>,
) -> Infallible
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut pause = Pause::default();
    loop {
        let error = match settings.connect().await {
            Err(error) => error,
            Ok(client) => {
                let listener =
                    Listener { api: api(client), lists, what, fields, patience: settings.patience };
                let told = |event| {
                    // A server that lists but cannot be watched is still one to be patient with.
                    if matches!(event, Event::Apply(_) | Event::Delete(_)) {
                        pause.worked();
                    }
                    let _none = tell(Told::Kube(event));
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
