//! The daemon's part of the driver. It implements the trait; `driver_server` and `dra_driver` call
//! it.

use std::pin::Pin;

use mpsgate_model::ClaimName;

use crate::Event;

/// An answer that is still to come.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What kubelet passes to the container engine for one request of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedDevice {
    /// The request's name in the claim. For a request with alternatives it is
    /// `REQUEST/ALTERNATIVE`; kubelet gets `REQUEST`, which is the name in containers.
    pub request: String,
    /// The pool of the ResourceSlice that has the device.
    pub pool: String,
    /// The device's name in that slice.
    pub device: String,
    /// Kubernetes' id of this part of the device.
    pub share_id: Option<String>,
    /// The CDI devices for containers with this request.
    pub cdi_ids: Vec<String>,
}

/// The daemon's part of the driver. Errors are sentences for the pod's events.
///
/// There is never more than one call at a time for one claim, by its uid. A call is dropped after
/// [`Pace::claim`](crate::Pace::claim), and if kubelet hangs up. Its work must then be whole or
/// undone, because kubelet asks again.
pub trait Host: Send + Sync {
    /// Sets aside what was allocated to the claim. A second call returns the same.
    fn prepare(&self, claim: ClaimName) -> Pending<'_, Result<Vec<PreparedDevice>, String>>;
    /// Gives it back. For a claim that was never prepared this succeeds.
    fn unprepare(&self, claim: ClaimName) -> Pending<'_, Result<(), String>>;
    /// Receives an event. Must not block.
    fn tell(&self, event: Event);
}
