//! Sockets in kubelet's directories: the common part of the device plugin and the driver for
//! Dynamic Resource Allocation, whatever the protocol.
//!
//! A directory is used only if it belongs to root alone. A [`Socket`] there replaces one that an
//! earlier process left, answers only root, and is removed if it is still the same; its events are
//! [`SocketEvent`]s. [`Changes`] waits for sockets to come or go, and [`Retries`] decides how long
//! to wait before a failed step is tried again. Opens nothing but those directories.

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod error;
mod kubelet_directory;
mod kubelet_socket;
mod retry;
mod socket_event;

pub use error::SocketError;
pub use kubelet_directory::{Changes, Stamp, check, is_root, socket};
pub use kubelet_socket::{MESSAGE_LIMIT, Socket, Talk, converse};
pub use retry::{Retries, Retry};
pub use socket_event::{Level, SocketEvent};
