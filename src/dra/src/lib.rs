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

mod cdi;
mod claims;
mod driver;
mod error;
mod event;
mod health;
mod host;
mod parameters;
mod read;
mod registration;
mod server;
mod slice;
mod status;

pub use cdi::{device_id, file, file_name, is_file_name, variable};
pub use driver::{Pace, Place, serve};
pub use error::DriverError;
pub use event::Event;
pub use health::DeviceHealth;
pub use host::{Host, Pending, PreparedDevice};
pub use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
pub use mpsgate_kubelet::{Level, Retry, SocketEvent};
pub use parameters::{API_VERSION, Grant, KIND, PARAMETERS_MAX, ParametersError};
pub use read::{Here, RESULTS_MAX, read};
pub use slice::{DEVICES_MAX, Offer, TROUBLE_TAINT, Unoffered, device_name, left_out, spec};
pub use status::{news, status};
