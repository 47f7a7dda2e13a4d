//! Which of several replicas acts: a Lease, held as client-go's leader election holds it, so that
//! tools show it.
//!
//! ```text
//!   follower ── no holder, released, or unchanged for its duration ─► leader ── renewed every 2 s ─┐
//!      ▲                                                                 ▲                         │
//!      └──── not renewed for 10 s, or taken, or stopped ◄────────────────┴─────────────────────────┘
//! ```
//! Times are this process's own: a record counts from when it was seen to change, not from what is
//! written in it. A leader stops 5 s before anybody may follow it, so a request of less than that
//! never crosses with the next leader's.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::PostParams;
use serde::de::Error as _;
use tokio::sync::watch;

use crate::objects::Objects;
use crate::read::Found;
use crate::requests::Requests;
use crate::wire::{KeptMeta, WireLease};
use crate::{Error, Settings};

/// Whose lease, and how it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Where the Lease is.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who this is: another one after each start.
    pub identity: String,
    /// Unchanged for so long, anybody may take it.
    pub duration: Duration,
    /// Not renewed for so long, its holder leads no more.
    pub renew_within: Duration,
    /// Between two attempts. Each may take as long.
    pub retry: Duration,
}

impl LeaseSettings {
    /// With client-go's times: 15 s, 10 s, 2 s.
    #[must_use]
    pub fn new(namespace: String, name: String, identity: String) -> Self {
        let [duration, renew_within, retry] = [15, 10, 2].map(Duration::from_secs);
        Self { namespace, name, identity, duration, renew_within, retry }
    }
}

/// Who leads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Lead {
    /// Nobody knows yet.
    #[default]
    Unknown,
    /// Another one, as far as is known.
    Other(String),
    /// This one, until then at least.
    Here(Instant),
}

impl Lead {
    /// Whether this one leads at `now`.
    #[must_use]
    pub fn is_here(&self, now: Instant) -> bool {
        matches!(self, Self::Here(until) if now < *until)
    }
}

/// Who leads, and the future that takes part. It ends when `stop` says so, with the lease given
/// back.
pub fn lead(
    settings: Settings,
    lease: LeaseSettings,
    mut stop: watch::Receiver<bool>,
) -> (watch::Receiver<Lead>, impl Future<Output = ()> + Send) {
    let (publish, receive) = watch::channel(Lead::Unknown);
    let future = async move {
        let requests = Requests::new(settings, lease.retry);
        let mut record = Record { lease, seen: None };
        let mut failing = false;
        while !*stop.borrow_and_update() {
            let began = Instant::now();
            let shown = publish.borrow().clone();
            let tried = tokio::select! {
                tried = record.attempt(&requests) => tried,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            let failed = tried.is_err();
            let next = match tried {
                Ok(None) => {
                    Lead::Here(began.checked_add(record.lease.renew_within).unwrap_or(began))
                }
                Ok(Some(holder)) => Lead::Other(holder),
                Err(error) => {
                    if !failing {
                        let (error, hint) = (error.line(), error.hint_for("mpsgate-scheduler"));
                        log::warn!(error = error.as_str(), hint = hint.as_str(); "the lease cannot be kept; it is tried again");
                    }
                    match shown {
                        Lead::Here(until) if Instant::now() >= until => Lead::Unknown,
                        as_before => as_before,
                    }
                }
            };
            failing = failed;
            publish.send_if_modified(|shown| std::mem::replace(shown, next.clone()) != next);
            tokio::select! {
                () = tokio::time::sleep(record.lease.retry) => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        let led = matches!(*publish.borrow(), Lead::Here(_));
        publish.send_replace(Lead::Unknown);
        if led && let Err(error) = record.release(&requests).await {
            log::warn!(error = error.line().as_str(); "the lease was not given back; it runs out by itself");
        }
    };
    (receive, future)
}

struct Record {
    lease: LeaseSettings,
    /// Its version, and when it was first seen.
    seen: Option<(Option<String>, Instant)>,
}

impl Record {
    /// `None` where it is ours now, else its holder.
    async fn attempt(&mut self, requests: &Requests) -> Result<Option<String>, Error> {
        let what = format!("keep lease {}/{}", self.lease.namespace, self.lease.name);
        requests.ask(what, move |client| self.take_or_renew(client)).await
    }

    async fn take_or_renew(&mut self, client: Client) -> Result<Option<String>, kube::Error> {
        let api = Objects::<WireLease>::namespaced(client, &self.lease.namespace);
        let params = PostParams::default();
        let Some(found) = api.get_opt(&self.lease.name).await? else {
            let record = WireLease {
                api_version: "coordination.k8s.io/v1".to_owned(),
                kind: "Lease".to_owned(),
                metadata: KeptMeta { name: Some(self.lease.name.clone()), ..KeptMeta::default() },
                spec: Some(self.held_from(&LeaseSpec::default())),
            };
            return taken(api.create(&params, &record).await);
        };
        let mut record = read(found)?;
        let version = record.metadata.resource_version.clone();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != version) {
            self.seen = Some((version, Instant::now()));
        }
        let spec = record.spec.take().unwrap_or_default();
        let age = self.seen.as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed());
        if let Some(holder) = self.kept_by_other(&spec, age) {
            return Ok(Some(holder));
        }
        record.spec = Some(self.held_from(&spec));
        taken(api.replace(&self.lease.name, &params, &record).await)
    }

    /// The other one that has it. `age` is how long the record is unchanged.
    fn kept_by_other(&self, spec: &LeaseSpec, age: Duration) -> Option<String> {
        let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
        let written = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = written.map_or(self.lease.duration, Duration::from_secs);
        (holder != self.lease.identity && age < duration).then(|| holder.to_owned())
    }

    fn held_from(&self, old: &LeaseSpec) -> LeaseSpec {
        let now = Some(MicroTime(Timestamp::now()));
        let ours = old.holder_identity.as_deref() == Some(&self.lease.identity);
        let since = old.acquire_time.clone().filter(|_| ours);
        let transitions = old.lease_transitions.unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.lease.identity.clone()),
            lease_duration_seconds: i32::try_from(self.lease.duration.as_secs()).ok(),
            acquire_time: since.or_else(|| now.clone()),
            renew_time: now,
            lease_transitions: Some(if ours { transitions } else { transitions.saturating_add(1) }),
            ..old.clone()
        }
    }

    /// As client-go does: nobody holds it, and whoever looks need not wait.
    async fn release(&self, requests: &Requests) -> Result<(), Error> {
        let what = format!("give back lease {}/{}", self.lease.namespace, self.lease.name);
        let give_back = |client| async move {
            let api = Objects::<WireLease>::namespaced(client, &self.lease.namespace);
            let Some(found) = api.get_opt(&self.lease.name).await? else { return Ok(()) };
            let mut record = read(found)?;
            let spec = record.spec.take().unwrap_or_default();
            if spec.holder_identity.as_deref() != Some(&self.lease.identity) {
                return Ok(());
            }
            record.spec = Some(LeaseSpec {
                holder_identity: Some(String::new()),
                lease_duration_seconds: Some(1),
                renew_time: Some(MicroTime(Timestamp::now())),
                ..spec
            });
            api.replace(&self.lease.name, &PostParams::default(), &record).await.map(drop)
        };
        requests.ask(what, give_back).await
    }
}

/// Nobody takes a lease that cannot be read.
fn read(found: Found<WireLease>) -> Result<WireLease, kube::Error> {
    found.map_err(|unread| kube::Error::SerdeError(serde_json::Error::custom(unread.left.why)))
}

/// Somebody else was faster: who, is seen at the next attempt.
fn taken(written: Result<Found<WireLease>, kube::Error>) -> Result<Option<String>, kube::Error> {
    match written {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Some(String::new())),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_when_it_is_ours_is_kept_where_it_can_be_read() {
        let lease = LeaseSettings::new("n".to_owned(), "l".to_owned(), "me".to_owned());
        let record = Record { lease, seen: None };
        let then = MicroTime(Timestamp::UNIX_EPOCH);
        let old = |holder: &str, since: Option<&MicroTime>| LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            acquire_time: since.cloned(),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        };
        for (holder, since, keeps, transitions) in [
            ("me", Some(&then), true, 3),
            ("me", None, false, 3),
            ("other", Some(&then), false, 4),
            ("other", None, false, 4),
        ] {
            let held = record.held_from(&old(holder, since));
            let acquired = held.acquire_time.expect("always");
            assert_eq!(acquired == then, keeps, "{holder} {since:?}");
            assert_eq!(held.lease_transitions, Some(transitions), "{holder}");
            assert!(held.renew_time.is_some_and(|renewed| renewed != then));
        }
    }
}
