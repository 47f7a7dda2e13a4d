//! Sizes of slices that pods ask for before any node is theirs: a node offers those that it can.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use crate::cluster_watch::{relay, uid};
use crate::follow::follow;
use crate::listen::Lists;
use crate::objects::Objects;
use crate::read::{Found, part};
use crate::wire::WirePod;
use crate::{Change, Pod, Settings};

/// A size of slices that somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SliceSize {
    /// The namespace of the pods that do.
    pub namespace: String,
    /// GiB.
    pub gib: u64,
}

/// Who asks for which slices (`nvidia.com/gpu-<N>gb`), of the pods without a node that could come
/// to one with these labels, and the future that follows them while there are labels: it is a watch
/// of the whole cluster's waiting pods. Dropping the future ends it.
///
/// A pod with scheduling gates comes nowhere yet, and one whose nodeSelector does not fit never
/// comes here. Affinity, taints and other schedulers are not looked at: who decides over them is
/// the pod's author, so nothing would be kept out.
pub fn slices_asked(
    settings: Settings,
    mut on: watch::Receiver<Option<BTreeMap<String, String>>>,
) -> (watch::Receiver<BTreeSet<SliceSize>>, impl Future<Output = Infallible> + Send) {
    let (publish, receive) = watch::channel(BTreeSet::new());
    let future = async move {
        loop {
            if on.wait_for(Option::is_some).await.is_err() {
                // Nobody can ever switch it on.
                std::future::pending::<()>().await;
            }
            let waiting = Mutex::new(Waiting::default());
            let labels = on.clone();
            let show = |waiting: &Waiting| {
                let asked = labels
                    .borrow()
                    .as_ref()
                    .map(|labels| waiting.asked(labels))
                    .unwrap_or_default();
                publish.send_if_modified(|shown| {
                    let differs = *shown != asked;
                    *shown = asked;
                    differs
                });
            };
            let told = relay(of, uid, |change| {
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if waiting.told(change) {
                    show(&waiting);
                }
            });
            let mut follow = std::pin::pin!(follow(
                &settings,
                Lists::Cached,
                "pods without a node",
                "spec.nodeName=",
                Objects::<WirePod>::all,
                told,
            ));
            loop {
                tokio::select! {
                    never = &mut follow => match never {},
                    changed = on.changed() => {
                        if changed.is_err() {
                            // What was said last holds.
                            follow.as_mut().await;
                        }
                        if on.borrow_and_update().is_none() {
                            break;
                        }
                        show(&waiting.lock().unwrap_or_else(PoisonError::into_inner));
                    }
                }
            }
            publish.send_replace(BTreeSet::new());
        }
    };
    (receive, future)
}

/// By the pod's uid, what it asks for; pods that ask for nothing are not kept.
#[derive(Default)]
struct Waiting(HashMap<String, WaitingPod>);

/// What one pod asks for.
#[derive(Default)]
struct WaitingPod {
    namespace: String,
    sizes: BTreeSet<u64>,
    selector: BTreeMap<String, String>,
}

impl Waiting {
    /// Whether what is shown may have changed.
    fn told(&mut self, change: Change<(String, WaitingPod)>) -> bool {
        match change {
            Change::Listed(all) => {
                self.0 = all.into_iter().filter(|(_, asks)| !asks.sizes.is_empty()).collect();
                true
            }
            Change::Put((uid, asks)) => {
                if asks.sizes.is_empty() {
                    self.0.remove(&uid);
                } else {
                    self.0.insert(uid, asks);
                }
                true
            }
            // Bound to a node, deleted, or not to be read any more.
            Change::Gone(uid) => self.0.remove(&uid).is_some(),
            Change::Listing | Change::LeftOut(_) | Change::Lost(_) => false,
        }
    }

    /// Of a node with these labels.
    fn asked(&self, labels: &BTreeMap<String, String>) -> BTreeSet<SliceSize> {
        let fits = |asks: &&WaitingPod| {
            asks.selector.iter().all(|(label, value)| labels.get(label) == Some(value))
        };
        let asked = self.0.values().filter(fits).flat_map(|asks| {
            let one = |gib: &u64| SliceSize { namespace: asks.namespace.clone(), gib: *gib };
            asks.sizes.iter().map(one)
        });
        asked.collect()
    }
}

fn of(pod: Found<WirePod>) -> Option<(String, WaitingPod)> {
    part(pod).and_then(asks)
}

fn asks(mut pod: WirePod) -> Option<(String, WaitingPod)> {
    let selector = std::mem::take(&mut pod.spec.node_selector);
    let gated = !pod.spec.scheduling_gates.is_empty();
    let pod = Pod::reduce(pod)?;
    let limits = pod.containers.iter().filter_map(|container| container.limits.as_ref().ok());
    let sizes = limits.flat_map(|limits| limits.slices.keys().copied());
    let comes = !(gated || pod.finished || pod.deleting);
    let sizes = if comes { sizes.collect() } else { BTreeSet::new() };
    Some((pod.uid, WaitingPod { namespace: pod.namespace, sizes, selector }))
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::Error;
    use crate::follow::Told;
    use crate::read::read;

    fn pod(uid: &str, slices: &[u64]) -> WirePod {
        let limits: serde_json::Map<_, _> =
            slices.iter().map(|n| (format!("nvidia.com/gpu-{n}gb"), json!("1"))).collect();
        let containers = [json!({"name": "c", "resources": {"limits": limits}})];
        serde_json::from_value(
            json!({"metadata": {"uid": uid}, "spec": {"containers": containers}}),
        )
        .expect("a pod")
    }

    fn sizes(waiting: &Mutex<Waiting>) -> Vec<u64> {
        let asked = waiting.lock().expect("whole").asked(&BTreeMap::new());
        asked.into_iter().map(|asked| asked.gib).collect()
    }

    #[test]
    fn sizes_are_asked_for_while_a_pod_waits_that_wants_them() {
        let waiting = Mutex::new(Waiting::default());
        let mut tell = relay(of, uid, |change| waiting.lock().expect("whole").told(change));
        for event in [
            Event::Init,
            Event::InitApply(Ok(pod("a", &[10]))),
            Event::InitApply(Ok(pod("b", &[]))),
        ] {
            assert!(!tell(Told::Kube(event)));
        }
        assert!(tell(Told::Kube(Event::InitDone)));
        assert_eq!(sizes(&waiting), [10]);
        assert!(tell(Told::Kube(Event::Apply(Ok(pod("c", &[20, 10]))))));
        assert_eq!(sizes(&waiting), [10, 20]);
        assert!(!tell(Told::Lost(Error::NoNode { node: "n".to_owned() })));
        assert_eq!(sizes(&waiting), [10, 20], "until the next list is whole");
        assert!(tell(Told::Kube(Event::Delete(Ok(pod("c", &[]))))), "it has a node");
        assert!(!tell(Told::Kube(Event::Delete(Ok(pod("b", &[]))))));
        assert_eq!(sizes(&waiting), [10]);
    }

    #[test]
    fn a_pod_that_can_be_read_no_more_asks_for_nothing() {
        let waiting = Mutex::new(Waiting::default());
        let mut tell = relay(of, uid, |change| waiting.lock().expect("whole").told(change));
        assert!(tell(Told::Kube(Event::Apply(Ok(pod("a", &[10]))))));
        let unread = |uid: &str| {
            let json = json!({"metadata": {"uid": uid, "labels": 7}});
            Told::Kube(Event::Apply(read::<WirePod>(&json.to_string())))
        };
        assert!(!tell(unread("b")));
        assert_eq!(sizes(&waiting), [10]);
        assert!(tell(unread("a")));
        assert!(sizes(&waiting).is_empty());
    }

    #[test]
    fn only_pods_that_could_come_here_ask_for_anything() {
        let labels = BTreeMap::from([("pool".to_owned(), "a".to_owned())]);
        for (name, spec, asks) in [
            ("any node", json!({}), true),
            ("gated", json!({"schedulingGates": [{"name": "x"}]}), false),
            ("gates that are open", json!({"schedulingGates": []}), true),
            ("no gates", json!({"schedulingGates": null, "nodeSelector": null}), true),
            ("this pool", json!({"nodeSelector": {"pool": "a"}}), true),
            ("another pool", json!({"nodeSelector": {"pool": "b"}}), false),
            ("a label more", json!({"nodeSelector": {"pool": "a", "zone": "z"}}), false),
        ] {
            let mut spec = spec;
            let limits = json!({"nvidia.com/gpu-10gb": "1"});
            spec["containers"] = json!([{"name": "c", "resources": {"limits": limits}}]);
            let pod = json!({"metadata": {"uid": "u", "namespace": "n"}, "spec": spec});
            let mut waiting = Waiting::default();
            let pod = of(read(&pod.to_string())).expect("with a uid");
            assert!(waiting.told(Change::Put(pod)));
            let wanted: Vec<SliceSize> = asks
                .then(|| SliceSize { namespace: "n".to_owned(), gib: 10 })
                .into_iter()
                .collect();
            assert_eq!(waiting.asked(&labels).into_iter().collect::<Vec<_>>(), wanted, "{name}");
        }
    }
}
