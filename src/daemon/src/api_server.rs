//! What the API server says of this node and its pods, for whoever asks. The task that follows it
//! is [`pods`](crate::pods).

pub(crate) mod slices_asked;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mpsgate_kubernetes as kubernetes;
use mpsgate_kubernetes::{Labels, NodeReport, Pods, Recorder, Settings, SliceSize, State};
use mpsgate_model::{GpuUuid, Mib, PodContainer};
use mpsgate_policy::ListedLimits;
use tokio::sync::watch;

use self::slices_asked::Wanted;

/// How long a pod is waited for that the API server has not shown: kubelet may have heard of it a
/// moment before us.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long is waited for the API server to show what was written. Writes are a second apart.
const SHOWN: Duration = Duration::from_secs(10);
/// How long a start waits for the node's labels.
const FIRST_WORD: Duration = Duration::from_secs(10);

/// What is followed, and what is told.
pub(crate) struct ApiServer {
    pub(crate) settings: Settings,
    pub(crate) pods: watch::Receiver<Arc<Pods>>,
    pub(crate) node: watch::Receiver<Arc<kubernetes::Node>>,
    /// Sizes of slices that pods ask for which no node has yet.
    pub(crate) asked: watch::Receiver<BTreeSet<SliceSize>>,
    /// The node's labels, where sizes are looked for.
    pub(crate) ask: watch::Sender<Option<BTreeMap<String, String>>>,
    pub(crate) wanted: Mutex<Wanted>,
    pub(crate) report: watch::Sender<Option<NodeReport>>,
    pub(crate) recorder: Recorder,
}
/// What the API server says of a container.
pub(crate) struct InApi {
    /// Its limits.
    pub(crate) listed: ListedLimits,
    /// The cards that a scheduler chose for it, by index.
    pub(crate) chosen: Vec<u32>,
    /// Over how many cards its memory is spread, as the pod's label says it.
    pub(crate) cards: Option<String>,
    /// `aliyun.com/gpu-core.percentage` of its limits; 0 where they name none.
    pub(crate) core_percentage: u64,
}

impl InApi {
    /// Nothing but this.
    pub(crate) fn only(listed: ListedLimits) -> Self {
        Self { listed, chosen: Vec::new(), cards: None, core_percentage: 0 }
    }
}

impl ApiServer {
    /// The node's labels, where they can be had soon.
    pub(crate) async fn first_labels(&self) -> Option<Labels> {
        let mut node = self.node.clone();
        let answered = node.wait_for(|node| !matches!(node.state, State::Waiting));
        let node = tokio::time::timeout(FIRST_WORD, answered).await.ok()?.ok()?;
        node.state.was_synced().then(|| node.labels.clone())
    }

    /// Returns once the node's object says that no pod is to be sent to this card, and a pod that
    /// was on its way has been seen; `false`: the API server does not show it in time.
    pub(crate) async fn shows_closed(&self, card: &GpuUuid) -> bool {
        let mut node = self.node.clone();
        let shown =
            node.wait_for(|node| node.state.is_current() && !node.shows_healthy(card.as_str()));
        let shown = matches!(tokio::time::timeout(SHOWN, shown).await, Ok(Ok(_)));
        if shown {
            tokio::time::sleep(PATIENCE).await;
        }
        shown
    }

    /// The container's pod as the API server has it: a static pod is known to it by another uid.
    pub(crate) fn known(&self, container: &PodContainer) -> PodContainer {
        let known = self.pods.borrow().get(&container.uid).map(|pod| pod.uid.clone());
        let uid = known.unwrap_or_else(|| container.uid.clone());
        PodContainer { uid, ..container.clone() }
    }

    /// What the API server says of a container.
    pub(crate) async fn listed(&self, pod: &PodContainer) -> InApi {
        let mut pods = self.pods.clone();
        // While the API server is away nobody knows more in a moment.
        let patience = if pods.borrow().state.is_current() { PATIENCE } else { Duration::ZERO };
        let pods = kubernetes::wait_for_pod(&mut pods, &pod.uid, patience).await;
        let Some(known) = pods.get(&pod.uid) else { return InApi::only(ListedLimits::Unknown) };
        let Some(container) = known.container(&pod.container) else {
            return InApi::only(ListedLimits::NoContainer);
        };
        let listed = match (&container.limits, &container.core_percent) {
            (Ok(limits), Ok(_)) => {
                let given = limits.memory().filter(|(_, mib)| *mib > 0);
                ListedLimits::Given(given.map(|(resource, mib)| (resource, Mib(mib))).collect())
            }
            (Err(error), _) | (_, Err(error)) => {
                ListedLimits::Unreadable(crate::error::chain(error))
            }
        };
        let chosen = known.chosen_cards(&pod.container);
        let core_percentage = container.core_percent.clone().unwrap_or_default();
        InApi { listed, chosen, cards: known.gpu_count.clone(), core_percentage }
    }

    /// Sizes of slices, GiB, to be offered because of pods; none where the node's label does not
    /// switch them on. A pod that is given a node is asked for nowhere for a moment, and its size
    /// must not go then. `largest_gib` is what a card can give, where one is known.
    pub(crate) fn slices(&self, largest_gib: Option<u64>) -> Vec<u64> {
        if !self.node.borrow().labels.slices {
            return Vec::new();
        }
        let pods = Arc::clone(&self.pods.borrow());
        let asked = self.asked.borrow().clone();
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        slices_asked::offered(&mut wanted, &pods, asked, largest_gib, Instant::now())
    }

    /// How it stands with the API server, for `status`.
    pub(crate) fn status(&self) -> mpsgate_api::ApiServerStatus {
        let (pods, node) = (self.pods.borrow(), self.node.borrow());
        let trouble = |state: &State| match state {
            State::Current => None,
            State::Waiting => Some((
                "it has not answered yet".to_owned(),
                "journalctl -u mpsgated -n 50".to_owned(),
            )),
            State::Failing { error, hint } | State::Stale { error, hint, .. } => {
                Some((error.clone(), hint.clone()))
            }
        };
        let trouble = trouble(&pods.state).or_else(|| trouble(&node.state));
        mpsgate_api::ApiServerStatus {
            node: self.settings.node.clone(),
            pods: u64::try_from(pods.len()).unwrap_or(u64::MAX),
            problem: trouble
                .as_ref()
                .map(|(error, _)| error.clone())
                .or_else(|| node.write_error.clone()),
            hint: trouble.map(|(_, hint)| hint),
            events_dropped: self.recorder.dropped(),
            left_out: pods.left_out.iter().map(ToString::to_string).collect(),
        }
    }
}
