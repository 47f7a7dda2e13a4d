//! What this crate asks of the API server, and nothing else: the ClusterRole `mpsgated`, for
//! mpsgate-scheduler the ClusterRole and the Role `mpsgate-scheduler`, and for
//! `mpsgate-scheduler --removal` those of `mpsgate-removal`.
//!
//! `tests/api_server.rs` runs everything with just this, and each thing fails without its rule. The
//! Helm chart has the same.

/// One rule of the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// API group; empty is the core one.
    pub group: &'static str,
    /// Resource, with its subresource.
    pub resource: &'static str,
    /// What is done with it.
    pub verbs: &'static [&'static str],
    /// Of which objects alone; empty where it is all of them.
    pub names: &'static [&'static str],
    /// Why.
    pub why: &'static str,
}

/// All of them. RBAC cannot say "of this node"; the watch's field selector does, and from the
/// kubelet's own kubeconfig the node authorizer.
pub const RULES: [Rule; 4] = [
    Rule {
        group: "",
        resource: "pods",
        verbs: &["list", "watch"],
        names: &[],
        why: "what the pods of this node were given in resources.limits; where its label switches slices on, which of \
              them pods without a node ask for",
    },
    Rule {
        group: "",
        resource: "nodes",
        verbs: &["list", "watch", "patch"],
        names: &[],
        why: "the labels that switch the node, and the uid by which it owns its ResourceSlice; its annotations and \
              labels with cards and handlers",
    },
    Rule {
        group: "",
        resource: "nodes/status",
        verbs: &["patch"],
        names: &[],
        why: "aliyun.com/gpu-count and the conditions GPUMemorySharingReady and GPUMemorySharingBypass",
    },
    Rule {
        group: "",
        resource: "events",
        verbs: &["create", "patch"],
        names: &[],
        why: "refusals, faults and bypass attempts on the pod or node; one more of the same is counted",
    },
];

/// What a driver for Dynamic Resource Allocation needs beside [`RULES`]: the ClusterRole
/// `mpsgate-dra`.
///
/// From a kubelet's own kubeconfig the node authorizer gives the slices of its node and the claims
/// of its pods, and no status of a claim.
pub const DRA_RULES: [Rule; 4] = [
    Rule {
        group: "resource.k8s.io",
        resource: "resourceslices",
        verbs: &["list", "watch", "create", "update", "delete"],
        names: &[],
        why: "the one ResourceSlice with the cards of this node; the API server knows no name when something is made",
    },
    Rule {
        group: "resource.k8s.io",
        resource: "resourceclaims",
        verbs: &["get"],
        names: &[],
        why: "what of a card was allocated to a claim, and to which pod; kubelet names the claim",
    },
    Rule {
        group: "resource.k8s.io",
        resource: "resourceclaims/status",
        verbs: &["patch"],
        names: &[],
        why: "in status.devices of a claim: the guarantee level, or why it was refused",
    },
    Rule {
        group: "resource.k8s.io",
        resource: "resourceclaims/driver",
        verbs: &["associated-node:patch"],
        names: &["mpsgate.io"],
        why: "the same from Kubernetes 1.36 on: its own entries, of claims allocated on its own node",
    },
];

/// All of mpsgate-scheduler's in the whole cluster: the ClusterRole `mpsgate-scheduler`. It changes
/// no pod: a pod's cards travel in its Binding.
pub const SCHEDULER_RULES: [Rule; 4] = [
    Rule {
        group: "",
        resource: "pods",
        verbs: &["get", "list", "watch"],
        names: &[],
        why: "what pods ask for and where they are",
    },
    Rule {
        group: "",
        resource: "pods/binding",
        verbs: &["create"],
        names: &[],
        why: "kube-scheduler leaves the binding of a pod with GPU memory to it, with the annotations that name its cards",
    },
    Rule {
        group: "",
        resource: "nodes",
        verbs: &["list", "watch"],
        names: &[],
        why: "the labels that switch a node, and the annotations with its cards and handlers",
    },
    Rule {
        group: "node.k8s.io",
        resource: "runtimeclasses",
        verbs: &["list", "watch"],
        names: &[],
        why: "which handler a pod's RuntimeClass names",
    },
];

/// What mpsgate-scheduler needs beside [`SCHEDULER_RULES`] to score nodes for pods with claims: the
/// ClusterRole `mpsgate-scheduler-dra`.
pub const SCHEDULER_DRA_RULES: [Rule; 1] = [Rule {
    group: "resource.k8s.io",
    resource: "resourceclaims",
    verbs: &["get"],
    names: &[],
    why: "how much memory the claims of a pod ask for, whose nodes it scores",
}];

/// The Lease, in its own namespace: the Role `mpsgate-scheduler`.
pub const SCHEDULER_LEASE_RULES: [Rule; 2] = [
    Rule {
        group: "coordination.k8s.io",
        resource: "leases",
        verbs: &["create"],
        names: &[],
        why: "one of several replicas binds; the API server knows no name when something is made",
    },
    Rule {
        group: "coordination.k8s.io",
        resource: "leases",
        verbs: &["get", "update"],
        names: &["mpsgate-scheduler"],
        why: "it keeps its own lease, and no other",
    },
];

/// In the same Role where it runs as a pod (`--pod-name`).
pub const SCHEDULER_LABEL_RULES: [Rule; 1] = [Rule {
    group: "",
    resource: "pods",
    verbs: &["patch"],
    names: &[],
    why: "the label mpsgate.io/active on its own pod, by which the Service finds the replica that binds",
}];

/// Of `mpsgate-scheduler --removal` in the whole cluster: the ClusterRole `mpsgate-removal`, which
/// is there while the chart is being removed.
pub const REMOVAL_RULES: [Rule; 1] = [Rule {
    group: "",
    resource: "nodes",
    verbs: &["list", "patch"],
    names: &[],
    why: "the annotation mpsgate.io/removal, and whether anything of mpsgate's still stands there",
}];

/// In its own namespace: the Role `mpsgate-removal`.
pub const REMOVAL_OWN_RULES: [Rule; 2] = [
    Rule {
        group: "",
        resource: "pods",
        verbs: &["list"],
        names: &[],
        why: "whether mpsgated has ended everywhere, which would take the cards again",
    },
    Rule {
        group: "coordination.k8s.io",
        resource: "leases",
        verbs: &["delete"],
        names: &["mpsgate-scheduler", "mpsgate-kube-scheduler"],
        why: "the chart's own, which no release has made and none removes",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// As the templates have them.
    fn text(rules: &[Rule]) -> String {
        let one = |Rule { group, resource, verbs, names, why }: &Rule| {
            let names = match names {
                [] => String::new(),
                names => format!("    resourceNames: [{}]\n", names.join(", ")),
            };
            format!(
                "  # {why}\n  - apiGroups: [\"{group}\"]\n    resources: [{resource}]\n{names}    verbs: [{}]\n",
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
    fn the_charts_roles_for_claims_are_these_word_for_word() {
        let template = include_str!("../../../packaging/kubernetes/chart/templates/dra.yaml");
        assert_eq!(rules_of(template), [text(&DRA_RULES), text(&SCHEDULER_DRA_RULES)]);
    }

    #[test]
    fn the_schedulers_roles_in_the_chart_are_these_word_for_word() {
        let template =
            include_str!("../../../packaging/kubernetes/chart/templates/scheduler-rbac.yaml");
        // Its lease has the release's name.
        let template =
            template.replace(r#"{{ include "mpsgate.scheduler" . }}"#, "mpsgate-scheduler");
        let own = text(&SCHEDULER_LEASE_RULES) + &text(&SCHEDULER_LABEL_RULES);
        assert_eq!(rules_of(&template), [text(&SCHEDULER_RULES), own]);
    }

    #[test]
    fn the_roles_of_a_removal_in_the_chart_are_these_word_for_word() {
        let template = include_str!("../../../packaging/kubernetes/chart/templates/removal.yaml");
        let named = |template: String, name: &str, value: &str| {
            template.replace(&format!(r#"{{{{ include "mpsgate.{name}" . }}}}"#), value)
        };
        let template = named(template.to_owned(), "scheduler", "mpsgate-scheduler");
        let template = named(template, "kube-scheduler", "mpsgate-kube-scheduler");
        assert_eq!(rules_of(&template), [text(&REMOVAL_RULES), text(&REMOVAL_OWN_RULES)]);
    }

    #[test]
    fn the_scheduler_changes_no_pod_of_another_namespace_and_no_lease_but_its_own() {
        let changing =
            |rule: &&Rule| rule.verbs.iter().any(|verb| !["get", "list", "watch"].contains(verb));
        let changed: Vec<_> =
            SCHEDULER_RULES.iter().filter(changing).map(|rule| rule.resource).collect();
        assert_eq!(changed, ["pods/binding"]);
        for rule in SCHEDULER_LEASE_RULES {
            assert!(rule.verbs == ["create"] || rule.names == ["mpsgate-scheduler"], "{rule:?}");
        }
    }
}
