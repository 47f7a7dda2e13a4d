//! The card that a scheduler chose for a container, as the annotations of ACK and gpushare say it.
//! A hint: whoever makes a pod can write them.

use std::collections::BTreeMap;

use mpsgate_model::Kind;

use crate::Pod;

/// V1, of the whole pod: an index; absent or -1 where none was chosen.
const INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";
/// V2: `{"<container>":{"<card>":<units>}}`, containers counted from 0 in `spec.containers`.
const ALLOCATION: &str = "scheduler.framework.gpushare.allocation";

impl Pod {
    /// Indices of the cards that a scheduler chose for a container. None where it chose none, or
    /// where what it wrote cannot be read.
    #[must_use]
    pub fn chosen_cards(&self, container: &str) -> Vec<u32> {
        let ours = || {
            let placed = self.placed().filter(|placed| Some(&placed.node) == self.node.as_ref())?;
            Some(placed.containers.0.get(container)?.keys().copied().collect())
        };
        let by_container = || {
            let mains = self.containers.iter().filter(|one| one.kind == Kind::Main);
            let position = mains.map(|one| &one.name).position(|name| name == container)?;
            let text = self.annotations.get(ALLOCATION)?;
            let cards: BTreeMap<String, BTreeMap<String, serde_json::Value>> =
                serde_json::from_str(text).ok()?;
            let indices = cards.get(&position.to_string())?.keys();
            indices.map(|index| index.parse().ok()).collect::<Option<Vec<u32>>>()
        };
        let of_pod = || Some(vec![self.annotations.get(INDEX)?.parse().ok()?]);
        ours().or_else(by_container).or_else(of_pod).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(annotations: serde_json::Value) -> Pod {
        let wire = json!({
            "metadata": {"uid": "u", "annotations": annotations},
            "spec": {"nodeName": "n1", "initContainers": [{"name": "i"}], "containers": [{"name": "a"}, {"name": "b"}]},
        });
        Pod::reduce(serde_json::from_value(wire).expect("a pod")).expect("with a uid")
    }

    #[test]
    fn both_forms_are_read_and_anything_else_chooses_nothing() {
        let v1 = json!({INDEX: "1"});
        let v2 = |text: &str| json!({INDEX: "3", ALLOCATION: text});
        let ours = |node: &str| {
            let text = json!({"version": 1, "node": node, "time": "2026-01-31T12:00:00Z",
                "containers": {"i": {"2": 1024}, "a": {"0": 512, "1": 512}}});
            json!({INDEX: "3", crate::PLACEMENT: text.to_string()})
        };
        for (annotations, container, cards) in [
            (json!({}), "a", vec![]),
            (v1.clone(), "a", vec![1]),
            (v1, "i", vec![1]),
            (json!({INDEX: "-1"}), "a", vec![]),
            (json!({INDEX: "one"}), "a", vec![]),
            (v2(r#"{"0":{"1":1},"1":{"0":7}}"#), "a", vec![1]),
            (v2(r#"{"0":{"1":1},"1":{"0":7}}"#), "b", vec![0]),
            (v2(r#"{"0":{"1":4,"2":4}}"#), "a", vec![1, 2]),
            // V2 says nothing of it: V1 does.
            (v2(r#"{"0":{"1":1}}"#), "b", vec![3]),
            (v2(r#"{"0":{"1":1}}"#), "i", vec![3]),
            (v2("{"), "a", vec![3]),
            (v2(r#"{"0":{"x":1}}"#), "a", vec![3]),
            // Ours is exact, of this node.
            (ours("n1"), "i", vec![2]),
            (ours("n1"), "a", vec![0, 1]),
            (ours("n1"), "b", vec![3]),
            (ours("elsewhere"), "a", vec![3]),
        ] {
            let case = format!("{annotations} {container}");
            assert_eq!(pod(annotations).chosen_cards(container), cards, "{case}");
        }
    }
}
