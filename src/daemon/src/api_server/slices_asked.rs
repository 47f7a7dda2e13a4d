//! Which sizes of slices are offered because pods ask for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpsgate_kubernetes::{Pod, Pods, SliceSize};
use mpsgate_node::slice_sizes::Wish;

/// How long a size is served that nobody asks for any more.
const KEPT: Duration = Duration::from_secs(10 * 60);

/// Sizes that pods asked for, by namespace.
pub(crate) type Wanted = BTreeMap<SliceSize, Seen>;

/// When a size was wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// Since when without a break.
    since: Instant,
    last: Instant,
}

/// What pods of this node have in their limits that have not ended.
pub(crate) fn in_use(pods: &Pods) -> BTreeSet<SliceSize> {
    let sizes = |pod: &Arc<Pod>| {
        let limits = pod.containers.iter().filter_map(|container| container.limits.as_ref().ok());
        let sizes = limits.flat_map(|limits| limits.slices.keys().copied());
        sizes.map(|gib| SliceSize { namespace: pod.namespace.clone(), gib }).collect::<Vec<_>>()
    };
    pods.iter().filter(|pod| !pod.finished).flat_map(sizes).collect()
}
/// The sizes of `wanted` that are offered now, after what is bound and asked for has been noted in
/// it.
pub(super) fn offered(
    wanted: &mut Wanted,
    pods: &Pods,
    asked: BTreeSet<SliceSize>,
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
    mpsgate_node::slice_sizes::offered(&wishes, largest_gib)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_kubernetes::Limits;
    use mpsgate_model::Kind;

    use super::*;
    use crate::pods::tests::pod;

    /// A pod of one container with these slices, of one GiB each.
    fn slicing(namespace: &str, uid: &str, sizes: &[u64]) -> Pod {
        let mut pod = pod(uid, &[("main", Kind::Main, 0)]);
        pod.namespace = namespace.to_owned();
        let slices = sizes.iter().map(|gib| (*gib, 1)).collect();
        pod.containers.first_mut().unwrap().limits = Ok(Limits { slices, ..Limits::default() });
        pod
    }

    fn asks(namespace: &str, sizes: impl IntoIterator<Item = u64>) -> BTreeSet<SliceSize> {
        sizes.into_iter().map(|gib| SliceSize { namespace: namespace.to_owned(), gib }).collect()
    }

    #[test]
    fn a_pending_pod_takes_no_size_from_a_pod_that_runs_here() {
        let (start, mut wanted) = (Instant::now(), Wanted::new());
        let honest = [slicing("team", "honest", &[40])].into_iter().collect::<Pods>();
        let mut at = |seconds, pods: &Pods, asked| {
            offered(&mut wanted, pods, asked, Some(79), start + Duration::from_secs(seconds))
        };
        assert_eq!(at(0, &Pods::default(), asks("team", [40])), [40]);
        assert_eq!(at(1, &honest, BTreeSet::new()), [40]);
        for second in (2..4000).step_by(100) {
            let sizes = at(second, &honest, asks("attacker", 1..=79));
            assert_eq!(sizes, [40, 1, 2, 3, 4], "at {second} s");
        }
        // Between waiting and bound it is seen nowhere.
        assert_eq!(at(4000, &Pods::default(), asks("other", [50])).first(), Some(&50));
        assert!(at(4010, &Pods::default(), asks("attacker", 1..=79)).contains(&50));
        // A pod that has ended uses nothing.
        let mut ended = slicing("late", "ended", &[60]);
        ended.finished = true;
        let ended = [ended].into_iter().collect::<Pods>();
        assert!(!at(4020, &ended, BTreeSet::new()).contains(&60));
        assert_eq!(at(6000, &Pods::default(), BTreeSet::new()), [] as [u64; 0], "nobody wants any");
    }
}
