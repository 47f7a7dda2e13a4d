//! What this crate asks of the API server, and nothing else: the ClusterRole `mpsgated`.
//!
//! `tests/api_server.rs` runs everything with just this, and each thing fails without its rule. The Helm chart has the same.

/// One rule of the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// API group; empty is the core one.
    pub group: &'static str,
    /// Resource, with its subresource.
    pub resource: &'static str,
    /// What is done with it.
    pub verbs: &'static [&'static str],
    /// Why.
    pub why: &'static str,
}

/// All of them. RBAC cannot say "of this node"; the watch's field selector does, and from the kubelet's own
/// kubeconfig the node authorizer.
pub const RULES: [Rule; 4] = [
    Rule {
        group: "",
        resource: "pods",
        verbs: &["list", "watch"],
        why: "what the pods of this node were given in resources.limits; where its label switches slices on, which of \
              them pods without a node ask for",
    },
    Rule {
        group: "",
        resource: "nodes",
        verbs: &["list", "watch", "patch"],
        why: "the labels that switch the node; its annotation and labels with the cards",
    },
    Rule {
        group: "",
        resource: "nodes/status",
        verbs: &["patch"],
        why: "aliyun.com/gpu-count and the condition GPUMemorySharingReady",
    },
    Rule {
        group: "",
        resource: "events",
        verbs: &["create", "patch"],
        why: "refusals, faults and bypass attempts on the pod or node; one more of the same is counted",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charts_cluster_role_is_this_word_for_word() {
        let template = include_str!("../../../packaging/kubernetes/chart/templates/rbac.yaml");
        let rules: String = RULES
            .iter()
            .map(|Rule { group, resource, verbs, why }| {
                format!(
                    "  # {why}\n  - apiGroups: [\"{group}\"]\n    resources: [{resource}]\n    verbs: [{}]\n",
                    verbs.join(", ")
                )
            })
            .collect();
        let found: Vec<&str> = template
            .split("\nrules:\n")
            .skip(1)
            .map(|rest| rest.split("---\n").next().unwrap_or_default())
            .collect();
        assert_eq!(found, [rules]);
    }
}
