//! Events of the API server, written by one future for all that report.
//!
//! `v1` events: events.k8s.io/v1 (from 1.19) is the same storage with stricter checks; what `kubectl describe` reads is `v1`,
//! and its `count` is what a patch raises.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use k8s_openapi::api::core::v1::Event as CoreEvent;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;

use crate::event_fold::{Folded, Folding, Next, Outcome};
use crate::follow::Pause;
use crate::node_task::MANAGER;
use crate::{Error, Event, Settings, Severity, Subject};

/// Reports that wait while the API server is asked; more are dropped and counted.
const WAITING: usize = 256;

/// Where reports go. Cheap to clone; never waits.
#[derive(Debug, Clone)]
pub struct Recorder {
    send: mpsc::Sender<Event>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// Hands in a report. Where too many wait already, it is dropped and counted: nothing waits for the API server.
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

/// A recorder, and the future that writes what it is told. Dropping the future loses what was not written yet.
pub fn events(settings: Settings) -> (Recorder, impl Future<Output = Infallible> + Send) {
    let (send, receive) = mpsc::channel(WAITING);
    let recorder = Recorder { send, dropped: Arc::default() };
    (recorder, run(settings, receive))
}

async fn run(settings: Settings, mut reports: mpsc::Receiver<Event>) -> Infallible {
    let mut folding = Folding::default();
    let mut client = None;
    let mut pause = Pause::default();
    loop {
        match folding.next(Instant::now()) {
            Next::Nothing => listen(&mut reports, &mut folding, std::future::pending(), true).await,
            Next::At(due) => {
                let due = tokio::time::sleep_until(due.into());
                listen(&mut reports, &mut folding, due, true).await;
            }
            Next::Write(event) => loop {
                match write(&settings, &mut client, &event).await {
                    Ok(outcome) => {
                        pause.worked();
                        folding.written(&event, outcome);
                        break;
                    }
                    Err(error) => {
                        client = None;
                        log::warn!(error = error.line().as_str(); "an event is not written yet");
                        listen(&mut reports, &mut folding, pause.wait(), false).await;
                    }
                }
            },
        }
    }
}

/// Takes reports in until `until`, or (`once`) until there was one. When every recorder is gone, until `until`.
async fn listen(
    reports: &mut mpsc::Receiver<Event>,
    folding: &mut Folding,
    until: impl Future<Output = ()>,
    once: bool,
) {
    let mut until = std::pin::pin!(until);
    loop {
        tokio::select! {
            () = &mut until => return,
            Some(event) = reports.recv() => {
                folding.take(event, Instant::now(), &crate::time::now());
                if once {
                    return;
                }
            }
        }
    }
}

async fn write(
    settings: &Settings,
    client: &mut Option<Client>,
    event: &Folded,
) -> Result<Outcome, Error> {
    let connected = match client.take() {
        Some(connected) => connected,
        None => settings.connect().await?,
    };
    let (kind, namespace, name, uid) = match &event.subject {
        Subject::Pod { namespace, name, uid } => ("Pod", namespace.as_str(), name, uid),
        // As the kubelet writes it: its events of a node carry the name as uid.
        Subject::Node => ("Node", "default", &settings.node, &settings.node),
    };
    let api = Api::<CoreEvent>::namespaced(connected.clone(), namespace);
    let severity = match event.severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    };
    let done = match &event.name {
        Some(name) => {
            let patch = json!({
                "count": event.count, "lastTimestamp": event.last, "message": event.message, "type": severity,
            });
            let params =
                PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            api.patch(name, &params, &Patch::Merge(patch)).await
        }
        None => {
            let body = json!({
                "metadata": {"generateName": format!("{}.", name.get(..200).unwrap_or(name)), "namespace": namespace},
                "involvedObject": {
                    "apiVersion": "v1", "kind": kind, "name": name, "uid": uid,
                    "namespace": if kind == "Pod" { Some(namespace) } else { None },
                },
                "reason": event.reason.word(), "message": event.message, "type": severity,
                "source": {"component": MANAGER, "host": settings.node},
                "reportingComponent": MANAGER, "reportingInstance": settings.node,
                "firstTimestamp": event.first, "lastTimestamp": event.last, "count": event.count,
            });
            let body: CoreEvent =
                serde_json::from_value(body).expect("every field is one of Event's");
            let params =
                PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
            api.create(&params, &body).await
        }
    };
    let code = match &done {
        Err(kube::Error::Api(status)) => status.code,
        _ => 0,
    };
    let outcome = match done {
        Ok(written) => Outcome::Written(written.metadata.name.unwrap_or_default()),
        Err(_) if code == 404 && event.name.is_some() => Outcome::Forgotten,
        // A namespace that is gone or ends, a name that is none; 403 for want of a right is tried again.
        Err(kube::Error::Api(status))
            if matches!(code, 400 | 404 | 422)
                || (code == 403 && status.message.contains("being terminated")) =>
        {
            log::warn!(subject:? = event.subject, error = status.message.as_str(); "an event is refused");
            Outcome::Refused
        }
        Err(source) => {
            return Err(Error::Write {
                what: format!("write event {} of {kind} {name}", event.reason.word()),
                source: Box::new(source),
            });
        }
    };
    *client = Some(connected);
    Ok(outcome)
}
