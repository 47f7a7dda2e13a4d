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
mod promises;
mod report;
pub(crate) mod tell;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mpsgate_config::{Kubeconfig, Kubernetes, NodeName};
use mpsgate_kubernetes as kubernetes;
use mpsgate_kubernetes::{
    Asked, Labels, NodeReport, Placement, Pod, Pods, Recorder, Settings, State,
};
use mpsgate_model::{Mib, PodContainer};
use mpsgate_policy::Listed;
use mpsgate_policy::schedule::Word;
use mpsgate_policy::slices::Wish;
use tokio::sync::watch;

pub(crate) use self::leave::leave;
use crate::daemon::Daemon;
use crate::node::Node;
use crate::schedule::Want;
use crate::{DaemonError, device_plugin};

/// How long a pod is waited for that the API server has not shown: kubelet may have heard of it a moment before us.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a start waits for the node's labels.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// How long a size is served that nobody asks for any more.
const KEPT: Duration = Duration::from_secs(10 * 60);
/// Between two looks at what may have changed without a word: what failed is tried again.
const LOOK: Duration = Duration::from_secs(60);

/// What is followed, and what is told.
pub(crate) struct ApiServer {
    settings: Settings,
    pods: watch::Receiver<Arc<Pods>>,
    node: watch::Receiver<Arc<kubernetes::Node>>,
    /// Sizes of slices that pods ask for which no node has yet.
    asked: watch::Receiver<BTreeSet<Asked>>,
    /// The node's labels, where sizes are looked for.
    ask: watch::Sender<Option<BTreeMap<String, String>>>,
    wanted: Mutex<Wanted>,
    report: watch::Sender<Option<NodeReport>>,
    recorder: Recorder,
}

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
    daemon.node().recorder = Some(recorder.clone());
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

/// What the labels make of the node. One without any of ours is left alone, as both seed systems have it: nos' label
/// alone means what ACK's `mps` does.
fn word(labels: &Labels) -> Word {
    match &labels.schedule {
        Some(word) => Word::of_label(word),
        None if labels.slices => Word::Mps,
        None => Word::Off,
    }
}

fn obey(daemon: &Daemon, labels: &Labels) {
    daemon.node().spread = labels.placement == Placement::Spread;
    daemon.want_schedule(Want::Label(Some(word(labels))));
}

/// Obeys the node's labels before any card is touched, where they can be had soon: else what they said last holds, and
/// where that is not known, the settings.
pub(crate) async fn first_word(daemon: &Daemon) {
    let Some(api_server) = daemon.api_server.get() else { return };
    let mut node = api_server.node.clone();
    let answered = node.wait_for(|node| !matches!(node.state, State::Waiting));
    let Ok(Ok(node)) = tokio::time::timeout(FIRST_WORD, answered).await else { return };
    if node.state.was_synced() {
        let labels = node.labels.clone();
        drop(node);
        obey(daemon, &labels);
    }
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
            obey(&daemon, &now.labels);
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
        tell::state(&current.state, &mut told);
        if current.state.was_synced() {
            promises::keep(&daemon, &current);
        }
        let using = if now.labels.slices { in_use(&current) } else { BTreeSet::new() };
        if used != using {
            used = using;
            daemon.tell_change();
        }
        tell::health(&daemon.node(), &mut seen);
        tell::lost(&daemon.node(), &current, &mut lost);
        let serves = device_plugin::directory(&daemon).is_some();
        let report = report::of(&daemon.node(), &current, serves);
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

/// What the API server says of a container.
pub(crate) struct InApi {
    /// Its limits.
    pub(crate) listed: Listed,
    /// The cards that a scheduler chose for it, by index.
    pub(crate) chosen: Vec<u32>,
    /// Over how many cards its memory is spread, as the pod's label says it.
    pub(crate) cards: Option<String>,
    /// `aliyun.com/gpu-core.percentage` of its limits; 0 where they name none.
    pub(crate) core_percentage: u64,
}

impl InApi {
    fn only(listed: Listed) -> Self {
        Self { listed, chosen: Vec::new(), cards: None, core_percentage: 0 }
    }
}

/// What the API server says of a container.
pub(crate) async fn listed(daemon: &Daemon, pod: &PodContainer) -> InApi {
    let Some(api_server) = daemon.api_server.get() else { return InApi::only(Listed::Unknown) };
    let mut pods = api_server.pods.clone();
    // While the API server is away nobody knows more in a moment.
    let patience = if pods.borrow().state.is_current() { PATIENCE } else { Duration::ZERO };
    let pods = kubernetes::wait_for_pod(&mut pods, &pod.uid, patience).await;
    let Some(known) = pods.get(&pod.uid) else { return InApi::only(Listed::Unknown) };
    let Some(container) = known.container(&pod.container) else {
        return InApi::only(Listed::NoContainer);
    };
    let listed = match (&container.limits, &container.core_percent) {
        (Ok(limits), Ok(_)) => {
            let given = limits.memory().filter(|(_, mib)| *mib > 0);
            Listed::Given(given.map(|(resource, mib)| (resource, Mib(mib))).collect())
        }
        (Err(error), _) | (_, Err(error)) => Listed::Unreadable(crate::error::chain(error)),
    };
    let chosen = known.chosen_cards(&pod.container);
    let core_percentage = container.core_percent.clone().unwrap_or_default();
    InApi { listed, chosen, cards: known.gpu_count.clone(), core_percentage }
}

/// Sizes that pods asked for, by namespace.
type Wanted = BTreeMap<Asked, Seen>;

/// When a size was wanted.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Since when without a break.
    since: Instant,
    last: Instant,
}

/// Sizes of slices, GiB, to be offered because of pods; none where the node's label does not switch them on. A pod that
/// is given a node is asked for nowhere for a moment, and its size must not go then.
pub(crate) fn slices(daemon: &Daemon) -> Vec<u64> {
    let Some(api_server) = daemon.api_server.get() else { return Vec::new() };
    if !api_server.node.borrow().labels.slices {
        return Vec::new();
    }
    let pods = Arc::clone(&api_server.pods.borrow());
    let asked = api_server.asked.borrow().clone();
    let largest = largest_gib(&daemon.node());
    let mut wanted = api_server.wanted.lock().unwrap_or_else(PoisonError::into_inner);
    offered(&mut wanted, &pods, asked, largest, Instant::now())
}

/// What the largest card of ours can give. `None` while none is known: NVML may be away.
fn largest_gib(node: &Node) -> Option<u64> {
    let managed = node.cards.iter().filter(|card| card.managed.is_some());
    managed.map(|card| card.memory.0 / 1024).max()
}

/// What pods of this node have in their limits that have not ended.
fn in_use(pods: &Pods) -> BTreeSet<Asked> {
    let sizes = |pod: &Arc<Pod>| {
        let limits = pod.containers.iter().filter_map(|container| container.limits.as_ref().ok());
        let sizes = limits.flat_map(|limits| limits.slices.keys().copied());
        sizes.map(|gib| Asked { namespace: pod.namespace.clone(), gib }).collect::<Vec<_>>()
    };
    pods.iter().filter(|pod| !pod.finished).flat_map(sizes).collect()
}

fn offered(
    wanted: &mut Wanted,
    pods: &Pods,
    asked: BTreeSet<Asked>,
    largest_gib: Option<u64>,
    now: Instant,
) -> Vec<u64> {
    let bound = in_use(pods);
    for one in bound.iter().cloned().chain(asked) {
        // What no card can give is not remembered: it is no end of sizes.
        if largest_gib.is_none_or(|most| one.gib <= most) {
            wanted.entry(one).or_insert(Seen { since: now, last: now }).last = now;
        }
    }
    wanted.retain(|_, seen| now.duration_since(seen.last) < KEPT);
    let ago = |at: Instant| u64::try_from(now.duration_since(at).as_millis()).unwrap_or(u64::MAX);
    let wishes: Vec<Wish<'_>> = wanted
        .iter()
        .map(|(one, seen)| Wish {
            namespace: &one.namespace,
            gib: one.gib,
            bound: bound.contains(one),
            since_ms: ago(seen.since),
            seen_ms: ago(seen.last),
        })
        .collect();
    mpsgate_policy::slices::offered(&wishes, largest_gib)
}

/// How it stands with the API server, for `status`.
pub(crate) fn status(daemon: &Daemon) -> Option<mpsgate_api::ApiServerStatus> {
    let api_server = daemon.api_server.get()?;
    let (pods, node) = (api_server.pods.borrow(), api_server.node.borrow());
    let trouble = |state: &State| match state {
        State::Current => None,
        State::Waiting => {
            Some(("it has not answered yet".to_owned(), "journalctl -u mpsgated -n 50".to_owned()))
        }
        State::Failing { error, hint } | State::Stale { error, hint, .. } => {
            Some((error.clone(), hint.clone()))
        }
    };
    let trouble = trouble(&pods.state).or_else(|| trouble(&node.state));
    Some(mpsgate_api::ApiServerStatus {
        node: api_server.settings.node.clone(),
        pods: u64::try_from(pods.len()).unwrap_or(u64::MAX),
        problem: trouble
            .as_ref()
            .map(|(error, _)| error.clone())
            .or_else(|| node.write_error.clone()),
        hint: trouble.map(|(_, hint)| hint),
        events_dropped: api_server.recorder.dropped(),
    })
}
