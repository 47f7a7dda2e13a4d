//! Keeps MPS control daemons alive while mpsgated comes and goes, where no systemd keeps a unit for
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
//! It starts, reaps and ends; what a card's daemon should be doing is mpsgated's to know. One
//! thread, no async, no settings file: ending it ends the CUDA work of every container with a
//! grant, so it must seldom need another version of itself.

mod client;
mod error;
mod message;
mod rules;
mod server;
mod store;

pub use client::ask;
pub use error::HoldError;
pub use message::{Answer, MAX_BYTES, Request, Start, decode, encode};
pub(crate) use server::open_log;
pub use server::{Options, serve};

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The socket in the holder's directory.
#[must_use]
pub fn socket(dir: &Path) -> PathBuf {
    dir.join("hold.sock")
}

/// Device and inode of a `/`: tells whose root directory a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
}

impl Root {
    /// Of a process, by its pid or `self`; `None` where it cannot be seen.
    #[must_use]
    pub fn of(process: &str) -> Option<Self> {
        let found = fs::metadata(format!("/proc/{process}/root/")).ok()?;
        Some(Self { dev: found.dev(), ino: found.ino() })
    }

    /// The holder's, as it wrote it down when it started: servers of its control daemons have it as
    /// well, also those that outlived it. `None` where none was ever there.
    #[must_use]
    pub fn of_holder(dir: &Path) -> Option<Self> {
        let text = fs::read_to_string(Self::file(dir)).ok()?;
        let (dev, ino) = text.trim_end().split_once(' ')?;
        Some(Self { dev: dev.parse().ok()?, ino: ino.parse().ok()? })
    }

    fn file(dir: &Path) -> PathBuf {
        dir.join("root")
    }
}
