//! What kube-scheduler asks and is answered: bytes in, JSON out, the ledger between them. No I/O.
//!
//! Nothing that comes in is taken to be from kube-scheduler: names that are none are refused, more
//! nodes than the cluster has are not looked for, none is looked for twice, and nodes in one state
//! are searched once. A search ends when its time is over: then the nodes that are left do not do.

mod bounded_list;
mod extender_wire;

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use mpsgate_cluster::bypass::Closed;
use mpsgate_cluster::{self as cluster, Ledger, Reason, Snapshot};
use mpsgate_kubernetes::Pod;
use mpsgate_model::names::{is_label, is_name, is_uid};
use mpsgate_model::{Mib, printable};
use serde_json::value::RawValue;

use self::extender_wire::{
    Args, Empty, Failed, MetaPod, NodeList, Nodes, Preemption, Victims, name_of,
};
pub(crate) use self::extender_wire::{Binding, Bound, Filtered, HostPriority, Preempted};
use crate::ledger_input;

/// Nodes that kube-scheduler may know beside those that are known here: its watch and ours are not
/// at the same moment.
const SLACK: usize = 256;

/// For a pod's search among all nodes, from when its question was read. kube-scheduler asks for one
/// pod at a time: what one costs, every other waits.
const SEARCH_LIMIT: Duration = Duration::from_millis(200);
/// Which of the nodes have a card for the pod. `closed` says which nodes a pod with GPU memory is
/// kept from, because its containers would bypass mpsgate there.
///
/// # Errors
/// Why it cannot be said: kube-scheduler shows it.
pub(crate) fn filter(
    ledger: &Snapshot,
    closed: impl FnOnce(&Pod) -> Result<Closed, String>,
    body: &[u8],
    until: Instant,
) -> Result<Filtered, String> {
    let args: Args<'_> = read(body)?;
    let pod = Pod::parse(args.pod.get()).map_err(|error| unread(&error))?;
    let mut result = Filtered::default();
    let asked = ledger_input::request(&pod);
    let candidate =
        asked.map(|request| request.map(|request| ledger_input::candidate(&pod, request)));
    let closed = if matches!(candidate, Ok(Some(_))) { closed(&pod)? } else { Closed::default() };
    let mut kept_from = BTreeMap::new();
    let mut is_open = |name: &str| {
        let Some(why) = closed.reason(name) else { return true };
        kept_from.insert(name.to_owned(), Failed { why: why.to_owned(), unresolvable: true });
        false
    };
    let mut fits = |name: &str, look: Look| {
        let Err(failed) = look else { return true };
        result.failed.insert(name.to_owned(), failed);
        false
    };
    let most = most_nodes(ledger);
    let mut named = match args.node_names {
        Some(named) => {
            Some(distinct(bounded_list::read(named, most).map_err(|error| unread(&error))?)?)
        }
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
        let mut looks = search.looks(&candidate, &all)?.into_iter();
        named.retain(|name| looks.next().is_some_and(|look| fits(name, look)));
    }
    if let Some(whole) = &mut whole {
        whole.retain(|(name, _)| is_open(name));
        let all: Vec<&str> = whole.iter().map(|(name, _)| name.as_str()).collect();
        let mut looks = search.looks(&candidate, &all)?.into_iter();
        whole.retain(|(name, _)| looks.next().is_some_and(|look| fits(name, look)));
    }
    result.node_names = named;
    result.nodes = whole.map(|whole| Nodes {
        metadata: Empty {},
        items: whole.into_iter().map(|(_, node)| node.to_owned()).collect(),
    });
    result.failed.extend(kept_from);
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

    /// One look at each of the nodes, in their order.
    fn looks(&self, candidate: &Candidate, nodes: &[&str]) -> Result<Vec<Look>, String> {
        let look = |pod: &cluster::Pod, node: &str| {
            self.ledger
                .takes(node, pod)
                .map_err(|Reason { text, unresolvable }| Failed { why: text, unresolvable })
        };
        match candidate {
            // Nothing of ours is asked for.
            Ok(None) => Ok(vec![Ok(()); nodes.len()]),
            Err(why) => {
                let failed = Failed { why: why.clone(), unresolvable: true };
                Ok(vec![Err(failed); nodes.len()])
            }
            Ok(Some(pod)) => self.each(pod, nodes, |node| look(pod, node), || Err(late())),
        }
    }

    /// How well each of the nodes suits, in their order.
    fn scores(&self, pod: &cluster::Pod, nodes: &[&str]) -> Result<Vec<i64>, String> {
        let score = |node: &str| self.ledger.score(node, pod).map_or(0, i64::from);
        // A node that the search did not come to is not the best, whatever it is.
        self.each(pod, nodes, score, || 0)
    }

    /// What `search` says of each of the nodes, in their order, and `late` once the time is over.
    /// Nodes in one state are searched once.
    fn each<T: Clone>(
        &self,
        pod: &cluster::Pod,
        nodes: &[&str],
        search: impl Fn(&str) -> T,
        late: impl Fn() -> T,
    ) -> Result<Vec<T>, String> {
        let firsts = self.ledger.alike(nodes.iter().copied(), pod);
        let mut found: Vec<T> = Vec::with_capacity(nodes.len());
        for (first, node) in firsts.into_iter().zip(nodes) {
            in_time(self.until)?;
            let one = match found.get(first) {
                Some(same) => same.clone(),
                None if self.is_over() => late(),
                None => search(node),
            };
            found.push(one);
        }
        Ok(found)
    }
}

/// Whether a node does for a pod, or why it does not.
type Look = Result<(), Failed>;

/// Of a node that the search did not come to.
fn late() -> Failed {
    let why = format!(
        "not searched, as the search for one pod ends after {} ms: make several pods of it, or name its nodes \
         (nodeSelector)",
        SEARCH_LIMIT.as_millis()
    );
    // kube-scheduler need not try, node by node, whose going would help.
    Failed { why, unresolvable: true }
}

/// An answer that fails the pod's attempt.
pub(crate) fn refused(why: &str) -> Filtered {
    Filtered { error: why.to_owned(), ..Filtered::default() }
}

/// How well each node suits, 0 to 10.
///
/// # Errors
/// Why it cannot be said.
pub(crate) fn prioritize(
    ledger: &Snapshot,
    body: &[u8],
    until: Instant,
) -> Result<Vec<HostPriority>, String> {
    let args: Args<'_> = read(body)?;
    let pod = Pod::parse(args.pod.get()).map_err(|error| unread(&error))?;
    let candidate = ledger_input::request(&pod)
        .ok()
        .flatten()
        .map(|request| ledger_input::candidate(&pod, request));
    scores(ledger, args, until, candidate.as_ref())
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
    let asks = !pod.claims.is_empty() && matches!(ledger_input::request(&pod), Ok(None));
    if let Some(name) = pod.claims.iter().find(|name| !is_name(name)) {
        return Err(format!("\"{}\" is no name of a claim", printable::value(name)));
    }
    if asks && !is_label(&pod.namespace) {
        return Err(format!("\"{}\" is no name of a namespace", printable::value(&pod.namespace)));
    }
    let request = if asks { ledger_input::claimed(&pod, memory(&pod)?) } else { None };
    let candidate = request.map(|request| ledger_input::candidate(&pod, request));
    scores(ledger, args, until, candidate.as_ref())
}

fn scores(
    ledger: &Snapshot,
    args: Args<'_>,
    until: Instant,
    candidate: Option<&cluster::Pod>,
) -> Result<Vec<HostPriority>, String> {
    let most = most_nodes(ledger);
    let mut hosts = match args.node_names {
        Some(named) => distinct(bounded_list::read(named, most).map_err(|error| unread(&error))?)?,
        None => Vec::new(),
    };
    if let Some(nodes) = args.nodes {
        hosts.extend(whole_nodes(&nodes, most)?.into_iter().map(|(name, _)| name));
    }
    let names: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let scores = match candidate {
        Some(pod) => Search::new(ledger, until).scores(pod, &names)?,
        None => vec![0; names.len()],
    };
    Ok(hosts.into_iter().zip(scores).map(|(host, score)| HostPriority { host, score }).collect())
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
    let candidate: Option<cluster::Pod> = match ledger_input::request(&pod) {
        Ok(request) => request.map(|request| ledger_input::candidate(&pod, request)),
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
    for node in bounded_list::read::<&RawValue>(items, most).map_err(|error| unread(&error))? {
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
    let closed = |_: &Pod| Ok(Closed::default());
    if let Ok(filtered) = filter(&ledger, closed, body, until) {
        for name in filtered.node_names.iter().flatten().chain(filtered.failed.keys()) {
            assert!(is_name(name), "{name}");
        }
        let _ = serde_json::to_vec(&filtered);
    }
    let _ = (prioritize(&ledger, body, until), preempt(&ledger, closed, body, until));
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
