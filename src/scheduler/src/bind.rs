//! A pod gets its cards and its node: memory is taken here, then written on the pod, then the pod is bound.
//!
//! ```text
//!   read the pod ─► reserve ─► annotate (uid, resourceVersion) ─► bind (uid) ─► bound
//!                                  │ definitely not                │ definitely not
//!                                  ▼                               ▼
//!                              give back                  take annotations off, give back
//! ```
//! Where nobody knows whether a write was done, the memory stays taken until the watch says, or its time is over. A crash
//! after the annotations leaves them: they count on every replica until their time is over, and then for nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use mpsgate_kubernetes::{ASSUMED_FOR_MS, Fetched, Placed, Pod, WriteError, now_ms};
use mpsgate_policy::cluster::{self, Layout};

use crate::ask;
use crate::extender::Binding;
use crate::shared::Shared;

/// Conflicts of one bind: kube-scheduler and others write status and conditions all the time.
const ATTEMPTS: usize = 4;

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
    let fetched = fetch(shared, asked).await?;
    match &fetched.pod.node {
        // The answer to an earlier call was lost.
        Some(node) if *node == asked.node => return Ok(()),
        Some(node) => return Err(format!("pod {pod} is bound to node {node} already")),
        None if fetched.pod.finished => return Err(format!("pod {pod} has ended")),
        None if fetched.pod.deleting => return Err(format!("pod {pod} is being deleted")),
        None => {}
    }
    let Some(request) = ask::request(&fetched.pod)? else {
        return shared.binder.bind(&fetched.pod, &asked.node).await.map_err(|error| said(&error));
    };
    let candidate = ask::candidate(&fetched.pod, request);
    let now = now_ms();
    let reserved = {
        let mut cluster = shared.write();
        cluster.ledger.expire(now);
        cluster.reserve(candidate.clone(), &asked.node, now.saturating_add(ASSUMED_FOR_MS))
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
        Some(_) => {
            Err(format!("pod {pod_namespace}/{pod_name} is another one of that name by now"))
        }
        None => Err(format!("pod {pod_namespace}/{pod_name} is gone")),
    }
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
        let core = self.candidate.request.containers.iter().filter(|one| one.core_percent > 0);
        let placed = Placed {
            node: self.asked.node.clone(),
            time_ms: self.now,
            containers: ask::allocation(&self.layout),
            core: core.map(|one| (one.name.clone(), u64::from(one.core_percent))).collect(),
        };
        let card_mib = {
            let cluster = self.shared.read();
            let cards = cluster.ledger.cards(&self.asked.node).unwrap_or_default();
            cards.iter().map(|card| (card.index, card.total.0)).collect()
        };
        let annotations = placed.annotations(&fetched.pod, &card_mib);
        let annotations = annotations.into_iter().map(|(key, value)| (key, Some(value))).collect();
        for left in (0..ATTEMPTS).rev() {
            self.still_leads()?;
            match self
                .shared
                .binder
                .annotate(&fetched.pod, Some(&fetched.version), &annotations)
                .await
            {
                Ok(()) => break,
                Err(WriteError::Conflict(_)) if left > 0 => {
                    fetched = self.again(fetched).await?;
                }
                Err(WriteError::Unknown(error)) => {
                    return Err(format!("{}; its memory is kept for it meanwhile", error.line()));
                }
                Err(error) => return Err(self.give_back(said(&error))),
            }
        }
        // Without the lease the next leader may read the annotations, and must not find them bound later.
        self.still_leads()?;
        match self.shared.binder.bind(&fetched.pod, &self.asked.node).await {
            Ok(()) => {
                self.bound();
                Ok(())
            }
            Err(error @ (WriteError::Conflict(_) | WriteError::Unknown(_))) => {
                self.look(&fetched.pod, &error).await
            }
            Err(error) => {
                self.take_off(&fetched.pod).await;
                Err(self.give_back(said(&error)))
            }
        }
    }

    /// The pod as it is after somebody else wrote; it must ask for the same.
    async fn again(&self, before: Fetched) -> Result<Fetched, String> {
        let now = fetch(self.shared, self.asked).await.map_err(|why| self.give_back(why))?;
        let name = &self.asked.pod_name;
        if let Some(node) = &now.pod.node {
            return Err(
                self.give_back(format!("pod {name} was bound to node {node} by somebody else"))
            );
        }
        if ask::request(&now.pod) != ask::request(&before.pod) {
            return Err(
                self.give_back(format!("pod {name} asks for something else by now; try again"))
            );
        }
        Ok(now)
    }

    /// After a Binding of which nobody knows whether it was made.
    async fn look(&self, pod: &Pod, error: &WriteError) -> Result<(), String> {
        match (self.shared.binder.pod(&pod.namespace, &pod.name).await, error) {
            (Ok(Some(now)), _)
                if now.pod.uid == pod.uid && now.pod.node.as_ref() == Some(&self.asked.node) =>
            {
                self.bound();
                Ok(())
            }
            (Ok(Some(now)), _) if now.pod.uid != pod.uid || now.pod.node.is_some() => {
                Err(self.give_back(said(error)))
            }
            (Ok(None), _) => Err(self.give_back(said(error))),
            (Ok(Some(_)), WriteError::Conflict(_)) => {
                self.take_off(pod).await;
                Err(self.give_back(said(error)))
            }
            _ => Err(format!("{}; its memory is kept for it meanwhile", error.cause().line())),
        }
    }

    fn still_leads(&self) -> Result<(), String> {
        if self.shared.leads() {
            return Ok(());
        }
        Err("this replica has lost the lease while it was binding; try again".to_owned())
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

    /// Whoever reads the pod next need not wait for the end of their time. They end by themselves too.
    async fn take_off(&self, pod: &Pod) {
        let none: BTreeMap<_, _> =
            Placed::keys().into_iter().map(|key| (key.to_owned(), None)).collect();
        if let Err(error) = self.shared.binder.annotate(pod, None, &none).await {
            log::debug!(pod = pod.name.as_str(), error = error.cause().line().as_str(); "annotations stay until their time is over");
        }
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
