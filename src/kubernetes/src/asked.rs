//! Sizes of slices that pods ask for before any node is theirs: a node offers those that it can.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;

use kube::Api;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use crate::follow::{Lists, Told, follow};
use crate::wire::WirePod;
use crate::{Pod, Settings};

/// GiB of the slices (`nvidia.com/gpu-<N>gb`) that pods without a node ask for, and the future that follows them while
/// `on` says so: it is a watch of the whole cluster's waiting pods. Dropping the future ends it.
pub fn slices_asked(
    settings: Settings,
    mut on: watch::Receiver<bool>,
) -> (watch::Receiver<BTreeSet<u64>>, impl Future<Output = Infallible> + Send) {
    let (publish, receive) = watch::channel(BTreeSet::new());
    let future = async move {
        loop {
            if on.wait_for(|on| *on).await.is_err() {
                // Nobody can ever switch it on.
                std::future::pending::<()>().await;
            }
            let mut waiting = Waiting::default();
            let told = |told| {
                if waiting.told(told) {
                    publish.send_if_modified(|shown| {
                        let sizes = waiting.sizes();
                        let differs = *shown != sizes;
                        *shown = sizes;
                        differs
                    });
                }
            };
            let follow = follow(
                &settings,
                Lists::Cached,
                "pods without a node",
                "spec.nodeName=",
                Api::<WirePod>::all,
                told,
            );
            tokio::select! {
                never = follow => match never {},
                _ = on.wait_for(|on| !*on) => {}
            }
            publish.send_replace(BTreeSet::new());
        }
    };
    (receive, future)
}

/// By the pod's uid, what it asks for; pods that ask for nothing are not kept.
#[derive(Default)]
struct Waiting {
    shown: HashMap<String, BTreeSet<u64>>,
    coming: Option<HashMap<String, BTreeSet<u64>>>,
}

impl Waiting {
    /// Whether what is shown may have changed.
    fn told(&mut self, told: Told<WirePod>) -> bool {
        match told {
            Told::Kube(Event::Init) => self.coming = Some(HashMap::new()),
            Told::Kube(Event::InitApply(pod)) => {
                if let (Some(coming), Some((uid, sizes))) = (&mut self.coming, asks(pod)) {
                    put(coming, uid, sizes);
                }
            }
            Told::Kube(Event::InitDone) => {
                self.shown = self.coming.take().unwrap_or_default();
                return true;
            }
            Told::Kube(Event::Apply(pod)) => {
                let Some((uid, sizes)) = asks(pod) else { return false };
                put(&mut self.shown, uid, sizes);
                return true;
            }
            // Bound to a node, or deleted.
            Told::Kube(Event::Delete(pod)) => {
                return pod.metadata.uid.is_some_and(|uid| self.shown.remove(&uid).is_some());
            }
            Told::Lost(_) => self.coming = None,
        }
        false
    }

    fn sizes(&self) -> BTreeSet<u64> {
        self.shown.values().flatten().copied().collect()
    }
}

fn put(all: &mut HashMap<String, BTreeSet<u64>>, uid: String, sizes: BTreeSet<u64>) {
    if sizes.is_empty() {
        all.remove(&uid);
    } else {
        all.insert(uid, sizes);
    }
}

fn asks(pod: WirePod) -> Option<(String, BTreeSet<u64>)> {
    let pod = Pod::reduce(pod)?;
    let limits = pod.containers.iter().filter_map(|container| container.limits.as_ref().ok());
    let sizes = limits.flat_map(|limits| limits.slices.keys().copied());
    let sizes = if pod.finished || pod.deleting { BTreeSet::new() } else { sizes.collect() };
    Some((pod.uid, sizes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Error;

    fn pod(uid: &str, slices: &[u64]) -> WirePod {
        let limits: serde_json::Map<_, _> =
            slices.iter().map(|n| (format!("nvidia.com/gpu-{n}gb"), json!("1"))).collect();
        let containers = [json!({"name": "c", "resources": {"limits": limits}})];
        serde_json::from_value(
            json!({"metadata": {"uid": uid}, "spec": {"containers": containers}}),
        )
        .expect("a pod")
    }

    fn sizes(waiting: &Waiting) -> Vec<u64> {
        waiting.sizes().into_iter().collect()
    }

    #[test]
    fn sizes_are_asked_for_while_a_pod_waits_that_wants_them() {
        let mut waiting = Waiting::default();
        for event in
            [Event::Init, Event::InitApply(pod("a", &[10])), Event::InitApply(pod("b", &[]))]
        {
            assert!(!waiting.told(Told::Kube(event)));
        }
        assert!(waiting.told(Told::Kube(Event::InitDone)));
        assert_eq!(sizes(&waiting), [10]);
        assert!(waiting.told(Told::Kube(Event::Apply(pod("c", &[20, 10])))));
        assert_eq!(sizes(&waiting), [10, 20]);
        assert!(!waiting.told(Told::Lost(Error::NoNode { node: "n".to_owned() })));
        assert_eq!(sizes(&waiting), [10, 20], "until the next list is whole");
        assert!(waiting.told(Told::Kube(Event::Delete(pod("c", &[])))), "it has a node");
        assert!(!waiting.told(Told::Kube(Event::Delete(pod("b", &[])))));
        assert_eq!(sizes(&waiting), [10]);
    }
}
