//! What kube-scheduler asks and is answered: bytes in, JSON out, the ledger between them. No I/O.

mod wire;

use mpsgate_kubernetes::Pod;
use mpsgate_policy::cluster::{self, Ledger};

use self::wire::{Args, Empty, MetaPod, Nodes, Preemption, Victims, name_of};
pub(crate) use self::wire::{Binding, Bound, Filtered, HostPriority, Preempted};
use crate::ask;

/// A question that cannot be read.
type Unread = serde_json::Error;

/// Which of the nodes have a card for the pod. Always an answer: kube-scheduler shows what is in `Error`.
pub(crate) fn filter(ledger: &Ledger, body: &[u8]) -> Filtered {
    try_filter(ledger, body)
        .unwrap_or_else(|error| refused(&format!("the request cannot be read: {error}")))
}

/// An answer that fails the pod's attempt.
pub(crate) fn refused(why: &str) -> Filtered {
    Filtered { error: why.to_owned(), ..Filtered::default() }
}

fn try_filter(ledger: &Ledger, body: &[u8]) -> Result<Filtered, Unread> {
    let Args { pod, nodes, node_names } = serde_json::from_slice(body)?;
    let pod = Pod::parse(pod.get())?;
    let mut result = Filtered::default();
    let asked = ask::request(&pod);
    let candidate = asked.map(|request| request.map(|request| ask::candidate(&pod, request)));
    let mut fits = |name: &str| {
        let (why, unresolvable) = match &candidate {
            Ok(None) => return true,
            Err(why) => (why.clone(), true),
            Ok(Some(candidate)) => match ledger.fits(name, candidate) {
                Ok(_) => return true,
                Err(reason) => (reason.text, reason.unresolvable),
            },
        };
        if unresolvable {
            result.failed_and_unresolvable_nodes.insert(name.to_owned(), why.clone());
        }
        // In both: a scheduler before 1.21 knows these alone and would show no reason, a later one lets the other win.
        result.failed_nodes.insert(name.to_owned(), why);
        false
    };
    let names = node_names.map(|mut names| {
        names.retain(|name| fits(name));
        names
    });
    let whole = nodes.map(|list| {
        let mut items = Vec::new();
        for node in list.items.unwrap_or_default() {
            if fits(&name_of(&node)?) {
                items.push(node);
            }
        }
        Ok(Nodes { metadata: Empty {}, items })
    });
    let whole = whole.transpose()?;
    (result.node_names, result.nodes) = (names, whole);
    Ok(result)
}

/// How well each node suits, 0 to 10.
pub(crate) fn prioritize(ledger: &Ledger, body: &[u8]) -> Result<Vec<HostPriority>, Unread> {
    let Args { pod, nodes, node_names } = serde_json::from_slice(body)?;
    let pod = Pod::parse(pod.get())?;
    let candidate = ask::request(&pod).ok().flatten().map(|request| ask::candidate(&pod, request));
    let items = nodes.and_then(|list| list.items).unwrap_or_default();
    let names = items.iter().map(|node| name_of(node)).collect::<Result<Vec<_>, _>>()?;
    let score = |host: String| {
        let score = candidate.as_ref().and_then(|candidate| ledger.score(&host, candidate));
        HostPriority { host, score: score.map_or(0, i64::from) }
    };
    Ok(node_names.unwrap_or_default().into_iter().chain(names).map(score).collect())
}

/// On which of the nodes the pod fits once the victims are gone.
pub(crate) fn preempt(ledger: &Ledger, body: &[u8]) -> Result<Preempted, Unread> {
    let Preemption { pod, victims, meta_victims } = serde_json::from_slice(body)?;
    let pod = Pod::parse(pod.get())?;
    let of_meta = meta_victims.unwrap_or_default().into_iter().filter_map(|(node, victims)| {
        let Victims { pods, pdb_violations } = victims?;
        let uids = pods.unwrap_or_default().into_iter().map(|pod| pod.uid).collect();
        Some((node, uids, pdb_violations))
    });
    let of_pods = victims.unwrap_or_default().into_iter().filter_map(|(node, victims)| {
        let Victims { pods, pdb_violations } = victims?;
        let uids = pods.unwrap_or_default().into_iter().map(|pod| pod.metadata.uid).collect();
        Some((node, uids, pdb_violations))
    });
    let candidate: Option<cluster::Pod> = match ask::request(&pod) {
        Ok(request) => request.map(|request| ask::candidate(&pod, request)),
        // Nobody's going helps.
        Err(_) => return Ok(Preempted::default()),
    };
    let fitting =
        of_meta.chain(of_pods).filter_map(|(node, uids, pdb_violations): (_, Vec<String>, _)| {
            let uids = match &candidate {
                None => uids,
                Some(candidate) => ledger.victims(&node, candidate, &uids)?,
            };
            let pods = Some(uids.into_iter().map(|uid| MetaPod { uid }).collect());
            Some((node, Victims { pods, pdb_violations }))
        });
    Ok(Preempted { node_name_to_meta_victims: fitting.collect() })
}

/// What is to be bound where.
pub(crate) fn binding(body: &[u8]) -> Result<Binding, Unread> {
    serde_json::from_slice(body)
}

/// Whatever comes is answered, and no answer names a node that was not asked for: what `tests/fuzz` holds it to.
#[doc(hidden)]
pub fn parse_any(body: &[u8]) {
    let ledger = Ledger::new(cluster::Placement::Binpack);
    let filtered = filter(&ledger, body);
    for name in filtered.node_names.iter().flatten() {
        assert!(ledger.nodes().next().is_none() && filtered.error.is_empty(), "{name}");
    }
    let _ = serde_json::to_vec(&filtered);
    let _ = (prioritize(&ledger, body), preempt(&ledger, body), binding(body));
}

#[cfg(test)]
#[path = "extender_tests.rs"]
mod tests;
