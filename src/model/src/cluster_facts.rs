//! What a cluster's nodes and pods report of GPU memory. The crate that talks to the API server
//! reads it; the crate that places pods decides by it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Mib;

/// When a container of a pod runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Before the main containers, beside the sidecars that come before it in the pod's list.
    Init,
    /// An init container that keeps running, beside all containers that come after it (Kubernetes
    /// 1.28: `restartPolicy: Always`).
    Sidecar,
    /// Beside all main ones and all sidecars.
    Main,
}

/// How pods are distributed over cards and nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// The fullest that has room.
    #[default]
    Binpack,
    /// The emptiest.
    Spread,
}

// As the node label and the scheduler's flag have it.
crate::words!(Placement: Binpack = "binpack", Spread = "spread");

/// What each container has on each card, by the container's name and the card's index.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Layout(pub BTreeMap<String, BTreeMap<u32, Mib>>);

/// A card as its node reports it, in the annotation `mpsgate.io/cards`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardReport {
    /// NVML's UUID.
    pub uuid: String,
    /// NVML's index.
    pub index: u32,
    /// NVML's name; in a label only.
    #[serde(skip)]
    pub name: String,
    /// Memory that may be granted in all.
    #[serde(rename = "memory_mib")]
    pub memory: Mib,
    /// The part of it that local containers and claims hold. Pods that ask by their limits cannot
    /// have it.
    #[serde(rename = "local_mib")]
    pub local: Mib,
    /// Whether it takes new grants.
    pub healthy: bool,
    /// The only uid that its MPS server serves now, where there is such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Whether all that runs on it has to be of one uid.
    #[serde(default = "yes")]
    pub one_uid: bool,
    /// Containers that it takes; any number where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_clients: Option<u32>,
    /// What pods hold of it now, by their uid. It includes pods that the API server no longer has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: BTreeMap<String, Mib>,
    /// The guarantee level of a grant on it under MPS, for people to read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub guarantee: String,
    /// What proved that level on this node, or that nothing did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub proof: String,
}

#[cfg(any(test, feature = "testing"))]
impl CardReport {
    /// A healthy card of a test that takes one uid, and of which nothing is held.
    #[must_use]
    pub fn example(uuid: impl Into<String>, index: u32, memory: Mib) -> Self {
        Self {
            uuid: uuid.into(),
            index,
            name: String::new(),
            memory,
            local: Mib(0),
            healthy: true,
            uid: None,
            one_uid: true,
            max_clients: None,
            held: BTreeMap::new(),
            guarantee: String::new(),
            proof: String::new(),
        }
    }
}

/// The value for annotations of before the field existed: it was true of every card.
fn yes() -> bool {
    true
}

/// Which handlers of a node's engine lead through mpsgate. A handler in no list is one that the
/// engine's settings do not name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerReport {
    /// The engine: `containerd`, `crio`, or both with a comma.
    #[serde(default)]
    pub engine: String,
    /// The source of the lists.
    #[serde(default)]
    pub by: By,
    /// The handler of pods without a RuntimeClass, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Handlers that lead through mpsgate.
    #[serde(default)]
    pub led: BTreeSet<String>,
    /// Handlers that bypass mpsgate.
    #[serde(default)]
    pub round: BTreeSet<String>,
    /// Handlers of which this is not known now.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unknown: BTreeSet<String>,
}

impl HandlerReport {
    /// Whether a handler leads through mpsgate for certain.
    #[must_use]
    pub fn leads(&self, handler: &str) -> bool {
        self.led.contains(handler) && !self.unknown.contains(handler)
    }
}

/// The source of the lists of a [`HandlerReport`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// No source: the engine was not found, or its settings were not understood.
    #[default]
    Nobody,
    /// The engine's files, as mpsgate reads them. Flags of its command line may override them.
    Files,
    /// The engine's own report of its settings.
    Engine,
}

// As the annotation has it.
crate::words!(By: Nobody = "nobody", Files = "files", Engine = "engine");

/// A node with cards of mpsgate, as far as pods and RuntimeClasses select it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuNode {
    /// All its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether a label selects its sharing mode. Only an administrator of the nodes writes that
    /// label; mpsgated may not. On other nodes only the node's own report shows that mpsgate has
    /// cards there.
    pub is_switched: bool,
    /// Its report of its handlers, or why there is none: "has no annotation".
    pub handlers: Result<HandlerReport, String>,
}

/// A RuntimeClass: which handler of a node's engine runs its pods, and what it adds to them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeClass {
    /// Its name.
    pub name: String,
    /// The handler. It is empty where the object names none, which an API server does not accept.
    pub handler: String,
    /// Labels that it adds to a pod's `nodeSelector`. The tolerations that it adds are not read:
    /// taints and cordons come and go.
    pub selector: BTreeMap<String, String>,
}
