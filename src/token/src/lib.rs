//! The device plugin's tokens, by which this node recognises what it gave to a pod's container.
//!
//! ```text
//! mpsgate1.KEY.CLAIMS.MAC
//! ```
//!
//! A token is an annotation that kubelet puts on a container, as the device plugin's `Allocate`
//! answered. KEY names one of the node's keys, CLAIMS is JSON ([`Claims`]) and MAC is HMAC-SHA-256
//! over everything before its dot, both as base64url without padding. No claim is read before the
//! MAC was checked.
//!
//! `Allocate` does not learn which pod it is asked for, so a token belongs to the container that
//! first brings it ([`Bearer`]). Only that container's restarts may bring it again. Kubelet keeps
//! the answer in its checkpoint and replays it after a reboot, so keys and uses are on disk
//! ([`Store`]) and an old key lasts as long as a pod that used it. Records grow without end: a
//! large one is rotated and shortened, a damaged one is closed, and neither ends the service
//! ([`Store::tidy`]). A reader of that directory could give himself GPU memory, so only root can
//! read it.
//!
//! Must never read the environment, a clock, or any file except below the directory that the caller
//! names. Called by the daemon.

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod error;
mod store;
mod token_id;
mod token_keys;
mod token_text;
mod uses;

pub use error::StoreError;
pub use store::{News, ROTATE_AFTER_MS, ROTATE_FROM, Store, UNUSED_AFTER_MS};
pub use token_id::{Id, KeyId, TokenId};
pub use token_keys::{Key, Keys, KeysError};
pub use token_text::{Claims, Share, TokenError};
pub use uses::{Bearer, Owner, Uses};
