//! Events of the API server, written by one future for all that report.
//!
//! `v1` events: events.k8s.io/v1 (from 1.19) is the same storage with stricter checks; what
//! `kubectl describe` reads is `v1`, and its `count` is what a patch raises.
//!
//! ```text
//!  Recorder ──► Folding ──► one write at a time for each namespace, several namespaces at once
//!                  ▲           ├─► written
//!                  │           ├─► no (403, 429, 500, …), or no answer in time: that pod's event waits, longer each time
//!                  └───────────┴─► no connection, or not who we were: all wait
//! ```
//! What is refused is the business of one namespace: a policy, a quota of events, a webhook that
//! hangs. Whoever may have one refused in his own must not keep the node from telling of others.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use mpsgate_model::printable::plain;
use mpsgate_model::{Lines, Rate};
use serde_json::json;
use tokio::sync::mpsc;

use crate::event_fold::{Folded, Folding, Next, Outcome};
use crate::follow::Pause;
use crate::node_task::MANAGER;
use crate::objects::Objects;
use crate::read::Found;
use crate::wire::WireEvent;
use crate::{Error, Event, Settings, Severity, Subject};

/// Reports that wait while the API server is asked; more are dropped and counted.
const WAITING: usize = 256;
/// Namespaces of pods that are written to at once. The node's own events come on top.
const AT_ONCE: usize = 8;
/// How long one write may take: an admission webhook may take 30 s, on each event of its namespace.
const LATE: Duration = Duration::from_secs(10);
/// Lines of the log about events that are not written; those in between are counted.
const RATE: Rate = Rate { burst: 1, every: Duration::from_secs(60) };
/// What is told of an answer.
const LONGEST_TOLD: usize = 300;

/// Where reports go. Cheap to clone; never waits.
#[derive(Debug, Clone)]
pub struct Recorder {
    send: mpsc::Sender<Event>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// Hands in a report. Where too many wait already, it is dropped and counted: nothing waits for
    /// the API server.
    pub fn report(&self, event: Event) {
        if self.send.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many reports were dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// A recorder, and the future that writes what it is told. Dropping the future loses what was not
/// written yet.
pub fn events(settings: Settings) -> (Recorder, impl Future<Output = Infallible> + Send) {
    let (send, receive) = mpsc::channel(WAITING);
    let recorder = Recorder { send, dropped: Arc::default() };
    (recorder, run(settings, receive))
}

async fn run(settings: Settings, mut reports: mpsc::Receiver<Event>) -> Infallible {
    let mut writer = Writer::default();
    let mut writing = FuturesUnordered::new();
    loop {
        let now = Instant::now();
        let due = loop {
            match writer.next(now) {
                Next::Nothing => break None,
                Next::At(at) => break Some(at),
                Next::Write(event) => {
                    writing.push(attempt(&settings, writer.client.clone(), event));
                }
            }
        };
        let due = async {
            match due {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(event) = reports.recv() => {
                writer.folding.take(event, Instant::now(), &crate::time::now());
            }
            Some((event, connected, done)) = writing.next() => writer.done(&event, connected, done),
            () = due => {}
        }
    }
}

/// What is written, and what of it waits.
#[derive(Default)]
struct Writer {
    folding: Folding,
    client: Option<Client>,
    pause: Pause,
    /// Until when nobody is asked, because there was nobody to ask.
    away: Option<Instant>,
    of_pods: Lines,
    of_node: Lines,
    busy: Vec<Option<String>>,
}

impl Writer {
    fn next(&mut self, now: Instant) -> Next {
        self.away = self.away.filter(|until| *until > now);
        if let Some(until) = self.away {
            return Next::At(until);
        }
        let next = self.folding.next(now, |subject| may(&self.busy, subject));
        if let Next::Write(event) = &next {
            self.busy.push(place(&event.subject));
        }
        next
    }

    /// What came of an attempt.
    fn done(&mut self, event: &Folded, client: Option<Client>, done: Result<Outcome, Error>) {
        let done_with = place(&event.subject);
        self.busy.retain(|place| *place != done_with);
        let lines = if done_with.is_some() { &mut self.of_pods } else { &mut self.of_node };
        match done {
            Ok(outcome) => {
                if let Outcome::Refused(why) = &outcome {
                    log_unwritten(lines, event, &format!("it is dropped: {why}"));
                }
                self.client = client;
                self.pause.worked();
                self.folding.written(event, outcome);
            }
            Err(error) if concerns_it_alone(&error) => {
                self.client = client;
                if self.folding.refused(event, Instant::now()) {
                    log_unwritten(lines, event, &error.line());
                }
            }
            Err(error) => {
                self.client = None;
                self.folding.unsent(event);
                log_unwritten(lines, event, &error.line());
                self.away = self.away.or_else(|| Some(Instant::now() + self.pause.next()));
            }
        }
    }
}

/// Where an event is written: a namespace, or the node's own place.
fn place(subject: &Subject) -> Option<String> {
    match subject {
        Subject::Pod { namespace, .. } => Some(namespace.clone()),
        Subject::Node => None,
    }
}

fn may(busy: &[Option<String>], subject: &Subject) -> bool {
    match subject {
        Subject::Node => !busy.contains(&None),
        Subject::Pod { namespace, .. } => {
            let pods = busy.iter().flatten().count();
            pods < AT_ONCE && !busy.iter().flatten().any(|known| known == namespace)
        }
    }
}

/// Whether another event may be taken although this one was not: the API server answered, or began
/// to. 401 is about us.
fn concerns_it_alone(error: &Error) -> bool {
    match error {
        Error::Late { .. } => true,
        error => error.status().is_some_and(|status| status != 401),
    }
}

fn log_unwritten(lines: &mut Lines, event: &Folded, why: &str) {
    let Some(untold) = lines.take(RATE, Instant::now()) else { return };
    let why: String = plain(why).chars().take(LONGEST_TOLD).collect();
    let reason = event.reason.as_str();
    log::warn!(subject:? = event.subject, reason, why = why.as_str(), untold; "an event is not written");
}

/// One write, with a client that may be used again.
async fn attempt(
    settings: &Settings,
    client: Option<Client>,
    event: Folded,
) -> (Folded, Option<Client>, Result<Outcome, Error>) {
    let mut client = client;
    let done = tokio::time::timeout(LATE, write(settings, &mut client, &event)).await;
    let what = || format!("write event {}", event.reason.as_str());
    let late = |_| Err(Error::Late { what: what(), seconds: LATE.as_secs() });
    let done = done.unwrap_or_else(late);
    (event, client, done)
}

async fn write(
    settings: &Settings,
    client: &mut Option<Client>,
    event: &Folded,
) -> Result<Outcome, Error> {
    let connected = match client {
        Some(connected) => connected.clone(),
        None => {
            let connected = settings.connect().await?;
            client.insert(connected).clone()
        }
    };
    let (kind, namespace, name, uid) = match &event.subject {
        Subject::Pod { namespace, name, uid } => ("Pod", namespace.as_str(), name, uid),
        // As the kubelet writes it: its events of a node carry the name as uid.
        Subject::Node => ("Node", "default", &settings.node, &settings.node),
    };
    let events = Objects::<WireEvent>::namespaced(connected, namespace);
    let severity = match event.severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    };
    let manager = Some(MANAGER.to_owned());
    let written = match &event.name {
        Some(name) => {
            let patch = json!({
                "count": event.count, "lastTimestamp": event.last, "message": event.message, "type": severity,
            });
            let params = PatchParams { field_manager: manager, ..PatchParams::default() };
            events.patch(name, &params, &Patch::Merge(patch)).await
        }
        None => {
            let mut body = json!({
                "apiVersion": "v1", "kind": "Event",
                "metadata": {"generateName": format!("{}.", name.get(..200).unwrap_or(name)), "namespace": namespace},
                "involvedObject": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid},
                "reason": event.reason.as_str(), "message": event.message, "type": severity,
                "source": {"component": MANAGER, "host": settings.node},
                "reportingComponent": MANAGER, "reportingInstance": settings.node,
                "firstTimestamp": event.first, "lastTimestamp": event.last, "count": event.count,
            });
            if kind == "Pod" {
                body["involvedObject"]["namespace"] = namespace.into();
            }
            let params = PostParams { field_manager: manager, ..PostParams::default() };
            events.create(&params, &body).await
        }
    };
    let what = || format!("write event {} of {kind} {name}", event.reason.as_str());
    outcome(written, event.name.is_some(), what)
}

/// `again`: the event was there before.
fn outcome(
    written: kube::Result<Found<WireEvent>>,
    again: bool,
    what: impl Fn() -> String,
) -> Result<Outcome, Error> {
    match written {
        Ok(Ok(written)) => Ok(Outcome::Written(written.metadata.name.unwrap_or_default())),
        Ok(Err(unread)) => Ok(Outcome::Written(unread.meta.name.unwrap_or_default())),
        Err(kube::Error::Api(status)) if status.code == 404 && again => Ok(Outcome::Forgotten),
        // A namespace that is gone or ends, a name that is none: never.
        Err(kube::Error::Api(status))
            if matches!(status.code, 400 | 404 | 422)
                || (status.code == 403 && status.message.contains("being terminated")) =>
        {
            Ok(Outcome::Refused(status.message))
        }
        Err(source) => Err(Error::Write { what: what(), source: Box::new(source) }),
    }
}
