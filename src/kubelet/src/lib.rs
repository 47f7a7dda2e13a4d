//! Sockets in kubelet's directories: what the device plugin and the driver for Dynamic Resource
//! Allocation have in common, whatever is said on a socket.
//!
//! A directory is used where it is root's alone. A [`Socket`] there is replaced where an earlier
//! process left it, answers root alone, and is removed where it is still ours; what happens to it
//! is told as [`SocketEvent`]s. [`Changes`] tells when one comes or goes, and [`Retries`] how long
//! to wait before what failed is tried again. Opens nothing but those directories.

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod directory;
mod error;
mod event;
mod retry;
mod socket;

pub use directory::{Changes, Stamp, check, is_root, socket};
pub use error::SocketError;
pub use event::{Level, SocketEvent};
pub use retry::{Retries, Retry};
pub use socket::{MESSAGE_LIMIT, Socket, Talk, converse};
