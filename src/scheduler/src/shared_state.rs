//! What all tasks of the process share.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use mpsgate_cluster::Snapshot;
use mpsgate_cluster::bypass::{Closed, Known};
use mpsgate_kubernetes::{Binder, Claims, Lead, LeaseSettings, LeftOut, Pod, Settings};
use mpsgate_model::Placement;
use tokio::sync::{Semaphore, watch};

use crate::cluster::Cluster;
use crate::desk::{Desk, Looks};
use crate::known::Seen;
use crate::pod_claims;
use crate::scheduler_metrics::Metrics;

/// Each request to the API server. Less than the 5 s between a leader's end and the next one's
/// beginning.
const PATIENCE: Duration = Duration::from_secs(3);

/// Pods that are being bound at a time: each is some requests to the API server.
const BINDS: usize = 64;

/// What to do about a question that is too large.
const LESS: &str = "set nodeCacheCapable: true for this extender, or raise --max-body";

/// One for the process.
#[derive(Debug)]
pub(crate) struct Shared {
    cluster: RwLock<Cluster>,
    /// Where handlers lead. Another lock: reviews wait for no search of the ledger.
    seen: RwLock<Seen>,
    pub(crate) binder: Binder,
    /// Read when kube-scheduler asks about a pod that has some.
    pub(crate) claims: Claims,
    pub(crate) lead: watch::Receiver<Lead>,
    /// The lease that this is about.
    pub(crate) lease: LeaseSettings,
    /// Goes up when the lease becomes ours: lists of before do not count any more.
    pub(crate) term: watch::Sender<u64>,
    /// Uids of the pods that are being bound.
    pub(crate) binding: Mutex<HashSet<String>>,
    pub(crate) binds: Semaphore,
    stopping: AtomicBool,
    pub(crate) metrics: Metrics,
    /// For what kube-scheduler asks.
    pub(crate) desk: Desk,
    pub(crate) looks: Looks,
    pub(crate) scrapes: Looks,
    pub(crate) unanswered: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        settings: Settings,
        placement: Placement,
        max_body: usize,
        lead: watch::Receiver<Lead>,
        lease: LeaseSettings,
    ) -> Self {
        Self {
            cluster: RwLock::new(Cluster::new(placement)),
            seen: RwLock::default(),
            claims: Claims::new(settings.clone(), pod_claims::PATIENCE),
            binder: Binder::new(settings, PATIENCE),
            lead,
            lease,
            term: watch::Sender::new(0),
            binding: Mutex::default(),
            binds: Semaphore::new(BINDS),
            stopping: AtomicBool::new(false),
            metrics: Metrics::default(),
            desk: Desk::new(max_body, LESS),
            looks: Looks::default(),
            scrapes: Looks::default(),
            unanswered: AtomicU64::new(0),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Cluster> {
        self.cluster.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Cluster> {
        self.cluster.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of handlers: of nodes and RuntimeClasses.
    pub(crate) fn seen(&self) -> RwLockReadGuard<'_, Seen> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write_seen(&self) -> RwLockWriteGuard<'_, Seen> {
        self.seen.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of handlers. A review may take its time over it.
    pub(crate) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.seen().known)
    }

    /// The nodes that a pod with GPU memory is kept from, because its containers would bypass
    /// mpsgate there.
    ///
    /// # Errors
    /// Its RuntimeClass is not known.
    pub(crate) fn closed(&self, pod: &Pod) -> Result<Closed, String> {
        self.known().closed(pod.class.as_deref())
    }

    /// The ledger as it is now, to be searched without keeping anybody from it. What was whole once
    /// is good enough, as bind looks again.
    ///
    /// # Errors
    /// There never was a whole list.
    pub(crate) fn searched(&self) -> Result<Snapshot, String> {
        let cluster = self.read();
        cluster.unsynced().map_or_else(|| Ok(cluster.ledger.snapshot()), Err)
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

    /// What is there and cannot be read, whatever it is.
    pub(crate) fn left_out(&self) -> Vec<LeftOut> {
        let mut all = self.seen().classes.left_out.clone();
        let cluster = self.read();
        all.extend(cluster.nodes.left_out.iter().chain(&cluster.pods.left_out).cloned());
        all
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
