//! The device plugin's tokens: by them this node knows again what it gave to a pod's container.
//!
//! ```text
//! mpsgate1.KEY.CLAIMS.MAC
//! ```
//!
//! An annotation that kubelet puts on a container, as the device plugin's `Allocate` answered. KEY
//! names one of the node's keys, CLAIMS is JSON ([`Claims`]) and MAC is HMAC-SHA-256 over
//! everything before its dot, both as base64url without padding. Nothing of the claims is looked at
//! before the MAC fits.
//!
//! `Allocate` does not know for which pod it is asked, so a token belongs to the container that
//! first brings it ([`Bearer`]): its restarts may bring it again, nobody else may. Kubelet keeps
//! the answer in its checkpoint and replays it after a reboot, so keys and uses lie on disk
//! ([`Store`]) and an old key lasts as long as a pod that used it. Records have no end: what is
//! large is rotated and made short, what is damaged is closed, and neither ends the service
//! ([`Store::tidy`]). Who may read that directory may give himself GPU memory: it is root's alone.
//!
//! Must never read the environment, a clock, or any file except below the directory that the caller
//! names. Called by the daemon.

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod error;
mod id;
mod keys;
mod store;
mod text;
mod uses;

pub use error::StoreError;
pub use id::{Id, KeyId, TokenId};
pub use keys::{Key, Keys, KeysError};
pub use store::{News, ROTATE_AFTER_MS, ROTATE_FROM, Store, UNUSED_AFTER_MS};
pub use text::{Claims, Share, TokenError};
pub use uses::{Bearer, Owner, Uses};
