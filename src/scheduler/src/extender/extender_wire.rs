//! What kube-scheduler sends and reads: k8s.io/kube-scheduler/extender/v1, whose JSON has Go's
//! field names. Schedulers before 1.16 wrote some of them in lower case, and Go itself reads both.

use std::collections::BTreeMap;

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

/// `ExtenderArgs`, of filter and prioritize.
#[derive(Debug, Deserialize)]
pub(crate) struct Args<'a> {
    #[serde(rename = "Pod", alias = "pod", borrow)]
    pub(crate) pod: &'a RawValue,
    /// With `nodeCacheCapable: false`: whole nodes.
    #[serde(rename = "Nodes", alias = "nodes", default, borrow)]
    pub(crate) nodes: Option<NodeList<'a>>,
    /// With `nodeCacheCapable: true`: a list of names.
    #[serde(rename = "NodeNames", alias = "nodenames", alias = "nodeNames", default, borrow)]
    pub(crate) node_names: Option<&'a RawValue>,
}

/// A list of nodes.
#[derive(Debug, Deserialize)]
pub(crate) struct NodeList<'a> {
    #[serde(default, borrow)]
    pub(crate) items: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Named {
    metadata: Metadata,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
}

/// The name of a node of a list.
pub(crate) fn name_of(node: &RawValue) -> Result<String, serde_json::Error> {
    serde_json::from_str::<Named>(node.get()).map(|node| node.metadata.name)
}

/// `ExtenderFilterResult`.
#[derive(Debug, Default)]
pub(crate) struct Filtered {
    pub(crate) nodes: Option<Nodes>,
    pub(crate) node_names: Option<Vec<String>>,
    /// Why each of the others does not do, by its name.
    pub(crate) failed: BTreeMap<String, Failed>,
    pub(crate) error: String,
}

/// Why a node does not do.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    pub(crate) why: String,
    /// Whether the going of pods does not help.
    pub(crate) unresolvable: bool,
}

impl Serialize for Filtered {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("Filtered", 5)?;
        fields.serialize_field("Nodes", &self.nodes)?;
        fields.serialize_field("NodeNames", &self.node_names)?;
        // The unresolvable ones in both: a scheduler before 1.21 knows the first alone and would
        // show no reason, a later one lets the other win.
        let both = |unresolvable| Reasons { failed: &self.failed, unresolvable };
        fields.serialize_field("FailedNodes", &both(false))?;
        fields.serialize_field("FailedAndUnresolvableNodes", &both(true))?;
        fields.serialize_field("Error", &self.error)?;
        fields.end()
    }
}

/// Sentences by nodes: all, or of those alone that are unresolvable.
struct Reasons<'a> {
    failed: &'a BTreeMap<String, Failed>,
    unresolvable: bool,
}

impl Serialize for Reasons<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let of = self.failed.iter().filter(|(_, failed)| failed.unresolvable || !self.unresolvable);
        to.collect_map(of.map(|(name, failed)| (name, &failed.why)))
    }
}

/// A `NodeList` of nodes as they came.
#[derive(Debug, Serialize)]
pub(crate) struct Nodes {
    pub(crate) metadata: Empty,
    pub(crate) items: Vec<Box<RawValue>>,
}

/// `{}`.
#[derive(Debug, Serialize)]
pub(crate) struct Empty {}

/// `HostPriority`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct HostPriority {
    pub(crate) host: String,
    pub(crate) score: i64,
}

/// `ExtenderBindingArgs`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Binding {
    #[serde(rename = "PodName", alias = "podName", alias = "podname")]
    pub(crate) pod_name: String,
    #[serde(rename = "PodNamespace", alias = "podNamespace", alias = "podnamespace")]
    pub(crate) pod_namespace: String,
    #[serde(rename = "PodUID", alias = "podUID", alias = "poduid")]
    pub(crate) pod_uid: String,
    #[serde(rename = "Node", alias = "node")]
    pub(crate) node: String,
}

/// `ExtenderBindingResult`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Bound {
    pub(crate) error: String,
}

/// `ExtenderPreemptionArgs`.
#[derive(Debug, Deserialize)]
pub(crate) struct Preemption<'a> {
    #[serde(rename = "Pod", alias = "pod", borrow)]
    pub(crate) pod: &'a RawValue,
    #[serde(
        rename = "NodeNameToVictims",
        alias = "nodeNameToVictims",
        alias = "nodeToVictims",
        default
    )]
    pub(crate) victims: Option<BTreeMap<String, Option<Victims<PodVictim>>>>,
    #[serde(rename = "NodeNameToMetaVictims", alias = "nodeNameToMetaVictims", default)]
    pub(crate) meta_victims: Option<BTreeMap<String, Option<Victims<MetaPod>>>>,
}

/// `Victims` of whole pods, `MetaVictims` of uids.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Victims<P> {
    #[serde(rename = "Pods", alias = "pods")]
    pub(crate) pods: Option<Vec<P>>,
    #[serde(rename = "NumPDBViolations", alias = "numPDBViolations", default)]
    pub(crate) pdb_violations: i64,
}

/// A whole pod, of which only the uid counts.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PodVictim {
    pub(crate) metadata: VictimMetadata,
}

/// The part of its metadata that counts.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct VictimMetadata {
    #[serde(default)]
    pub(crate) uid: String,
}

/// `MetaPod`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MetaPod {
    #[serde(rename = "UID", alias = "uid")]
    pub(crate) uid: String,
}

/// `ExtenderPreemptionResult`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Preempted {
    pub(crate) node_name_to_meta_victims: BTreeMap<String, Victims<MetaPod>>,
}
