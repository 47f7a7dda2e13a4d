//! The pods of this node, watched.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use crate::follow::{Told, follow};
use crate::listen::Lists;
use crate::wire::WirePod;
use crate::{Pod, Pods, Settings, State};

/// The pods that are bound to this node, as they change, and the future that follows them. Nothing
/// happens until somebody polls it; dropping it ends the watch.
pub fn pods(
    settings: Settings,
) -> (watch::Receiver<Arc<Pods>>, impl Future<Output = Infallible> + Send) {
    let (publish, receive) = watch::channel(Arc::<Pods>::default());
    let future = async move {
        let what = format!("the pods of node {}", settings.node);
        let fields = format!("spec.nodeName={}", settings.node);
        let mut cache = PodCache::default();
        let told = |told| {
            if let Some(pods) = cache.told(told) {
                publish.send_replace(Arc::new(pods));
            }
        };
        follow(&settings, Lists::Cached, &what, &fields, Api::<WirePod>::all, told).await
    };
    (receive, future)
}

/// Waits until `uid` is among the pods, at most for `patience`: the kubelet may have heard of a pod
/// a moment before us. The last snapshot in any case.
pub async fn wait_for_pod(
    pods: &mut watch::Receiver<Arc<Pods>>,
    uid: &str,
    patience: Duration,
) -> Arc<Pods> {
    let known = pods.wait_for(|pods| pods.get(uid).is_some());
    let found = tokio::time::timeout(patience, known).await;
    if let Ok(Ok(pods)) = found {
        return Arc::clone(&pods);
    }
    drop(found);
    Arc::clone(&pods.borrow())
}

/// What is published, and the list that is being received. The old pods stay shown until the new
/// list is whole.
#[derive(Default)]
struct PodCache {
    shown: Pods,
    coming: Option<Pods>,
}

impl PodCache {
    /// The pods as they are now, where that changed.
    fn told(&mut self, told: Told<WirePod>) -> Option<Pods> {
        match told {
            Told::Kube(Event::Init) => {
                self.coming = Some(Pods::default());
                return None;
            }
            Told::Kube(Event::InitApply(pod)) => {
                if let (Some(pods), Some(pod)) = (&mut self.coming, Pod::reduce(pod)) {
                    pods.put(pod);
                }
                return None;
            }
            Told::Kube(Event::InitDone) => {
                self.shown = self.coming.take().unwrap_or_default();
                self.shown.state = State::Current;
            }
            Told::Kube(Event::Apply(pod)) => {
                let pod = Pod::reduce(pod)?;
                // Most changes of a pod are none of ours.
                if self.shown.get(&pod.uid).is_some_and(|old| **old == pod) {
                    return None;
                }
                self.shown.put(pod);
            }
            Told::Kube(Event::Delete(pod)) => self.shown.remove(&pod.metadata.uid?),
            Told::Lost(error) => {
                self.coming = None;
                self.shown.state.fail(&error);
            }
        }
        Some(self.shown.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Error;

    fn pod(uid: &str) -> WirePod {
        serde_json::from_value(json!({"metadata": {"uid": uid, "name": uid}})).expect("a pod")
    }

    fn uids(pods: &Pods) -> Vec<&str> {
        let mut uids: Vec<_> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        uids.sort_unstable();
        uids
    }

    #[test]
    fn a_list_replaces_what_was_known_only_when_it_is_whole() {
        let mut cache = PodCache::default();
        for event in [Event::Init, Event::InitApply(pod("a")), Event::InitApply(pod("b"))] {
            assert!(cache.told(Told::Kube(event)).is_none());
        }
        let first = cache.told(Told::Kube(Event::InitDone)).expect("published");
        assert_eq!(uids(&first), ["a", "b"]);
        assert!(first.state.is_current());

        let lost = || Told::Lost(Error::NoNode { node: "n".to_owned() });
        let stale = cache.told(lost()).expect("published");
        assert_eq!(uids(&stale), ["a", "b"]);
        let State::Stale { since, .. } = stale.state else { panic!("{:?}", stale.state) };

        assert!(cache.told(Told::Kube(Event::Init)).is_none());
        assert!(cache.told(Told::Kube(Event::InitApply(pod("c")))).is_none());
        // Lost again in the middle of a list: the half of it counts for nothing.
        let stale = cache.told(lost()).expect("published");
        assert_eq!(uids(&stale), ["a", "b"]);
        assert!(matches!(stale.state, State::Stale { since: again, .. } if again == since));

        cache.told(Told::Kube(Event::Init));
        cache.told(Told::Kube(Event::InitApply(pod("b"))));
        let second = cache.told(Told::Kube(Event::InitDone)).expect("published");
        assert_eq!(uids(&second), ["b"]);
        assert!(second.state.is_current());
    }

    #[test]
    fn a_change_that_is_none_of_ours_is_not_published() {
        let mut cache = PodCache::default();
        assert!(cache.told(Told::Kube(Event::Apply(pod("a")))).is_some());
        assert!(cache.told(Told::Kube(Event::Apply(pod("a")))).is_none());
        let gone = cache.told(Told::Kube(Event::Delete(pod("a")))).expect("published");
        assert!(gone.is_empty());
    }

    #[test]
    fn before_the_first_list_a_failure_says_why_nothing_is_known() {
        let mut cache = PodCache::default();
        let pods =
            cache.told(Told::Lost(Error::NoNode { node: "n".to_owned() })).expect("published");
        assert!(
            matches!(&pods.state, State::Failing { error, .. } if error.contains("knows no node n"))
        );
        assert!(!pods.state.was_synced());
    }
}
