//! Keeps MPS control daemons running while mpsgated restarts, where no systemd keeps a unit for
//! each card: as a pod, a unit or a process of its own, `mpsgated hold`. On a host it starts the
//! cards' gates, too.
//!
//! ```text
//!  mpsgated ── start card 0 … ──► <run>/hold/hold.sock (root's, 0600, in a directory 0700)
//!           ◄── started PID ──── mpsgated hold ──► launch ──► nvidia-cuda-mps-control -f   (its child)
//!  gates ── keep, take ────► <run>/mps/store.sock (root's): their sockets, and nothing else
//!  SIGTERM (the pod is deleted) ──► quit ──► SIGTERM ──► SIGKILL to all of them
//! ```
//!
//! It starts, reaps and ends processes; mpsgated decides about the state of a card's daemon. One
//! thread, no async, no settings file: ending it ends the CUDA work of every container with a
//! grant, so it must seldom need another version of itself.

mod error;
mod holder_client;
mod holder_message;
mod holder_server;
mod rules;
mod socket_store;

pub use error::HoldError;
pub use holder_client::ask;
pub use holder_message::{Answer, MAX_BYTES, Request, Start, decode, encode};
pub(crate) use holder_server::open_log;
pub use holder_server::{Options, serve};

use std::path::{Path, PathBuf};

/// The socket in the holder's directory.
#[must_use]
pub fn socket(dir: &Path) -> PathBuf {
    dir.join("hold.sock")
}
