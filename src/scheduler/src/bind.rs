//! A pod gets its cards and its node: memory is taken here, then the pod is bound, and its
//! annotations with the cards are part of that same write.
//!
//! ```text
//!   read pod and lease ─► reserve ─► bind (uid, resourceVersion) ─► bound
//!         ▲                              │ somebody wrote since       │ definitely not
//!         └──────────────────────────────┘                            ▼
//!                                                                 give back
//! ```
//! Where nobody knows whether the write was done, the memory stays taken until the watch says, or
//! its time is over. A crash leaves nothing behind: either the pod is bound, with its cards, or it
//! counts for nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mpsgate_cluster as cluster;
use mpsgate_host::clock::now_ms;
use mpsgate_kubernetes::{Fetched, Placed, Pod, WriteError};
use mpsgate_model::Layout;

use crate::extender::Binding;
use crate::ledger_input;
use crate::shared_state::Shared;

/// Conflicts of one bind: kube-scheduler and others write status and conditions all the time.
const ATTEMPTS: usize = 4;
/// How long memory is kept for a pod of which nobody knows whether it is bound.
const RESERVED_FOR_MS: u64 = 60_000;
/// For a place among those that are being bound.
const TURN: Duration = Duration::from_secs(5);

/// Binds as asked.
///
/// # Errors
/// A sentence for the pod's events.
pub(crate) async fn bind(shared: &Arc<Shared>, asked: &Binding) -> Result<(), String> {
    if let Some(why) = shared.inactive() {
        return Err(why);
    }
    let pod = format!("{}/{}", asked.pod_namespace, asked.pod_name);
    let Some(_turn) = Turn::of(shared, &asked.pod_uid) else {
        return Err(format!("pod {pod} is being bound already; look again in some seconds"));
    };
    let Ok(Ok(_place)) = tokio::time::timeout(TURN, shared.binds.acquire()).await else {
        return Err(format!("too many pods are being bound; {pod} is to be tried again"));
    };
    let (fetched, ours) = tokio::join!(fetch(shared, asked), lease_is_ours(shared));
    let fetched = fetched?;
    ours?;
    match &fetched.pod.node {
        // The answer to an earlier call was lost.
        Some(node) if *node == asked.node => return Ok(()),
        Some(node) => return Err(format!("pod {pod} is bound to node {node} already")),
        None if fetched.pod.finished => return Err(format!("pod {pod} has ended")),
        None if fetched.pod.deleting => return Err(format!("pod {pod} is being deleted")),
        None => {}
    }
    // kube-scheduler leaves pods of managedResources alone to us: whoever asks this is not it, or
    // it is told wrongly.
    let Some(request) = ledger_input::request(&fetched.pod)? else {
        return Err(format!(
            "pod {pod} asks for no GPU memory, and is not bound by mpsgate-scheduler; name in managedResources of kube-scheduler's \
             extender what mpsgate gives, and nothing else"
        ));
    };
    // By now: a node's handlers may have changed since the filter.
    if let Some(why) = shared.closed(&fetched.pod)?.reason(&asked.node) {
        return Err(format!("pod {pod} is not bound to node {}: {why}", asked.node));
    }
    let candidate = ledger_input::candidate(&fetched.pod, request);
    let now = now_ms();
    let reserved = {
        let mut cluster = shared.write();
        cluster.ledger.expire(now);
        cluster.reserve(candidate.clone(), &asked.node, now.saturating_add(RESERVED_FOR_MS))
    };
    let layout = reserved.map_err(|reason| reason.text)?;
    Attempt { shared, asked, candidate, layout, now }.run(fetched).await
}

async fn fetch(shared: &Shared, asked: &Binding) -> Result<Fetched, String> {
    let Binding { pod_namespace, pod_name, pod_uid, .. } = asked;
    let found = shared.binder.pod(pod_namespace, pod_name).await;
    let found = found
        .map_err(|error| format!("{}; {}", error.line(), error.hint_for("mpsgate-scheduler")))?;
    match found {
        Some(fetched) if fetched.pod.uid == *pod_uid => Ok(fetched),
        // Not which of the two: whoever guesses is told of no pod.
        Some(_) | None => Err(format!(
            "pod {pod_namespace}/{pod_name} is gone, or another one has its name by now"
        )),
    }
}

/// Whether the API server, too, has the lease as ours. The clock of a machine that was suspended
/// has not seen that time, and says that we lead.
async fn lease_is_ours(shared: &Shared) -> Result<(), String> {
    let lease = &shared.lease;
    let holder = shared.binder.lease_holder(&lease.namespace, &lease.name).await;
    let holder = holder
        .map_err(|error| format!("{}; {}", error.line(), error.hint_for("mpsgate-scheduler")))?;
    if holder.as_deref() == Some(lease.identity.as_str()) {
        return Ok(());
    }
    Err("another replica has the lease by now; try again".to_owned())
}

fn said(error: &WriteError) -> String {
    format!("{}; {}", error.cause().line(), error.cause().hint_for("mpsgate-scheduler"))
}

/// A pod with a reservation.
struct Attempt<'a> {
    shared: &'a Arc<Shared>,
    asked: &'a Binding,
    candidate: cluster::Pod,
    layout: Layout,
    now: u64,
}

impl Attempt<'_> {
    async fn run(self, mut fetched: Fetched) -> Result<(), String> {
        let annotations = self.annotations(&fetched.pod);
        for left in (0..ATTEMPTS).rev() {
            if !self.shared.leads() {
                let lost = "this replica has lost the lease while it was binding; try again";
                return Err(self.give_back(lost.to_owned()));
            }
            match self.shared.binder.bind(&fetched, &self.asked.node, &annotations).await {
                Ok(()) => break,
                Err(error @ (WriteError::Conflict(_) | WriteError::Unknown(_))) => {
                    match self.look(&fetched, &error).await? {
                        None => break,
                        Some(now) if left > 0 => fetched = now,
                        Some(_) => return Err(self.give_back(said(&error))),
                    }
                }
                Err(error) => return Err(self.give_back(said(&error))),
            }
        }
        self.bound();
        Ok(())
    }

    /// What is written on the pod.
    fn annotations(&self, pod: &Pod) -> BTreeMap<String, String> {
        let core = self.candidate.request.containers.iter().filter(|one| one.core_percent > 0);
        let placed = Placed {
            node: self.asked.node.clone(),
            time_ms: self.now,
            containers: self.layout.clone(),
            core: core.map(|one| (one.name.clone(), u64::from(one.core_percent))).collect(),
        };
        let cluster = self.shared.read();
        let cards = cluster.ledger.cards(&self.asked.node).unwrap_or_default();
        let memory = cards.iter().map(|usage| (usage.card.index, usage.card.memory.0));
        placed.annotations(pod, &memory.collect())
    }

    /// Looks what became of a Binding. `None` where it was made; else the pod as it is now, where
    /// it may be tried again: it must still be the same, and ask for the same.
    async fn look(&self, before: &Fetched, error: &WriteError) -> Result<Option<Fetched>, String> {
        let Pod { namespace, name, uid, .. } = &before.pod;
        let maybe = matches!(error, WriteError::Unknown(_));
        let kept = || format!("{}; its memory is kept for it meanwhile", error.cause().line());
        match self.shared.binder.pod(namespace, name).await {
            Ok(Some(now)) if now.pod.uid == *uid => match &now.pod.node {
                Some(node) if *node == self.asked.node => Ok(None),
                Some(node) => {
                    Err(self
                        .give_back(format!("pod {name} was bound to node {node} by somebody else")))
                }
                // It may be on its way.
                None if maybe => Err(kept()),
                None if now.pod.deleting || now.pod.finished => Err(self.give_back(said(error))),
                None if ledger_input::request(&now.pod) != ledger_input::request(&before.pod) => {
                    Err(self
                        .give_back(format!("pod {name} asks for something else by now; try again")))
                }
                None => Ok(Some(now)),
            },
            Ok(_) => Err(self.give_back(said(error))),
            Err(_) if maybe => Err(kept()),
            Err(_) => Err(self.give_back(said(error))),
        }
    }

    fn bound(&self) {
        self.shared.write().bound(self.candidate.clone(), &self.asked.node, self.layout.clone());
        log::info!(
            pod:% = format_args!("{}/{}", self.asked.pod_namespace, self.asked.pod_name),
            node = self.asked.node.as_str(); "bound"
        );
    }

    fn give_back(&self, why: String) -> String {
        self.shared.write().ledger.release(&self.candidate.uid);
        why
    }
}

/// One bind of one pod at a time.
struct Turn<'a> {
    shared: &'a Shared,
    uid: &'a str,
}

impl<'a> Turn<'a> {
    fn of(shared: &'a Shared, uid: &'a str) -> Option<Self> {
        let mut binding = shared.binding.lock().unwrap_or_else(PoisonError::into_inner);
        binding.insert(uid.to_owned()).then_some(Self { shared, uid })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.shared.binding.lock().unwrap_or_else(PoisonError::into_inner).remove(self.uid);
    }
}
