//! What the API server says of this node and its pods, and what it is told.
//!
//! ```text
//!  pods ──► listed: whether a container's request counts (at reserve)
//!     └───► promises ─► ledger
//!  node's labels ──► placement, slices
//!  cards, ledger ──► report ─► the node's annotation, labels, count and condition
//!  refusals, actions, faults ──► events
//! ```
//! Without an API server, or while it is away, tokens alone count, and what was heard last stays.

mod leave;
mod pod_promises;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mpsgate_config::{Kubeconfig, Kubernetes, NodeName};
use mpsgate_kubernetes as kubernetes;
use mpsgate_kubernetes::{Settings, State};
use mpsgate_node::sharing::Want;
use tokio::sync::watch;

pub(crate) use self::leave::leave;
use crate::api_server::ApiServer;
use crate::api_server::slices_asked::in_use;
use crate::around::node_report;
use crate::daemon::Daemon;
use crate::{DaemonError, kubelet, tell};

/// Between two looks at what may have changed without a word: what failed is tried again.
const LOOK: Duration = Duration::from_secs(60);

/// Begins to follow the API server, where the settings name one.
pub(crate) fn start(daemon: &Arc<Daemon>) {
    let Some(settings) = settings(&daemon.settings.now().kubernetes) else {
        // What a label once said counts no more.
        daemon.want_schedule(Want::Label(None));
        return;
    };
    log::info!(node = settings.node.as_str(), source:? = settings.source; "API server is followed");
    let (report, reported) = watch::channel(None);
    let (ask, asking) = watch::channel(None);
    let (pods, follow_pods) = kubernetes::pods(settings.clone());
    let (node, follow_node) = kubernetes::node(settings.clone(), reported);
    let (asked, follow_asked) = kubernetes::slices_asked(settings.clone(), asking);
    let (recorder, write_events) = kubernetes::events(settings.clone());
    let wanted = Mutex::default();
    let all = ApiServer { settings, pods, node, asked, ask, wanted, report, recorder };
    // Started once.
    let _ = daemon.api_server.set(all);
    daemon.spawn("follows the pods", async { match follow_pods.await {} });
    daemon.spawn("follows the node", async { match follow_node.await {} });
    daemon.spawn("looks for slices", async { match follow_asked.await {} });
    daemon.spawn("writes events", async { match write_events.await {} });
    daemon.spawn("keeps promises", keep(Arc::clone(daemon)));
}

fn settings(settings: &Kubernetes) -> Option<Settings> {
    let kubeconfig = match &settings.kubeconfig {
        Kubeconfig::Off => return None,
        Kubeconfig::Auto => None,
        Kubeconfig::File(path) => Some(path.clone()),
    };
    let node = match &settings.node_name {
        NodeName::Named(name) => name.clone(),
        // Set in the DaemonSet, from spec.nodeName.
        NodeName::Auto => std::env::var("NODE_NAME").unwrap_or_else(|_| host_name()),
    };
    Settings::find(kubeconfig, &node)
}

/// As kubelet has it: `os.Hostname()` without blanks, in lower case (pkg/util/node `GetHostname`).
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().trim().to_lowercase()
}

/// Does what follows from each change, for as long as the process lives.
async fn keep(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    let Some(api_server) = daemon.api_server.get() else { return Ok(()) };
    let (mut pods, mut node) = (api_server.pods.clone(), api_server.node.clone());
    let mut asked = api_server.asked.clone();
    let (mut cards, mut ledger) = (daemon.changes(), daemon.ledger_changes());
    daemon.started().await;
    let mut labels = None;
    let (mut told, mut seen, mut used) = (None, BTreeMap::new(), BTreeSet::new());
    let mut lost = BTreeSet::new();
    loop {
        let now = Arc::clone(&node.borrow_and_update());
        if now.state.was_synced() && labels.as_ref() != Some(&now.labels) {
            log::info!(labels:? = now.labels; "the node's labels");
            daemon.obey(&now.labels);
            labels = Some(now.labels.clone());
            daemon.tell_change();
        }
        if now.state.was_synced() {
            let asking = now.labels.slices.then(|| now.all_labels.clone());
            api_server.ask.send_if_modified(|asked| {
                let differs = *asked != asking;
                *asked = asking;
                differs
            });
        }
        let current = Arc::clone(&pods.borrow_and_update());
        tell_state(&current.state, &mut told);
        if current.state.was_synced() {
            pod_promises::keep(&daemon, &current);
        }
        let using = if now.labels.slices { in_use(&current) } else { BTreeSet::new() };
        if used != using {
            used = using;
            daemon.tell_change();
        }
        tell::health(&api_server.recorder, &daemon.node(), &mut seen);
        tell::lost(&api_server.recorder, &current, &mut lost);
        let serves = kubelet::directory(&daemon).is_some();
        let report = node_report::of(&daemon.node(), &daemon.around(), &current, serves);
        api_server.report.send_if_modified(|shown| {
            let differs = shown.as_ref() != Some(&report);
            if differs {
                *shown = Some(report);
            }
            differs
        });
        tokio::select! {
            _ = pods.changed() => {}
            _ = node.changed() => {}
            _ = asked.changed() => daemon.tell_change(),
            _ = cards.changed() => {}
            _ = ledger.changed() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// Logs how it stands with the API server, where that changed; `told` is what was said last.
fn tell_state(state: &State, told: &mut Option<Result<(), String>>) {
    let now = match state {
        State::Waiting => return,
        State::Current => Ok(()),
        State::Failing { error, .. } | State::Stale { error, .. } => Err(error.clone()),
    };
    if told.as_ref() == Some(&now) {
        return;
    }
    match state {
        State::Failing { error, hint } => {
            log::warn!(error = error.as_str(), hint = hint.as_str(); "the API server does not answer: tokens alone count");
        }
        State::Stale { error, hint, .. } => {
            log::warn!(error = error.as_str(), hint = hint.as_str(); "the API server does not answer: what it said last counts");
        }
        _ => log::info!("the API server answers"),
    }
    *told = Some(now);
}
