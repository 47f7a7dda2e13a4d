//! What kube-scheduler asks and is answered: bytes in, JSON out, the ledger between them. No I/O.
//!
//! Nothing that comes in is taken to be from kube-scheduler: names that are none are refused, more
//! nodes than the cluster has are not looked for, none is looked for twice, and a search ends when
//! its time is over.

mod list;
pub(crate) mod names;
mod wire;

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::time::Instant;

use mpsgate_cluster::{self as cluster, Ledger, Reason, Snapshot, Suits};
use mpsgate_kubernetes::Pod;
use mpsgate_model::Mib;
use serde_json::value::RawValue;

use self::names::{is_name, is_namespace, is_uid, shown};
use self::wire::{Args, Empty, Failed, MetaPod, NodeList, Nodes, Preemption, Victims, name_of};
pub(crate) use self::wire::{Binding, Bound, Filtered, HostPriority, Preempted};
use crate::ask;

/// Nodes that kube-scheduler may know beside those that are known here: its watch and ours are not
/// at the same moment.
const SLACK: usize = 256;
/// Nodes that are read before the first of them is asked about. All they have fits a processor's
/// nearest memory.
const AHEAD: usize = 16;

/// Nodes that are worth a thread of their own: to start one takes as long as some 30 nodes.
const PER_THREAD: usize = 1_000;
/// Threads of one search: kube-scheduler waits for it, and asks for one pod at a time.
const THREADS: usize = 4;

/// What a filter has found of the nodes that do. kube-scheduler asks next how well these suit that
/// pod, in the same order.
#[derive(Debug)]
pub(crate) struct Ranked {
    pod: cluster::Pod,
    nodes: Vec<(String, Suits)>,
}

/// Which of the nodes have a card for the pod; what was found of them goes into `ranked`.
///
/// # Errors
/// Why it cannot be said: kube-scheduler shows it.
pub(crate) fn filter(
    ledger: &Snapshot,
    body: &[u8],
    until: Instant,
    ranked: &mut Option<Ranked>,
) -> Result<Filtered, String> {
    let args: Args<'_> = read(body)?;
    let pod = Pod::parse(args.pod.get()).map_err(|error| unread(&error))?;
    let mut result = Filtered::default();
    let asked = ask::request(&pod);
    let candidate = asked.map(|request| request.map(|request| ask::candidate(&pod, request)));
    let mut suit = Vec::new();
    let look = |name: &str| look(ledger, &candidate, name);
    let mut fits = |name: &str, look: Look| {
        match look {
            Look::Open => {}
            Look::Suits(suits) => suit.push((name.to_owned(), suits)),
            Look::Failed(failed) => {
                result.failed.insert(name.to_owned(), failed);
                return false;
            }
        }
        true
    };
    let most = most_nodes(ledger);
    let mut names = None;
    if let Some(named) = args.node_names {
        let mut named = distinct(list::read(named, most).map_err(|error| unread(&error))?)?;
        let looks = in_parallel(&named, |named| {
            let mut looks = Vec::with_capacity(named.len());
            for some in named.chunks(AHEAD) {
                in_time(until)?;
                ledger.look_ahead(some.iter().map(String::as_str));
                looks.extend(some.iter().map(|name| look(name)));
            }
            Ok(looks)
        })?;
        let mut looks = looks.into_iter();
        named.retain(|name| looks.next().is_some_and(|look| fits(name, look)));
        names = Some(named);
    }
    let mut whole = None;
    if let Some(nodes) = args.nodes {
        let mut items = Vec::new();
        for (name, node) in whole_nodes(&nodes, most)? {
            in_time(until)?;
            if fits(&name, look(&name)) {
                items.push(node.to_owned());
            }
        }
        whole = Some(Nodes { metadata: Empty {}, items });
    }
    (result.node_names, result.nodes) = (names, whole);
    *ranked = candidate.ok().flatten().map(|pod| Ranked { pod, nodes: suit });
    Ok(result)
}

/// What one look at a node says of a pod.
enum Look {
    /// Nothing of ours is asked for.
    Open,
    Suits(Suits),
    Failed(Failed),
}

fn look(ledger: &Snapshot, pod: &Result<Option<cluster::Pod>, String>, node: &str) -> Look {
    match pod {
        Ok(None) => Look::Open,
        Err(why) => Look::Failed(Failed { why: why.clone(), unresolvable: true }),
        Ok(Some(pod)) => match ledger.suits(node, pod) {
            Ok(suits) => Look::Suits(suits),
            Err(Reason { text, unresolvable }) => Look::Failed(Failed { why: text, unresolvable }),
        },
    }
}

/// `of` of each part of `all`, in its order: many nodes on several threads.
fn in_parallel<T: Send>(
    all: &[String],
    of: impl Fn(&[String]) -> Result<Vec<T>, String> + Sync,
) -> Result<Vec<T>, String> {
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS);
    let threads = threads.min(all.len().div_ceil(PER_THREAD));
    if threads < 2 {
        return of(all);
    }
    let (first, others) = all.split_at(all.len().div_ceil(threads));
    std::thread::scope(|scope| {
        let others: Vec<_> =
            others.chunks(first.len()).map(|part| scope.spawn(|| of(part))).collect();
        let mut found = of(first)?;
        for other in others {
            found.extend(other.join().map_err(|_| "a search ended early".to_owned())??);
        }
        Ok(found)
    })
}

/// An answer that fails the pod's attempt.
pub(crate) fn refused(why: &str) -> Filtered {
    Filtered { error: why.to_owned(), ..Filtered::default() }
}

/// How well each node suits, 0 to 10. What `ranked` says of this very pod is not searched again,
/// where nothing has changed.
///
/// # Errors
/// Why it cannot be said.
pub(crate) fn prioritize(
    ledger: &Snapshot,
    body: &[u8],
    until: Instant,
    ranked: Option<Ranked>,
) -> Result<Vec<HostPriority>, String> {
    let args: Args<'_> = read(body)?;
    let pod = Pod::parse(args.pod.get()).map_err(|error| unread(&error))?;
    let candidate = ask::request(&pod).ok().flatten().map(|request| ask::candidate(&pod, request));
    scores(ledger, args, until, candidate.as_ref(), ranked)
}

/// How well each node suits the claims of a pod, 0 to 10. `memory` says what these ask for; it is
/// not called for a pod without claims, nor for one that asks by its limits too, whose nodes
/// [`prioritize`] scores.
///
/// # Errors
/// Why it cannot be said.
pub(crate) fn prioritize_claims(
    ledger: &Snapshot,
    body: &[u8],
    until: Instant,
    memory: impl FnOnce(&Pod) -> Result<Vec<Mib>, String>,
) -> Result<Vec<HostPriority>, String> {
    let args: Args<'_> = read(body)?;
    let pod = Pod::parse(args.pod.get()).map_err(|error| unread(&error))?;
    let asks = !pod.claims.is_empty() && matches!(ask::request(&pod), Ok(None));
    if let Some(name) = pod.claims.iter().find(|name| !is_name(name)) {
        return Err(format!("\"{}\" is no name of a claim", shown(name)));
    }
    if asks && !is_namespace(&pod.namespace) {
        return Err(format!("\"{}\" is no name of a namespace", shown(&pod.namespace)));
    }
    let request = if asks { ask::claimed(&pod, memory(&pod)?) } else { None };
    let candidate = request.map(|request| ask::candidate(&pod, request));
    scores(ledger, args, until, candidate.as_ref(), None)
}

fn scores(
    ledger: &Snapshot,
    args: Args<'_>,
    until: Instant,
    candidate: Option<&cluster::Pod>,
    ranked: Option<Ranked>,
) -> Result<Vec<HostPriority>, String> {
    let most = most_nodes(ledger);
    let mut hosts = match args.node_names {
        Some(named) => distinct(list::read(named, most).map_err(|error| unread(&error))?)?,
        None => Vec::new(),
    };
    if let Some(nodes) = args.nodes {
        hosts.extend(whole_nodes(&nodes, most)?.into_iter().map(|(name, _)| name));
    }
    let ranked = ranked.filter(|ranked| Some(&ranked.pod) == candidate);
    let mut found = ranked.map(|ranked| ranked.nodes).unwrap_or_default().into_iter().peekable();
    let score = |host: String| {
        in_time(until)?;
        let found = found.next_if(|(name, _)| *name == host);
        let score = match found.and_then(|(_, suits)| ledger.still(&host, &suits)) {
            Some(score) => score,
            None => candidate.and_then(|candidate| ledger.score(&host, candidate)),
        };
        Ok(HostPriority { host, score: score.map_or(0, i64::from) })
    };
    hosts.into_iter().map(score).collect()
}

/// On which of the nodes the pod fits once the victims are gone.
///
/// # Errors
/// Why it cannot be said.
pub(crate) fn preempt(ledger: &Snapshot, body: &[u8], until: Instant) -> Result<Preempted, String> {
    let Preemption { pod, victims, meta_victims } = read(body)?;
    let pod = Pod::parse(pod.get()).map_err(|error| unread(&error))?;
    let of_meta = meta_victims.unwrap_or_default().into_iter().filter_map(|(node, victims)| {
        let Victims { pods, pdb_violations } = victims?;
        let uids: Vec<_> = pods.unwrap_or_default().into_iter().map(|pod| pod.uid).collect();
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
    let (mut fitting, mut seen, most) = (BTreeMap::new(), 0, most_nodes(ledger));
    for (node, uids, pdb_violations) in of_meta.chain(of_pods) {
        in_time(until)?;
        seen += 1;
        if seen > most {
            return Err(format!(
                "it names more than {most} nodes, and the cluster has not so many"
            ));
        }
        named(&node)?;
        if let Some(uid) = uids.iter().find(|uid| !is_uid(uid)) {
            return Err(format!("\"{}\" is no uid of a pod", shown(uid)));
        }
        let uids = match &candidate {
            None => uids,
            Some(candidate) => match ledger.victims(&node, candidate, &uids) {
                Some(uids) => uids,
                None => continue,
            },
        };
        let pods = Some(uids.into_iter().map(|uid| MetaPod { uid }).collect());
        fitting.insert(node, Victims { pods, pdb_violations });
    }
    Ok(Preempted { node_name_to_meta_victims: fitting })
}

/// What is to be bound where: four names, and nothing else may stand in their places.
///
/// # Errors
/// Why it cannot be read.
pub(crate) fn binding(body: &[u8]) -> Result<Binding, String> {
    let asked: Binding = read(body)?;
    named(&asked.node)?;
    if !is_name(&asked.pod_name) {
        return Err(format!("\"{}\" is no name of a pod", shown(&asked.pod_name)));
    }
    if !is_namespace(&asked.pod_namespace) {
        return Err(format!("\"{}\" is no name of a namespace", shown(&asked.pod_namespace)));
    }
    if !is_uid(&asked.pod_uid) {
        return Err(format!("\"{}\" is no uid of a pod", shown(&asked.pod_uid)));
    }
    Ok(asked)
}

fn read<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| unread(&error))
}

/// What serde says has what it found in it.
fn unread(error: &serde_json::Error) -> String {
    format!("the request cannot be read: {}", shown(&error.to_string()))
}

fn most_nodes(ledger: &Snapshot) -> usize {
    let known = ledger.node_count();
    known.saturating_add(known / 4).saturating_add(SLACK)
}

fn in_time(until: Instant) -> Result<(), String> {
    if Instant::now() < until {
        return Ok(());
    }
    Err("the search took too long; try again".to_owned())
}

fn named(node: &str) -> Result<(), String> {
    if is_name(node) {
        return Ok(());
    }
    Err(format!("\"{}\" is no name of a node", shown(node)))
}

/// Each name once, as they stand.
fn distinct(mut names: Vec<String>) -> Result<Vec<String>, String> {
    names.iter().try_for_each(|name| named(name))?;
    let mut seen = HashSet::with_capacity(names.len());
    let first: Vec<bool> = names.iter().map(|name| seen.insert(name.as_str())).collect();
    let mut first = first.into_iter();
    names.retain(|_| first.next() == Some(true));
    Ok(names)
}

/// Each node once, by its name.
fn whole_nodes<'a>(
    list: &NodeList<'a>,
    most: usize,
) -> Result<Vec<(String, &'a RawValue)>, String> {
    let Some(items) = list.items else { return Ok(Vec::new()) };
    let mut seen = HashSet::new();
    let mut nodes = Vec::new();
    for node in list::read::<&RawValue>(items, most).map_err(|error| unread(&error))? {
        let name = name_of(node).map_err(|error| unread(&error))?;
        named(&name)?;
        if seen.insert(name.clone()) {
            nodes.push((name, node));
        }
    }
    Ok(nodes)
}

/// Whatever comes is answered, and no answer names a node that was not asked for: what `tests/fuzz`
/// holds it to.
#[doc(hidden)]
pub fn parse_any(body: &[u8]) {
    let ledger = Ledger::new(mpsgate_model::Placement::Binpack).snapshot();
    let until = Instant::now() + crate::desk::ANSWER_LIMIT;
    let mut ranked = None;
    if let Ok(filtered) = filter(&ledger, body, until, &mut ranked) {
        for name in filtered.node_names.iter().flatten().chain(filtered.failed.keys()) {
            assert!(is_name(name), "{name}");
        }
        let _ = serde_json::to_vec(&filtered);
    }
    let _ = (prioritize(&ledger, body, until, ranked), preempt(&ledger, body, until));
    let _ = prioritize_claims(&ledger, body, until, |pod| {
        assert!(is_namespace(&pod.namespace) && pod.claims.iter().all(|name| is_name(name)));
        Ok(pod.claims.iter().map(|claim| Mib(claim.len() as u64)).collect())
    });
    if let Ok(asked) = binding(body) {
        let path = [&asked.pod_namespace, &asked.pod_name, &asked.node, &asked.pod_uid];
        assert!(path.iter().all(|part| !part.contains(['/', '?', '#', '%', '\\'])), "{asked:?}");
    }
}

#[cfg(test)]
mod tests;
