//! What this crate asks of the API server, and nothing else: the ClusterRole `mpsgated`, and for mpsgate-scheduler the
//! ClusterRole and the Role `mpsgate-scheduler`.
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

/// All of mpsgate-scheduler's in the whole cluster: the ClusterRole `mpsgate-scheduler`.
pub const SCHEDULER_RULES: [Rule; 3] = [
    Rule {
        group: "",
        resource: "pods",
        verbs: &["get", "list", "watch", "patch"],
        why: "what pods ask for and where they are; the annotations with a pod's cards; the label mpsgate.io/active on \
              its own pod",
    },
    Rule {
        group: "",
        resource: "pods/binding",
        verbs: &["create"],
        why: "kube-scheduler leaves the binding of a pod with GPU memory to it",
    },
    Rule {
        group: "",
        resource: "nodes",
        verbs: &["list", "watch"],
        why: "the labels that switch a node, and the annotation with its cards",
    },
];

/// All of mpsgate-scheduler's in its own namespace: the Role `mpsgate-scheduler`.
pub const SCHEDULER_LEASE_RULES: [Rule; 1] = [Rule {
    group: "coordination.k8s.io",
    resource: "leases",
    verbs: &["get", "create", "update"],
    why: "one of several replicas binds",
}];

#[cfg(test)]
mod tests {
    use super::*;

    /// As the templates have them.
    fn text(rules: &[Rule]) -> String {
        let one = |Rule { group, resource, verbs, why }: &Rule| {
            format!(
                "  # {why}\n  - apiGroups: [\"{group}\"]\n    resources: [{resource}]\n    verbs: [{}]\n",
                verbs.join(", ")
            )
        };
        rules.iter().map(one).collect()
    }

    fn rules_of(template: &str) -> Vec<&str> {
        let lists = template.split("\nrules:\n").skip(1);
        lists.map(|rest| rest.split("---\n").next().unwrap_or_default()).collect()
    }

    #[test]
    fn the_charts_cluster_role_is_this_word_for_word() {
        let template = include_str!("../../../packaging/kubernetes/chart/templates/rbac.yaml");
        assert_eq!(rules_of(template), [text(&RULES)]);
    }

    #[test]
    fn the_schedulers_roles_in_the_chart_are_these_word_for_word() {
        let template =
            include_str!("../../../packaging/kubernetes/chart/templates/scheduler-rbac.yaml");
        assert_eq!(rules_of(template), [text(&SCHEDULER_RULES), text(&SCHEDULER_LEASE_RULES)]);
    }
}
