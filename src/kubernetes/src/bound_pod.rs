//! What the pods of this node may still take: a pure function of what the API server has bound to
//! it.
//!
//! Kubernetes' own sum (`resourcehelpers.PodRequests`): a pod needs the larger of what its main
//! containers need together, and of what each init container needs while it runs; a sidecar counts
//! from its place in the order on.

use std::collections::BTreeMap;

use mpsgate_model::Kind;

use crate::{Lifecycle, Limits, Pod, Pods};

/// What one pod may still take, running containers included: what their grants hold is the caller's
/// to subtract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundPod {
    /// The pod's uid.
    pub uid: String,
    /// Of a static pod: the uid that its containers carry.
    pub static_hash: Option<String>,
    /// What it needs at most at any moment from now on.
    pub request: Limits,
    /// What each of its containers that runs, or may run, is given; those without GPU are left out.
    pub containers: Vec<(String, Kind, Limits)>,
}

/// The pods that may still take something, by uid.
#[must_use]
pub fn bound_pods(pods: &Pods) -> Vec<BoundPod> {
    let mut all: Vec<BoundPod> = pods.iter().filter_map(|pod| bound_pod(pod)).collect();
    all.sort_by(|a, b| a.uid.cmp(&b.uid));
    all
}

/// What `pod` may still take; `None` where that is nothing.
fn bound_pod(pod: &Pod) -> Option<BoundPod> {
    if pod.finished {
        return None;
    }
    let mut containers = Vec::new();
    // Of those that may run: sidecars so far, the most while an init container runs, main ones
    // together.
    let (mut sidecars, mut most, mut main) =
        (Limits::default(), Limits::default(), Limits::default());
    for container in &pod.containers {
        let may_run = match container.lifecycle {
            Lifecycle::Running => true,
            // A pod that is being deleted starts nothing.
            Lifecycle::Waiting | Lifecycle::Between => !pod.deleting,
            Lifecycle::Ended => false,
        };
        if !may_run {
            continue;
        }
        // A limit that cannot be counted gives nothing; its container is refused.
        let Some(limits) = container.limits.as_ref().ok().filter(|limits| !limits.is_empty())
        else {
            continue;
        };
        containers.push((container.name.clone(), container.kind, limits.clone()));
        match container.kind {
            Kind::Main => main.add(limits),
            Kind::Sidecar => {
                sidecars.add(limits);
                most.raise(&sidecars);
            }
            Kind::Init => {
                let mut while_it_runs = sidecars.clone();
                while_it_runs.add(limits);
                most.raise(&while_it_runs);
            }
        }
    }
    if containers.is_empty() {
        return None;
    }
    let mut request = main;
    request.add(&sidecars);
    request.raise(&most);
    Some(BoundPod {
        uid: pod.uid.clone(),
        static_hash: pod.static_hash.clone(),
        request,
        containers,
    })
}

impl Limits {
    /// Each resource together.
    fn add(&mut self, other: &Self) {
        self.each(other, u64::saturating_add);
    }

    /// Of each resource the larger.
    fn raise(&mut self, other: &Self) {
        self.each(other, u64::max);
    }

    fn each(&mut self, other: &Self, with: impl Fn(u64, u64) -> u64) {
        self.gpu_mem = with(self.gpu_mem, other.gpu_mem);
        self.gpu_count = with(self.gpu_count, other.gpu_count);
        let counts = |mine: &mut BTreeMap<u64, u64>, others: &BTreeMap<u64, u64>| {
            for (number, count) in others {
                let mine = mine.entry(*number).or_default();
                *mine = with(*mine, *count);
            }
        };
        counts(&mut self.slices, &other.slices);
        counts(&mut self.units, &other.units);
    }
}

#[cfg(test)]
mod tests;
