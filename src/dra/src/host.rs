//! What the daemon does for the driver. It implements the trait; `server` and `driver` call it.

use std::pin::Pin;

use mpsgate_model::ClaimName;

use crate::Event;

/// An answer that is still to come.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What kubelet is to hand to the container engine for one request of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedDevice {
    /// The request's name in the claim. Of a request with alternatives `REQUEST/ALTERNATIVE`;
    /// kubelet gets to know `REQUEST`, which is what containers name.
    pub request: String,
    /// The pool of the ResourceSlice that has the device.
    pub pool: String,
    /// The device's name in that slice.
    pub device: String,
    /// Kubernetes' id of this part of the device.
    pub share_id: Option<String>,
    /// The CDI devices that containers with this request get.
    pub cdi_ids: Vec<String>,
}

/// What the daemon does for the driver. Errors are sentences for the pod's events.
///
/// Of one claim, by its uid, there is never more than one call at a time. A call is dropped after
/// [`Pace::claim`](crate::Pace::claim), and where kubelet hangs up: what it began must then be
/// whole or undone, as kubelet asks again.
pub trait Host: Send + Sync {
    /// Keeps what was allocated to the claim. Asked again, it gives the same.
    fn prepare(&self, claim: ClaimName) -> Pending<'_, Result<Vec<PreparedDevice>, String>>;
    /// Gives it back. One that was never prepared is given back already.
    fn unprepare(&self, claim: ClaimName) -> Pending<'_, Result<(), String>>;
    /// Takes note of what happened. Must not block.
    fn tell(&self, event: Event);
}
