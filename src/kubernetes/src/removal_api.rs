//! What is asked of the API server when mpsgate is removed from a cluster: what of its own stands
//! on the nodes, the annotation [`REMOVAL`] on and off, whose pods are still there, and Leases that
//! nobody holds any more.
//!
//! Each question is asked once. What follows from an answer, and whether it is asked again, is
//! `mpsgate-scheduler --removal`'s.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::Client;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::node_object::{ANNOTATIONS, CARDS, CONDITIONS, REMOVAL, SHARED, parse_cards};
use crate::objects::{Objects, PAGE};
use crate::pod_binding::MANAGER;
use crate::read::{Found, Object, Unread, part};
use crate::requests::{Requests, unless_gone};
use crate::wire::{WireLease, WireNode, WirePod};
use crate::{Error, Settings};

/// What each request may take, a page of whole nodes too.
const PATIENCE: Duration = Duration::from_secs(15);

/// What of mpsgate's stands on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remains {
    /// The node's name.
    pub node: String,
    /// The annotation [`REMOVAL`] is there.
    pub is_told: bool,
    /// The label [`SHARED`] is there: mpsgate has cards of the node.
    pub is_shared: bool,
    /// Annotations and conditions of mpsgate's that are there, by name. Whatever else mpsgated
    /// writes it takes away together with one of these or with the label.
    pub shown: Vec<&'static str>,
    /// Pods that hold memory of its cards, by uid.
    pub holders: BTreeSet<String>,
    /// What local containers hold, MiB.
    pub local_mib: u64,
}

impl Remains {
    /// What matters of a node's JSON, such as a client of the API server sends on.
    ///
    /// # Errors
    /// Where it is no JSON of a node.
    pub fn parse(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json).map(Self::of)
    }

    fn of(node: WireNode) -> Self {
        let annotations = node.metadata.annotations.unwrap_or_default();
        let conditions = node.status.conditions;
        let has_condition = |kind: &str| conditions.iter().any(|one| one.kind == kind);
        let shown = ANNOTATIONS.into_iter().filter(|name| annotations.contains_key(*name));
        // What nobody can read names nobody; the label says that there are cards.
        let cards = annotations.get(CARDS).and_then(|text| parse_cards(text).ok());
        let cards = cards.unwrap_or_default();
        Self {
            node: node.metadata.name.unwrap_or_default(),
            is_told: annotations.contains_key(REMOVAL),
            is_shared: node.metadata.labels.is_some_and(|labels| labels.contains_key(SHARED)),
            shown: shown.chain(CONDITIONS.into_iter().filter(|kind| has_condition(kind))).collect(),
            local_mib: cards.iter().fold(0, |sum: u64, card| sum.saturating_add(card.local.0)),
            holders: cards.into_iter().flat_map(|card| card.held.into_keys()).collect(),
        }
    }
}

/// Which nodes are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Every one.
    All,
    /// Those with the label [`SHARED`].
    Shared,
}

/// Asks and writes what a removal needs.
#[derive(Debug)]
pub struct Remover(Requests);

impl Remover {
    /// By that API server.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self(Requests::new(settings, PATIENCE))
    }

    /// What of mpsgate's stands on nodes now. Of a node that cannot be read, what can be.
    ///
    /// # Errors
    /// Where the API server does not answer, or refuses.
    pub async fn nodes(&self, which: Which) -> Result<Vec<Remains>, Error> {
        let mut params = ListParams::default().limit(PAGE);
        if which == Which::Shared {
            params = params.labels(SHARED);
        }
        let mut found = Vec::new();
        let put = |one: Found<WireNode>| {
            one.as_ref().err().into_iter().for_each(|unread| warn(unread));
            found.extend(part(one).map(Remains::of));
        };
        self.list("list nodes".to_owned(), params, Objects::all, put).await?;
        Ok(found)
    }

    /// Every object of a list, page by page.
    async fn list<K: Object>(
        &self,
        what: String,
        mut params: ListParams,
        objects: impl Fn(Client) -> Objects<K>,
        mut put: impl FnMut(Found<K>),
    ) -> Result<(), Error> {
        loop {
            let (mut asked, objects) = (params.clone(), &objects);
            let list = |client| async move { objects(client).next_page(&mut asked).await };
            let page = self.0.ask(what.clone(), list).await?;
            page.items.into_iter().for_each(&mut put);
            params.continue_token = page.next;
            if params.continue_token.is_none() {
                return Ok(());
            }
        }
    }

    /// Sets the annotation [`REMOVAL`] of a node, or takes it off. A node that is gone has none.
    ///
    /// # Errors
    /// Where the API server does not answer, or refuses.
    pub async fn tell(&self, node: &str, removal: bool) -> Result<(), Error> {
        let patch = json!({"metadata": {"annotations": {REMOVAL: removal.then_some("true")}}});
        let send = |client| async move {
            let params =
                PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            Objects::<WireNode>::all(client).patch(node, &params, &Patch::Merge(patch)).await
        };
        unless_gone(self.0.ask(format!("annotate node {node}"), send).await)
    }

    /// The names of the namespace's pods that `selector` chooses, with their nodes.
    ///
    /// # Errors
    /// Where the API server does not answer, or refuses.
    pub async fn pods(
        &self,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<(String, Option<String>)>, Error> {
        let params = ListParams::default().limit(PAGE).labels(selector);
        let mut names = Vec::new();
        // That it is there is what counts, and its node where it says one.
        let put = |found: Found<WirePod>| {
            names.push(match found {
                Ok(pod) => (pod.metadata.name.unwrap_or_default(), pod.spec.node_name),
                Err(unread) => {
                    let node = unread.part.and_then(|pod| pod.spec.node_name);
                    (unread.meta.name.unwrap_or_default(), node)
                }
            });
        };
        let of = |client| Objects::namespaced(client, namespace);
        self.list(format!("list the pods of namespace {namespace}"), params, of, put).await?;
        Ok(names)
    }

    /// Deletes a Lease. One that is not there is deleted.
    ///
    /// # Errors
    /// Where the API server does not answer, or refuses.
    pub async fn delete_lease(&self, namespace: &str, name: &str) -> Result<(), Error> {
        let delete = |client| async move {
            let leases = Objects::<WireLease>::namespaced(client, namespace);
            leases.delete(name, &DeleteParams::default()).await
        };
        unless_gone(self.0.ask(format!("delete lease {namespace}/{name}"), delete).await)
    }
}

fn warn<K>(unread: &Unread<K>) {
    let (object, why) = (unread.left.name.as_str(), unread.left.why.as_str());
    log::warn!(kind = unread.left.kind, object, why;
        "an object of the API server cannot be read: of it counts what can be");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CONDITION;

    #[test]
    fn a_node_shows_what_of_mpsgates_stands_on_it_and_who_holds_its_cards() {
        let card = json!({"uuid": "GPU-1", "index": 0, "memory_mib": 15360, "local_mib": 512, "healthy": false,
            "held": {"p2": 1024, "p1": 2048}});
        let cards = json!({"version": 1, "cards": [card, card]}).to_string();
        let condition =
            json!([{"type": "Ready", "status": "True"}, {"type": CONDITION, "status": "False"}]);
        let node = |labels, annotations, conditions| {
            let metadata = json!({"name": "n", "labels": labels, "annotations": annotations});
            json!({"metadata": metadata, "status": {"conditions": conditions}})
        };
        let n = || Remains { node: "n".to_owned(), ..Remains::default() };
        for (node, expected) in [
            (node(json!(null), json!(null), json!(null)), n()),
            // Nothing of it is mpsgate's.
            (
                node(
                    json!({"ack.node.gpu.schedule": "cgpu", "aliyun.accelerator/nvidia_count": "2"}),
                    json!({"other": "kept"}),
                    json!([{"type": "Ready", "status": "True"}]),
                ),
                n(),
            ),
            (
                node(json!({SHARED: "true"}), json!({CARDS: cards}), condition.clone()),
                Remains {
                    is_shared: true,
                    shown: vec![CARDS, CONDITION],
                    holders: ["p1", "p2"].map(str::to_owned).into(),
                    local_mib: 1024,
                    ..n()
                },
            ),
            (
                node(
                    json!({SHARED: "true"}),
                    json!({CARDS: "no JSON", REMOVAL: "true"}),
                    json!(null),
                ),
                Remains { is_shared: true, is_told: true, shown: vec![CARDS], ..n() },
            ),
            (node(json!(null), json!(null), condition), Remains { shown: vec![CONDITION], ..n() }),
        ] {
            let found = Remains::parse(&node.to_string()).expect("a node");
            assert_eq!(found, expected, "{node}");
        }
    }
}
