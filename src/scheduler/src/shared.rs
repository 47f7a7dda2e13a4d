//! What all tasks of the process share.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use mpsgate_kubernetes::{Binder, Lead, Settings};
use mpsgate_policy::cluster::Placement;
use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::metrics::Metrics;

/// Each request to the API server. Less than the 5 s between a leader's end and the next one's beginning.
const PATIENCE: Duration = Duration::from_secs(3);

/// One for the process.
#[derive(Debug)]
pub(crate) struct Shared {
    cluster: RwLock<Cluster>,
    pub(crate) binder: Binder,
    pub(crate) lead: watch::Receiver<Lead>,
    /// Goes up when the lease becomes ours: lists of before do not count any more.
    pub(crate) term: watch::Sender<u64>,
    /// Uids of the pods that are being bound.
    pub(crate) binding: Mutex<HashSet<String>>,
    stopping: AtomicBool,
    pub(crate) metrics: Metrics,
    pub(crate) max_body: usize,
    pub(crate) unanswered: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        settings: Settings,
        placement: Placement,
        max_body: usize,
        lead: watch::Receiver<Lead>,
    ) -> Self {
        Self {
            cluster: RwLock::new(Cluster::new(placement)),
            binder: Binder::new(settings, PATIENCE),
            lead,
            term: watch::Sender::new(0),
            binding: Mutex::default(),
            stopping: AtomicBool::new(false),
            metrics: Metrics::default(),
            max_body,
            unanswered: AtomicU64::new(0),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Cluster> {
        self.cluster.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Cluster> {
        self.cluster.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nothing is bound.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Whether the lease is ours now. Asked again before each write.
    pub(crate) fn leads(&self) -> bool {
        !self.is_stopping() && self.lead.borrow().is_here(Instant::now())
    }

    /// Whether this replica binds: it has the lease, and lists that are younger than that.
    pub(crate) fn is_active(&self) -> bool {
        let term = *self.term.borrow();
        self.leads() && term > 0 && self.read().is_current_since(term)
    }

    /// Why this replica does not bind.
    pub(crate) fn inactive(&self) -> Option<String> {
        if self.is_active() {
            return None;
        }
        Some(match &*self.lead.borrow() {
            _ if self.is_stopping() => "this replica is ending; try again".to_owned(),
            Lead::Other(holder) if !holder.is_empty() => format!(
                "replica {holder} binds, and not this one; send bind to the Service that selects mpsgate.io/active=true"
            ),
            Lead::Here(_) => {
                "this replica has just got the lease and reads nodes and pods; try again".to_owned()
            }
            _ => "no replica has the lease yet; try again".to_owned(),
        })
    }

    /// Whether questions can be answered truly; else why not.
    pub(crate) fn unready(&self) -> Option<String> {
        let cluster = self.read();
        if self.is_stopping() {
            return Some("ending".to_owned());
        }
        [("nodes", &cluster.nodes), ("pods", &cluster.pods)].into_iter().find_map(
            |(what, source)| {
                if source.is_current() {
                    return None;
                }
                let why = source.error.as_deref().unwrap_or("the first list is not whole yet");
                Some(format!("{what} are not current: {why}"))
            },
        )
    }
}
