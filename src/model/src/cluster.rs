//! What a cluster's nodes and pods say of GPU memory: read by the crate that talks to the API
//! server, decided by in the one that places pods.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Mib;

/// When a container of a pod runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Before the main ones, alone beside the sidecars that stand before it.
    Init,
    /// An init container that goes on: beside all that come after it (Kubernetes 1.28:
    /// `restartPolicy: Always`).
    Sidecar,
    /// Beside all main ones and all sidecars.
    Main,
}

/// How pods are laid over cards and nodes.
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
    /// Of that what local containers and claims hold: not for pods that ask by their limits.
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
    /// What pods hold of it now, by their uid: also one that the API server has no more.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: BTreeMap<String, Mib>,
    /// The level that a grant of it has under MPS, for people to read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub guarantee: String,
    /// What showed that here, or that nothing did.
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

/// What was true of every card before the field was written.
fn yes() -> bool {
    true
}

/// How the handlers of a node's engine stand to mpsgate. One that is in no list is one that the
/// engine's settings do not name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerReport {
    /// The engine: `containerd`, `crio`, or both with a comma.
    #[serde(default)]
    pub engine: String,
    /// What the lists rest on.
    #[serde(default)]
    pub by: By,
    /// The handler of pods without a RuntimeClass, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Through mpsgate.
    #[serde(default)]
    pub led: BTreeSet<String>,
    /// Bypass it.
    #[serde(default)]
    pub round: BTreeSet<String>,
    /// Nobody knows, now.
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

/// What the lists of a [`HandlerReport`] rest on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Nothing: the engine was not found, or not understood.
    #[default]
    Nobody,
    /// Its files, as mpsgate reads them: flags of its command line may say something else.
    Files,
    /// Its own reading of its settings.
    Engine,
}

// As the annotation has it.
crate::words!(By: Nobody = "nobody", Files = "files", Engine = "engine");

/// A node with cards of mpsgate's, as a pod chooses it and its RuntimeClass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuNode {
    /// All its labels.
    pub labels: BTreeMap<String, String>,
    /// A label switches it, which whoever administers the nodes writes, and mpsgated may not. Of
    /// another one its own report alone says that mpsgate has cards there.
    pub is_switched: bool,
    /// What it says of its handlers; where nothing, why: "has no annotation".
    pub handlers: Result<HandlerReport, String>,
}

/// A RuntimeClass: which handler of a node's engine runs its pods, and what it adds to them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeClass {
    /// Its name.
    pub name: String,
    /// The handler; empty where it names none, which an API server does not take.
    pub handler: String,
    /// Labels that it adds to a pod's `nodeSelector`. The tolerations that it adds are not read:
    /// taints and cordons come and go.
    pub selector: BTreeMap<String, String>,
}
