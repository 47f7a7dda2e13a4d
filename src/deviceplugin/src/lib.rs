//! Kubelet's device plugin API v1beta1: GPU memory as devices that kubelet counts, one socket per
//! resource.
//!
//! ```text
//!  Inventory ─► devices ─► ListAndWatch ─► kubelet ─► scheduler      (how much there is)
//!                          GetPreferredAllocation                    (which ids it had better take)
//!  Host::token ◄─ Allocation ◄─ Allocate ◄─ kubelet                  (a container's share of it)
//!      └── token ───────────► annotation mpsgate.io/grant
//! ```
//!
//! Kubelet counts: one device is one unit of the resource, and the resource's name defines the unit
//! ([`mpsgate_model::Resource`]). The device that a container gets is a hint at its card, never
//! capacity: the daemon's ledger decides when the container is created.
//!
//! [`serve`] runs one resource until it is stopped, over every restart of kubelet, and reports
//! [`Event`]s. Opens nothing but kubelet's directory. Called by the daemon.

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[doc(hidden)]
#[rustfmt::skip]
#[allow(clippy::all, clippy::pedantic, missing_docs, unreachable_pub, unused_qualifications, reason = "made by tonic-prost-build")]
#[path = "generated/v1beta1.rs"]
pub mod api;

mod allocate;
mod device_id;
mod devices;
mod error;
mod frame_scan;
mod plugin_event;
mod plugin_host;
mod plugin_server;
mod plugin_socket;
mod preferred;
mod register;
mod resource_kind;
mod served_resource;

pub use allocate::{Allocation, Denied};
pub use device_id::{BadId, DeviceId};
pub use devices::{Inventory, Stock, list};
pub use error::{DevicesError, PluginError};
pub use mpsgate_kubelet::{Level, MESSAGE_LIMIT, Retry, SocketEvent};
pub use plugin_event::Event;
pub use plugin_host::{Host, Pending};
pub use preferred::prefer;
pub use served_resource::{Pace, Place, serve};
