//! What webhook and extender know of the cluster's handlers: which one a RuntimeClass names, and
//! where each node's lead. Told by the watches of nodes and RuntimeClasses; decides nothing.

use std::sync::Arc;

use mpsgate_cluster::bypass::Known;
use mpsgate_kubernetes::{Change, ClusterNode};
use mpsgate_model::{ANY_CARD, GpuNode, Mib, RuntimeClass};

use crate::cluster::Source;

/// As it came in until now.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Whoever reads it keeps nobody waiting: a change beside that is made in a copy.
    pub(crate) known: Arc<Known>,
    /// How the watch of RuntimeClasses stands. Without it a class is unknown: the webhook refuses
    /// nobody, and the extender places no pod of a class while a handler bypasses mpsgate anywhere.
    pub(crate) classes: Source,
    /// The watch of nodes is heard; else the webhook refuses no amount.
    nodes_heard: bool,
    /// It has some that cannot be read.
    nodes_left_out: bool,
}

impl Seen {
    /// What the watch of nodes tells.
    pub(crate) fn tell_node(&mut self, change: &Change<ClusterNode>) {
        match change {
            Change::Listing => {}
            Change::LeftOut(all) => self.nodes_left_out = !all.is_empty(),
            Change::Lost(_) => self.nodes_heard = false,
            Change::Listed(all) => {
                self.nodes_heard = true;
                let known = Arc::make_mut(&mut self.known);
                known.nodes = all.iter().filter_map(node).collect();
                known.cards.largest = all.iter().filter_map(largest_card).collect();
            }
            Change::Put(one) => {
                self.put(&one.name, one.shared.clone());
                self.put_cards(&one.name, largest_card(one));
            }
            Change::Gone(name) => {
                self.put(name, None);
                self.put_cards(name, None);
            }
        }
        let is_current = self.nodes_heard && !self.nodes_left_out;
        if self.known.cards.is_current != is_current {
            Arc::make_mut(&mut self.known).cards.is_current = is_current;
        }
    }

    fn put_cards(&mut self, name: &str, found: Option<(String, Option<Mib>)>) {
        if self.known.cards.largest.get(name) == found.as_ref().map(|(_, largest)| largest) {
            return;
        }
        let cards = &mut Arc::make_mut(&mut self.known).cards.largest;
        match found {
            Some((name, largest)) => drop(cards.insert(name, largest)),
            None => drop(cards.remove(name)),
        }
    }

    /// Most of what nodes write changes nothing here.
    fn put(&mut self, name: &str, node: Option<GpuNode>) {
        if self.known.nodes.get(name) == node.as_ref() {
            return;
        }
        let nodes = &mut Arc::make_mut(&mut self.known).nodes;
        match node {
            Some(node) => drop(nodes.insert(name.to_owned(), node)),
            None => drop(nodes.remove(name)),
        }
    }

    /// What the watch of RuntimeClasses tells.
    pub(crate) fn tell_class(&mut self, change: Change<RuntimeClass>) {
        let known = Arc::make_mut(&mut self.known);
        let classes = known.classes.get_or_insert_default();
        match change {
            Change::Listing => {}
            Change::Listed(all) => {
                *classes = all.into_iter().map(|one| (one.name.clone(), one)).collect();
                self.classes.whole(0);
            }
            Change::Put(one) => drop(classes.insert(one.name.clone(), one)),
            Change::Gone(name) => drop(classes.remove(&name)),
            Change::LeftOut(all) => self.classes.left_out = all,
            Change::Lost(error) => self.classes.lost("RuntimeClasses", &error),
        }
        if self.classes.listed_in.is_none() {
            known.classes = None;
        }
    }
}

/// The node, where it has cards of mpsgate's.
fn node(node: &ClusterNode) -> Option<(String, GpuNode)> {
    Some((node.name.clone(), node.shared.clone()?))
}

/// The node, where it has cards, and what the largest of them has where it says so. What no card
/// has is not trusted: one node would end the check of amounts for all.
fn largest_card(node: &ClusterNode) -> Option<(String, Option<Mib>)> {
    let says = node.cards.iter().map(|card| card.memory).max();
    let largest = says.filter(|most| *most <= ANY_CARD);
    let has_some = node.shared.is_some() || node.has_gpu_memory || node.unreadable.is_some();
    (says.is_some() || has_some).then(|| (node.name.clone(), largest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::collections::BTreeMap;

    use mpsgate_kubernetes::LeftOut;
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, annotations: Value) -> ClusterNode {
        let node = json!({
            "metadata": {"name": name, "labels": {"mpsgate.io/shared": "true"}, "annotations": annotations},
        });
        ClusterNode::parse(&node.to_string()).unwrap()
    }

    fn class(name: &str) -> RuntimeClass {
        RuntimeClass { name: name.to_owned(), handler: name.to_owned(), ..RuntimeClass::default() }
    }

    fn names<T>(all: &BTreeMap<String, T>) -> Vec<&str> {
        all.keys().map(String::as_str).collect()
    }

    #[test]
    fn nodes_come_and_go_and_those_without_cards_of_ours_are_not_kept() {
        let mut seen = Seen::default();
        let said = json!({"mpsgate.io/handlers": r#"{"version":1,"led":["a","b"],"round":["c"],"unknown":["b"]}"#});
        let cpu = ClusterNode::parse(r#"{"metadata":{"name":"cpu"}}"#).unwrap();
        seen.tell_node(&Change::Listed(vec![node("n1", said), node("n2", json!({})), cpu]));
        assert_eq!(names(&seen.known.nodes), ["n1", "n2"]);
        let n1 = &seen.known.nodes["n1"];
        let handlers = n1.handlers.as_ref().unwrap();
        assert!(handlers.leads("a") && !handlers.leads("b") && handlers.round.contains("c"));
        assert!(!n1.is_switched, "mpsgated writes this label");
        assert!(seen.known.nodes["n2"].handlers.is_err());
        seen.tell_node(&Change::Put(node("n2", json!({"mpsgate.io/handlers": "no"}))));
        assert!(
            seen.known.nodes["n2"].handlers.as_ref().unwrap_err().contains("that cannot be read")
        );
        seen.tell_node(&Change::Put(ClusterNode {
            name: "n2".to_owned(),
            ..ClusterNode::default()
        }));
        seen.tell_node(&Change::Gone("n1".to_owned()));
        assert!(seen.known.nodes.is_empty());
    }

    #[test]
    fn a_node_is_switched_by_a_label_that_mpsgated_does_not_write() {
        for (labels, annotations, expected) in [
            (json!({"ack.node.gpu.schedule": "mps"}), json!({}), Some(true)),
            (json!({"ack.node.gpu.schedule": "share"}), json!({}), Some(true)),
            (json!({"nos.nebuly.com/gpu-partitioning": "mps"}), json!({}), Some(true)),
            (json!({"ack.node.gpu.schedule": "cgpu"}), json!({}), None),
            (json!({}), json!({}), None),
            (json!({"mpsgate.io/shared": "true"}), json!({}), Some(false)),
            (json!({}), json!({"mpsgate.io/cards": "x"}), Some(false)),
            (
                json!({"ack.node.gpu.schedule": "cgpu"}),
                json!({"mpsgate.io/cards": "x"}),
                Some(false),
            ),
            // mpsgate is being removed from it.
            (json!({"ack.node.gpu.schedule": "mps"}), json!({"mpsgate.io/removal": "true"}), None),
        ] {
            let node =
                json!({"metadata": {"name": "n", "labels": labels, "annotations": annotations}});
            let node = ClusterNode::parse(&node.to_string()).unwrap();
            assert_eq!(node.shared.map(|one| one.is_switched), expected, "{labels} {annotations}");
        }
    }

    #[test]
    fn cards_are_all_known_while_the_list_is_current_and_each_node_says_what_it_has() {
        let card = |memory: u64| json!({"uuid": "GPU-1", "index": 0, "memory_mib": memory, "local_mib": 0, "healthy": true});
        let cards = |all: &[u64]| {
            let cards: Vec<Value> = all.iter().map(|memory| card(*memory)).collect();
            json!({"mpsgate.io/cards": json!({"version": 1, "cards": cards}).to_string()})
        };
        let with = |name: &str, capacity: Value| {
            let node = json!({"metadata": {"name": name}, "status": {"capacity": capacity}});
            ClusterNode::parse(&node.to_string()).unwrap()
        };
        let shown = |seen: &Seen| {
            let cards = &seen.known.cards;
            let largest =
                cards.largest.iter().map(|(name, most)| (name.clone(), most.map(|m| m.0)));
            (largest.collect::<Vec<_>>(), cards.is_current)
        };
        let named = |all: &[(&str, Option<u64>)]| {
            all.iter().map(|(name, most)| ((*name).to_owned(), *most)).collect::<Vec<_>>()
        };
        let mut seen = Seen::default();
        assert_eq!(shown(&seen), (vec![], false));
        seen.tell_node(&Change::Listed(vec![
            node("n1", cards(&[8192, 15_360])),
            with("cpu", json!({"cpu": "4"})),
        ]));
        assert_eq!(shown(&seen), (named(&[("n1", Some(15_360))]), true));
        // Another system's, one whose report cannot be read, one that has not reported yet, another
        // system's whose plugin has ended, and one that says what no card has.
        seen.tell_node(&Change::Put(with("n2", json!({"aliyun.com/gpu-mem": 15_109}))));
        seen.tell_node(&Change::Put(node("n3", json!({"mpsgate.io/cards": "no"}))));
        seen.tell_node(&Change::Put(node("n4", json!({}))));
        seen.tell_node(&Change::Put(with("n5", json!({"aliyun.com/gpu-mem": "0"}))));
        seen.tell_node(&Change::Put(node("n6", cards(&[8192, u64::MAX]))));
        let unknown = ["n2", "n3", "n4", "n5", "n6"];
        let mut some = vec![("n1", Some(15_360))];
        some.extend(unknown.map(|name| (name, None)));
        assert_eq!(shown(&seen), (named(&some), true));
        for gone in unknown {
            seen.tell_node(&Change::Gone(gone.to_owned()));
        }
        assert_eq!(shown(&seen), (named(&some[..1]), true));
        let left_out =
            LeftOut { kind: "Node", name: "n7".to_owned(), why: String::new(), counts: false };
        seen.tell_node(&Change::LeftOut(vec![left_out]));
        assert!(!shown(&seen).1);
        seen.tell_node(&Change::LeftOut(vec![]));
        assert!(shown(&seen).1);
    }

    #[test]
    fn classes_are_unknown_until_they_were_listed() {
        let mut seen = Seen::default();
        seen.tell_class(Change::Listing);
        assert_eq!(seen.known.classes, None);
        seen.tell_class(Change::Listed(vec![class("a"), class("b")]));
        seen.tell_class(Change::Put(class("c")));
        seen.tell_class(Change::Gone("a".to_owned()));
        assert_eq!(names(seen.known.classes.as_ref().unwrap()), ["b", "c"]);
    }
}
