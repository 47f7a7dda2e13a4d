//! What webhook and extender know of the cluster's handlers: which one a RuntimeClass names, and
//! where each node's lead. Told by the watches of nodes and RuntimeClasses; decides nothing.

use std::sync::Arc;

use mpsgate_cluster::handlers::Known;
use mpsgate_kubernetes::{Change, ClusterNode};
use mpsgate_model::{GpuNode, RuntimeClass};

use crate::cluster::Source;

/// As it came in until now.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Whoever reads it keeps nobody waiting: a change beside that is made in a copy.
    pub(crate) known: Arc<Known>,
    /// How the watch of RuntimeClasses stands. Without it a class is unknown: the webhook refuses
    /// nobody, and the extender places no pod of a class while a handler bypasses mpsgate anywhere.
    pub(crate) classes: Source,
}

impl Seen {
    /// What the watch of nodes tells.
    pub(crate) fn tell_node(&mut self, change: &Change<ClusterNode>) {
        match change {
            Change::Listing | Change::LeftOut(_) | Change::Lost(_) => {}
            Change::Listed(all) => {
                Arc::make_mut(&mut self.known).nodes = all.iter().filter_map(node).collect();
            }
            Change::Put(one) => self.put(&one.name, one.shared.clone()),
            Change::Gone(name) => self.put(name, None),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::collections::BTreeMap;

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
