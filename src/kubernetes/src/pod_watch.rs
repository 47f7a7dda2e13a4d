//! The pods of this node, watched.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::cluster_watch::{relay, uid};
use crate::follow::follow;
use crate::listen::Lists;
use crate::objects::Objects;
use crate::read::{Found, part};
use crate::wire::WirePod;
use crate::{Change, Pod, Pods, Settings, State};

/// The pods that are bound to this node, as they change, and the future that follows them. Nothing
/// happens until somebody polls it; dropping it ends the watch.
pub fn pods(
    settings: Settings,
) -> (watch::Receiver<Arc<Pods>>, impl Future<Output = Infallible> + Send) {
    let (publish, receive) = watch::channel(Arc::<Pods>::default());
    let future = async move {
        let what = format!("the pods of node {}", settings.node);
        let fields = format!("spec.nodeName={}", settings.node);
        let mut shown = Pods::default();
        let told = relay(of, uid, |change| {
            if shown.told(change) {
                publish.send_replace(Arc::new(shown.clone()));
            }
        });
        follow(&settings, Lists::Cached, &what, &fields, Objects::<WirePod>::all, told).await
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

/// A pod, or the uid of one of which nothing counts, where that can be read.
fn of(found: Found<WirePod>) -> Option<Result<Pod, Option<String>>> {
    let unread = found.as_ref().err().map(|unread| Err(unread.meta.uid.clone()));
    part(found).and_then(Pod::reduce).map(Ok).or(unread)
}

impl Pods {
    /// Whether they are others now. The old pods stay shown until a new list is whole.
    fn told(&mut self, change: Change<Result<Pod, Option<String>>>) -> bool {
        match change {
            Change::Listing => return false,
            Change::Listed(all) => {
                let left_out = std::mem::take(&mut self.left_out);
                *self = Self::default();
                (self.left_out, self.state) = (left_out, State::Current);
                for one in all {
                    match one {
                        Ok(pod) => self.put(pod),
                        Err(uid) => drop(self.put_unread(uid)),
                    }
                }
            }
            Change::Put(Err(uid)) => return self.put_unread(uid),
            // Most changes of a pod are none of ours.
            Change::Put(Ok(pod)) if self.get(&pod.uid).is_some_and(|old| **old == pod) => {
                return false;
            }
            Change::Put(Ok(pod)) => self.put(pod),
            Change::Gone(uid) => self.remove(&uid),
            Change::LeftOut(all) => self.left_out = all,
            Change::Lost(error) => self.state.fail(&error),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::Error;
    use crate::follow::Told;
    use crate::read::read;

    /// What is published.
    fn cache() -> impl FnMut(Told<WirePod>) -> Option<Pods> {
        let mut shown = Pods::default();
        relay(of, uid, move |change| shown.told(change).then(|| shown.clone()))
    }

    fn pod(uid: &str) -> WirePod {
        serde_json::from_value(json!({"metadata": {"uid": uid, "name": uid}})).expect("a pod")
    }

    fn init(uid: &str) -> Event<Found<WirePod>> {
        Event::InitApply(Ok(pod(uid)))
    }

    fn uids(pods: &Pods) -> Vec<&str> {
        let mut uids: Vec<_> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        uids.sort_unstable();
        uids
    }

    #[test]
    fn a_list_replaces_what_was_known_only_when_it_is_whole() {
        let mut cache = cache();
        for event in [Event::Init, init("a"), init("b")] {
            assert!(cache(Told::Kube(event)).is_none());
        }
        let first = cache(Told::Kube(Event::InitDone)).expect("published");
        assert_eq!(uids(&first), ["a", "b"]);
        assert!(first.state.is_current());

        let lost = || Told::Lost(Error::NoNode { node: "n".to_owned() });
        let stale = cache(lost()).expect("published");
        assert_eq!(uids(&stale), ["a", "b"]);
        let State::Stale { since, .. } = stale.state else { panic!("{:?}", stale.state) };

        assert!(cache(Told::Kube(Event::Init)).is_none());
        assert!(cache(Told::Kube(init("c"))).is_none());
        // Lost again in the middle of a list: the half of it counts for nothing.
        let stale = cache(lost()).expect("published");
        assert_eq!(uids(&stale), ["a", "b"]);
        assert!(matches!(stale.state, State::Stale { since: again, .. } if again == since));

        cache(Told::Kube(Event::Init));
        cache(Told::Kube(init("b")));
        let second = cache(Told::Kube(Event::InitDone)).expect("published");
        assert_eq!(uids(&second), ["b"]);
        assert!(second.state.is_current());
    }

    #[test]
    fn a_change_that_is_none_of_ours_is_not_published() {
        let mut cache = cache();
        assert!(cache(Told::Kube(Event::Apply(Ok(pod("a"))))).is_some());
        assert!(cache(Told::Kube(Event::Apply(Ok(pod("a"))))).is_none());
        let gone = cache(Told::Kube(Event::Delete(Ok(pod("a"))))).expect("published");
        assert!(gone.is_empty());
    }

    #[test]
    fn a_pod_that_can_be_read_no_more_counts_with_what_it_asks_for_or_not_at_all() {
        let with = |label: serde_json::Value, resource: &str| {
            let limits = json!({"limits": {resource: "7"}});
            let containers = [json!({"name": "c", "resources": limits})];
            let metadata =
                json!({"uid": "u", "name": "p", "namespace": "n", "labels": {"l": label}});
            let pod = json!({"metadata": metadata, "spec": {"containers": containers}});
            read::<WirePod>(&pod.to_string())
        };
        let mut cache = cache();
        let before = with(json!("x"), "aliyun.com/gpu-mem");
        assert!(before.is_ok());
        assert_eq!(uids(&cache(Told::Kube(Event::Apply(before))).expect("published")), ["u"]);
        let bad = with(json!(1), "aliyun.com/gpu-mem");
        let left = bad.as_ref().expect_err("unread").left.clone();
        assert_eq!((left.kind, left.name.as_str(), left.counts), ("Pod", "n/p", true));
        assert!(cache(Told::Kube(Event::Apply(bad))).is_none(), "it asks for the same");
        let shown = cache(Told::LeftOut(vec![left])).expect("published");
        assert_eq!((uids(&shown), shown.left_out.len()), (vec!["u"], 1));
        // Without a word of ours nothing of it counts.
        let bad = with(json!(1), "cpu");
        assert!(!bad.as_ref().expect_err("unread").left.counts);
        let shown = cache(Told::Kube(Event::Apply(bad))).expect("published");
        assert!(shown.is_empty());
    }

    #[test]
    fn a_pod_of_which_nothing_counts_may_be_there_until_it_is_gone() {
        let odd = |metadata: &str| read::<WirePod>(&format!(r#"{{"metadata":{metadata}}}"#));
        let unread = |uid: &str| odd(&format!(r#"{{"uid":"{uid}","labels":7}}"#));
        let mut cache = cache();
        cache(Told::Kube(Event::Init));
        cache(Told::Kube(Event::InitApply(unread("a"))));
        cache(Told::Kube(init("b")));
        let listed = cache(Told::Kube(Event::InitDone)).expect("published");
        assert_eq!(uids(&listed), ["b"]);
        assert_eq!(["a", "b", "c"].map(|uid| listed.may_be(uid)), [true, false, false]);
        assert!(cache(Told::Kube(Event::Apply(unread("a")))).is_none(), "it is known");
        let changed = cache(Told::Kube(Event::Apply(unread("b")))).expect("published");
        assert_eq!((changed.len(), changed.may_be("b")), (0, true));
        let mended = cache(Told::Kube(Event::Apply(Ok(pod("b"))))).expect("published");
        assert!(!mended.may_be("b") && mended.get("b").is_some());
        let gone = cache(Told::Kube(Event::Delete(unread("a")))).expect("published");
        assert!(!gone.may_be("a"));
        // Whose uid is not known either may be any, until it is known what there is.
        let unnamed = odd(r#"{"uid":7}"#);
        let changed = cache(Told::Kube(Event::Apply(unnamed.clone()))).expect("published");
        assert!(changed.may_be("c"));
        assert!(cache(Told::Kube(Event::Delete(unnamed))).is_none());
        cache(Told::Kube(Event::Init));
        let listed = cache(Told::Kube(Event::InitDone)).expect("published");
        assert!(!listed.may_be("c"));
    }

    #[test]
    fn before_the_first_list_a_failure_says_why_nothing_is_known() {
        let mut cache = cache();
        let pods = cache(Told::Lost(Error::NoNode { node: "n".to_owned() })).expect("published");
        assert!(
            matches!(&pods.state, State::Failing { error, .. } if error.contains("knows no node n"))
        );
        assert!(!pods.state.was_synced());
    }
}
