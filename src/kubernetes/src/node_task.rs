//! This node's object, watched and written.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::Event;
use serde_json::Value;
use tokio::sync::watch;

use crate::follow::{Pause, Told, follow};
use crate::listen::Lists;
use crate::objects::Objects;
use crate::read::part;
use crate::wire::WireNode;
use crate::{Error, Node, NodeReport, Settings};

/// Who wrote, in the API server's managedFields.
pub(crate) const MANAGER: &str = "mpsgated";
/// At most one round of writes in this time, however often the node or the report changes.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);

/// This node as the API server has it, and the future that follows it and writes `report` into it,
/// whenever one of them changes. While there is no report nothing is written. Dropping the future
/// ends both.
pub fn node(
    settings: Settings,
    report: watch::Receiver<Option<NodeReport>>,
) -> (watch::Receiver<Arc<Node>>, impl Future<Output = Infallible> + Send) {
    let (publish, receive) = watch::channel(Arc::<Node>::default());
    let future = async move {
        let seen = publish.subscribe();
        let watching = async {
            let what = format!("node {}", settings.node);
            let fields = format!("metadata.name={}", settings.node);
            let mut found = Err(Error::NoNode { node: settings.node.clone() });
            let told = |told| tell(&publish, &settings.node, &mut found, told);
            follow(&settings, Lists::Cached, &what, &fields, Objects::<WireNode>::all, told).await
        };
        tokio::select! {
            never = watching => never,
            never = write_for_ever(&settings, &publish, seen, report) => never,
        }
    };
    (receive, future)
}

/// `found` is of the list that comes.
fn tell(
    publish: &watch::Sender<Arc<Node>>,
    name: &str,
    found: &mut Result<(), Error>,
    told: Told<WireNode>,
) {
    let none = || Error::NoNode { node: name.to_owned() };
    publish.send_modify(|node| {
        let node = Arc::make_mut(node);
        match told {
            Told::Kube(Event::Init) => *found = Err(none()),
            Told::Kube(Event::InitApply(Ok(wire))) => {
                *found = Ok(());
                node.reduce(wire);
            }
            // It is there, and nothing is written into what cannot be read.
            Told::Kube(Event::InitApply(Err(unread))) => *found = Err(Error::from(&unread.left)),
            Told::Kube(Event::Apply(Ok(wire))) => {
                node.reduce(wire);
                node.state = crate::State::Current;
            }
            Told::Kube(Event::Apply(Err(unread))) => node.state.fail(&Error::from(&unread.left)),
            Told::Kube(Event::InitDone) => match found {
                Ok(()) => node.state = crate::State::Current,
                Err(error) => node.state.fail(error),
            },
            Told::Kube(Event::Delete(_)) => node.state.fail(&none()),
            Told::LeftOut(_) => {}
            Told::Lost(error) => node.state.fail(&error),
        }
    });
}

async fn write_for_ever(
    settings: &Settings,
    publish: &watch::Sender<Arc<Node>>,
    mut seen: watch::Receiver<Arc<Node>>,
    mut report: watch::Receiver<Option<NodeReport>>,
) -> Infallible {
    let mut client = None;
    let mut pause = Pause::default();
    loop {
        let node = Arc::clone(&seen.borrow_and_update());
        let wanted = report.borrow_and_update().as_ref().map(|report| report.wanted(&node.ours));
        let (metadata, status) = match &wanted {
            Some(wanted) if node.state.is_current() => {
                node.ours.patches(wanted, &crate::time::now())
            }
            _ => (None, None),
        };
        if metadata.is_none() && status.is_none() {
            tokio::select! {
                _ = seen.changed() => {}
                changed = report.changed() => if changed.is_err() {
                    // Nobody will ever report again: only the watch goes on.
                    std::future::pending::<()>().await;
                },
            }
            continue;
        }
        match write(settings, &mut client, metadata, status).await {
            Ok(wire) => {
                pause.worked();
                publish.send_modify(|node| {
                    let node = Arc::make_mut(node);
                    node.write_error = None;
                    if let Some(wire) = wire {
                        node.reduce(wire);
                    }
                });
                tokio::time::sleep(BETWEEN_WRITES).await;
            }
            Err(error) => {
                client = None;
                let line = format!("{}; {}", error.line(), error.hint());
                if node.write_error.as_ref() != Some(&line) {
                    log::warn!(error = line.as_str(); "the node's object is not up to date");
                }
                publish.send_modify(|node| Arc::make_mut(node).write_error = Some(line));
                pause.wait().await;
            }
        }
    }
}

/// Both patches, the status last; what the API server made of them. One that it refuses keeps the
/// other from nothing.
async fn write(
    settings: &Settings,
    client: &mut Option<Client>,
    metadata: Option<Value>,
    status: Option<Value>,
) -> Result<Option<WireNode>, Error> {
    let connected = match client.take() {
        Some(connected) => connected,
        None => settings.connect().await?,
    };
    let nodes = Objects::<WireNode>::all(connected.clone());
    let name = &settings.node;
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let failed = |what: String| move |source| Error::Write { what, source: Box::new(source) };
    let (mut after, mut refused) = (None, None);
    if let Some(patch) = metadata {
        let done = nodes.patch(name, &params, &Patch::Merge(patch)).await;
        match done.map_err(failed(format!("patch node {name}"))) {
            Ok(node) => after = part(node),
            Err(error) if error.status().is_some() => refused = Some(error),
            Err(error) => return Err(error),
        }
    }
    if let Some(patch) = status {
        let done = nodes.patch_status(name, &params, &Patch::Strategic(patch)).await;
        after = part(done.map_err(failed(format!("patch the status of node {name}")))?);
    }
    if let Some(refused) = refused {
        return Err(refused);
    }
    *client = Some(connected);
    Ok(after)
}
