//! Kubelet's API for Dynamic Resource Allocation: GPU memory as claims, each for the containers of
//! one pod.
//!
//! ```text
//!  cards ─► slice ─► API server ─► kube-scheduler                  (how much there is)
//!  kubelet ─► NodePrepareResources ─► Host::prepare ─► ResourceClaim ─► read ─► ledger
//!                                          └── token ─► cdi: a file for each claim
//!  kubelet ─► NodeUnprepareResources ─► Host::unprepare
//!  cards ─► NodeWatchResources ─► kubelet ─► the pod's status        (how well they are)
//! ```
//!
//! [`serve`] keeps the driver registered until it is stopped, and reports [`Event`]s. What a claim
//! gives, and what a slice offers, are pure functions. Opens nothing but kubelet's directories.
//! Called by the daemon.

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[doc(hidden)]
#[rustfmt::skip]
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, unused_qualifications, reason = "made by tonic-prost-build")]
pub mod api;

mod allocation;
mod call_claims;
mod claim_cdi;
mod claim_status;
mod device_health;
mod dra_driver;
mod driver_event;
mod driver_host;
mod driver_server;
mod error;
mod parameters;
mod registration;
mod slice;

pub use allocation::{Here, RESULTS_MAX, read};
pub use claim_cdi::{device_id, file, file_name, is_file_name, variable};
pub use claim_status::{news, status};
pub use device_health::DeviceHealth;
pub use dra_driver::{Pace, Place, serve};
pub use driver_event::Event;
pub use driver_host::{Host, Pending, PreparedDevice};
pub use error::DriverError;
pub use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
pub use mpsgate_kubelet::{Level, Retry, SocketEvent};
pub use parameters::{API_VERSION, Grant, KIND, PARAMETERS_MAX, ParametersError};
pub use slice::{DEVICES_MAX, Offer, TROUBLE_TAINT, Unoffered, device_name, left_out, spec};
