//! What kube-scheduler asks and is answered: bytes in, JSON out, the ledger between them. No I/O.
//!
//! Nothing that comes in is taken to be from kube-scheduler: names that are none are refused, more
//! nodes than the cluster has are not looked for, none is looked for twice, and nodes in one state
//! are searched once. A search ends when its time is over: then the nodes that are left do not do.

mod list;
mod wire;

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use mpsgate_cluster::handlers::Closed;
use mpsgate_cluster::{self as cluster, Ledger, Reason, Snapshot, Suits};
use mpsgate_kubernetes::Pod;
use mpsgate_model::names::{is_label, is_name, is_uid};
use mpsgate_model::{Mib, printable};
use serde_json::value::RawValue;

use self::wire::{Args, Empty, Failed, MetaPod, NodeList, Nodes, Preemption, Victims, name_of};
pub(crate) use self::wire::{Binding, Bound, Filtered, HostPriority, Preempted};
use crate::ask;

/// Nodes that kube-scheduler may know beside those that are known here: its watch and ours are not
/// at the same moment.
const SLACK: usize = 256;
/// Nodes that are read before the first of them is asked about. All they have fits a processor's
/// nearest memory.
const AHEAD: usize = 16;

/// For a pod's search among all nodes, from when its question was read. kube-scheduler asks for one
/// pod at a time: what one costs, every other waits. The usual ones take some 20 ms with 5,000
/// nodes.
const SEARCH_LIMIT: Duration = Duration::from_millis(200);
/// Parts of a pod (containers times cards) from which on a search costs more than to see which
/// nodes are in one state.
const COSTLY: usize = 5;

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

/// Which of the nodes have a card for the pod; what was found of them goes into `ranked`. `closed`
/// says which nodes a pod with GPU memory is kept from, because its containers would bypass mpsgate
/// there.
///
/// # Errors
/// Why it cannot be said: kube-scheduler shows it.
pub(crate) fn filter(
    ledger: &Snapshot,
    closed: impl FnOnce(&Pod) -> Result<Closed, String>,
    body: &[u8],
    until: Instant,
    ranked: &mut Option<Ranked>,
) -> Result<Filtered, String> {
    let args: Args<'_> = read(body)?;
    let pod = Pod::parse(args.pod.get()).map_err(|error| unread(&error))?;
    let mut result = Filtered::default();
    let asked = ask::request(&pod);
    let candidate = asked.map(|request| request.map(|request| ask::candidate(&pod, request)));
    let closed = if matches!(candidate, Ok(Some(_))) { closed(&pod)? } else { Closed::default() };
    let mut kept_from = BTreeMap::new();
    let mut is_open = |name: &str| {
        let Some(why) = closed.reason(name) else { return true };
        kept_from.insert(name.to_owned(), Failed { why: why.to_owned(), unresolvable: true });
        false
    };
    let mut suit = Vec::new();
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
    let mut named = match args.node_names {
        Some(named) => Some(distinct(list::read(named, most).map_err(|error| unread(&error))?)?),
        None => None,
    };
    let mut whole = match &args.nodes {
        Some(nodes) => Some(whole_nodes(nodes, most)?),
        None => None,
    };
    // Whole nodes are many bytes. To read them is no part of the search.
    let search = Search::new(ledger, until);
    if let Some(named) = &mut named {
        named.retain(|name| is_open(name));
        let all: Vec<&str> = named.iter().map(String::as_str).collect();
        let mut looks = search.all(&candidate, &all)?.into_iter();
        named.retain(|name| looks.next().is_some_and(|look| fits(name, look)));
    }
    if let Some(whole) = &mut whole {
        whole.retain(|(name, _)| is_open(name));
        let all: Vec<&str> = whole.iter().map(|(name, _)| name.as_str()).collect();
        let mut looks = search.all(&candidate, &all)?.into_iter();
        whole.retain(|(name, _)| looks.next().is_some_and(|look| fits(name, look)));
    }
    result.node_names = named;
    result.nodes = whole.map(|whole| Nodes {
        metadata: Empty {},
        items: whole.into_iter().map(|(_, node)| node.to_owned()).collect(),
    });
    result.failed.extend(kept_from);
    *ranked = candidate.ok().flatten().map(|pod| Ranked { pod, nodes: suit });
    Ok(result)
}

/// What a pod may ask for, or why it cannot be had.
type Candidate = Result<Option<cluster::Pod>, String>;

/// A pod's search among many nodes, and when it ends.
struct Search<'a> {
    ledger: &'a Snapshot,
    /// From then on there is no answer.
    until: Instant,
    /// From then on the answer for each further node is no.
    end: Instant,
}

impl<'a> Search<'a> {
    /// One that begins now.
    fn new(ledger: &'a Snapshot, until: Instant) -> Self {
        Self { ledger, until, end: Instant::now() + SEARCH_LIMIT }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// One look at each of the nodes. Of a pod whose search costs much nodes in one state are
    /// searched once.
    fn all(&self, candidate: &Candidate, nodes: &[&str]) -> Result<Vec<Look>, String> {
        let Ok(Some(pod)) = candidate else { return self.each(candidate, nodes, AHEAD) };
        if !is_costly(pod) {
            return self.each(candidate, nodes, AHEAD);
        }
        let first = self.ledger.alike(nodes.iter().copied(), pod);
        let is_first = |(n, (first, _)): &(usize, (&usize, &&str))| **first == *n;
        let firsts: Vec<&str> =
            first.iter().zip(nodes).enumerate().filter(is_first).map(|(_, (_, n))| *n).collect();
        // The clock is looked at before each of them.
        let mut found = self.each(candidate, &firsts, 1)?.into_iter();
        let mut looks: Vec<Look> = Vec::with_capacity(nodes.len());
        for (n, (first, node)) in first.iter().zip(nodes).enumerate() {
            let look = match looks.get(*first) {
                Some(Look::Suits(suits)) => Look::Suits(self.ledger.suits_alike(node, suits)),
                Some(Look::Failed(failed)) => Look::Failed(failed.clone()),
                Some(Look::Open) => Look::Open,
                None => found.next().ok_or_else(|| format!("node {n} of them was not searched"))?,
            };
            looks.push(look);
        }
        Ok(looks)
    }

    /// The same, each by itself, and so many between two looks at the clock.
    fn each(
        &self,
        candidate: &Candidate,
        nodes: &[&str],
        step: usize,
    ) -> Result<Vec<Look>, String> {
        // What asks for nothing, or for what nobody can have, is not searched for.
        let is_searched = matches!(candidate, Ok(Some(_)));
        in_parallel(nodes, |nodes| {
            let mut looks = Vec::with_capacity(nodes.len());
            for some in nodes.chunks(step) {
                in_time(self.until)?;
                if is_searched && self.is_over() {
                    looks.extend(some.iter().map(|_| Look::late()));
                    continue;
                }
                self.ledger.look_ahead(some.iter().copied());
                looks.extend(some.iter().map(|name| look(self.ledger, candidate, name)));
            }
            Ok(looks)
        })
    }
}

/// Whether it is worth seeing which nodes are in one state.
fn is_costly(pod: &cluster::Pod) -> bool {
    let cards = usize::try_from(pod.request.cards).unwrap_or(usize::MAX);
    pod.request.containers.len().saturating_mul(cards) >= COSTLY
}

/// What one look at a node says of a pod.
enum Look {
    /// Nothing of ours is asked for.
    Open,
    Suits(Suits),
    Failed(Failed),
}

impl Look {
    /// Of a node that the search did not come to.
    fn late() -> Self {
        let why = format!(
            "not searched, as the search for one pod ends after {} ms: make several pods of it, or name its nodes \
             (nodeSelector)",
            SEARCH_LIMIT.as_millis()
        );
        // kube-scheduler need not try, node by node, whose going would help.
        Self::Failed(Failed { why, unresolvable: true })
    }
}

fn look(ledger: &Snapshot, pod: &Candidate, node: &str) -> Look {
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
    all: &[&str],
    of: impl Fn(&[&str]) -> Result<Vec<T>, String> + Sync,
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
        return Err(format!("\"{}\" is no name of a claim", printable::value(name)));
    }
    if asks && !is_label(&pod.namespace) {
        return Err(format!("\"{}\" is no name of a namespace", printable::value(&pod.namespace)));
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
    let search = Search::new(ledger, until);
    let alike = candidate.filter(|pod| is_costly(pod)).map(|pod| {
        let hosts = hosts.iter().map(String::as_str);
        ledger.alike(hosts, pod)
    });
    let mut scores: Vec<Option<u8>> = Vec::with_capacity(hosts.len());
    let score = |(n, host): (usize, String)| {
        in_time(until)?;
        let found = found.next_if(|(name, _)| *name == host);
        let known = found.and_then(|(_, suits)| ledger.still(&host, &suits));
        let first = alike.as_ref().and_then(|alike| alike.get(n));
        let known = known.or_else(|| scores.get(*first?).copied());
        let score = match known {
            Some(score) => score,
            // Not the best, whatever it is.
            None if search.is_over() => None,
            None => candidate.and_then(|candidate| ledger.score(&host, candidate)),
        };
        scores.push(score);
        Ok(HostPriority { host, score: score.map_or(0, i64::from) })
    };
    hosts.into_iter().enumerate().map(score).collect()
}

/// On which of the nodes the pod fits once the victims are gone. `closed` as in [`filter`]: a
/// kube-scheduler before 1.21 proposes those nodes, too.
///
/// # Errors
/// Why it cannot be said.
pub(crate) fn preempt(
    ledger: &Snapshot,
    closed: impl FnOnce(&Pod) -> Result<Closed, String>,
    body: &[u8],
    until: Instant,
) -> Result<Preempted, String> {
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
    let closed = if candidate.is_some() { closed(&pod)? } else { Closed::default() };
    let (mut fitting, mut seen, most) = (BTreeMap::new(), 0, most_nodes(ledger));
    let search = Search::new(ledger, until);
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
            return Err(format!("\"{}\" is no uid of a pod", printable::value(uid)));
        }
        let uids = match &candidate {
            None => uids,
            Some(_) if search.is_over() || closed.reason(&node).is_some() => continue,
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
        return Err(format!("\"{}\" is no name of a pod", printable::value(&asked.pod_name)));
    }
    if !is_label(&asked.pod_namespace) {
        return Err(format!(
            "\"{}\" is no name of a namespace",
            printable::value(&asked.pod_namespace)
        ));
    }
    if !is_uid(&asked.pod_uid) {
        return Err(format!("\"{}\" is no uid of a pod", printable::value(&asked.pod_uid)));
    }
    Ok(asked)
}

fn read<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| unread(&error))
}

/// What serde says has what it found in it.
fn unread(error: &serde_json::Error) -> String {
    format!("the request cannot be read: {}", printable::value(&error.to_string()))
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
    Err(format!("\"{}\" is no name of a node", printable::value(node)))
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
    let closed = |_: &Pod| Ok(Closed::default());
    if let Ok(filtered) = filter(&ledger, closed, body, until, &mut ranked) {
        for name in filtered.node_names.iter().flatten().chain(filtered.failed.keys()) {
            assert!(is_name(name), "{name}");
        }
        let _ = serde_json::to_vec(&filtered);
    }
    let _ = (prioritize(&ledger, body, until, ranked), preempt(&ledger, closed, body, until));
    let _ = prioritize_claims(&ledger, body, until, |pod| {
        assert!(is_label(&pod.namespace) && pod.claims.iter().all(|name| is_name(name)));
        Ok(pod.claims.iter().map(|claim| Mib(claim.len() as u64)).collect())
    });
    if let Ok(asked) = binding(body) {
        let path = [&asked.pod_namespace, &asked.pod_name, &asked.node, &asked.pod_uid];
        assert!(path.iter().all(|part| !part.contains(['/', '?', '#', '%', '\\'])), "{asked:?}");
    }
}

#[cfg(test)]
mod tests;
