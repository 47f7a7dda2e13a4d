//! A ResourceClaim of Kubernetes, as this node gives it memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ComputeShare, GpuUuid, Mib, Priority};

/// The name of mpsgate's driver for Dynamic Resource Allocation.
pub const DRIVER: &str = "mpsgate.io";
/// The name under which the ledger counts memory of claims, beside kubelet's resources.
pub const CLAIM: &str = "mpsgate.io/claim";

/// The identity of a ResourceClaim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClaimName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid. A later claim of the same name has another uid.
    pub uid: String,
}

impl fmt::Display for ClaimName {
    /// `default/gpu-7gi`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What one request of a claim was given: a part of one card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimShare {
    /// The request's name in the claim; of a request with alternatives `REQUEST/ALTERNATIVE`.
    pub request: String,
    /// The pool of the ResourceSlice that has the device.
    pub pool: String,
    /// The device's name in that slice.
    pub device: String,
    /// Kubernetes' id of this part of the device.
    pub share_id: Option<String>,
    /// The card.
    pub card: GpuUuid,
    /// GPU memory: what was consumed, not what was asked.
    pub memory: Mib,
    /// Share of the card's compute, where it has one.
    pub compute: Option<ComputeShare>,
    /// Scheduling priority.
    pub priority: Priority,
}

/// A claim whose shares are kept for the containers of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedClaim {
    /// The claim.
    pub claim: ClaimName,
    /// The uid of the one pod that it is reserved for.
    pub pod_uid: String,
    /// One share for each of its requests that mpsgate's driver serves.
    pub shares: Vec<ClaimShare>,
}

impl PreparedClaim {
    /// The key of one of its shares in the ledger.
    #[must_use]
    pub fn key(&self, share: &ClaimShare) -> ShareKey {
        ShareKey { claim_uid: self.claim.uid.clone(), request: share.request.clone() }
    }
}

/// The identity of a share: its claim, and the request in that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareKey {
    /// The claim's uid.
    pub claim_uid: String,
    /// The request's name in the claim.
    pub request: String,
}
