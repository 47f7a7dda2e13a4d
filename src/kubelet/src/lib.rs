//! Sockets in kubelet's directories: what the device plugin and the driver for Dynamic Resource
//! Allocation have in common, whatever is said on a socket.
//!
//! A directory is used where it is root's alone. A [`Socket`] there is replaced where an earlier
//! process left it, answers root alone, and is removed where it is still ours. [`Changes`] tells
//! when one comes or goes. Opens nothing but those directories.

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod backoff;
mod directory;
mod error;
mod level;
mod socket;

pub use backoff::Backoff;
pub use directory::{Changes, Stamp, check, is_root, socket};
pub use error::SocketError;
pub use level::Level;
pub use socket::{MESSAGE_LIMIT, Socket, Talk, converse};
