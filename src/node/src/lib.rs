//! The state of a node: its cards, the grants on them, whose requests count, the sharing mode; and
//! what follows from each change.
//!
//! Pure and synchronous: no file, clock, environment, process or socket (`clippy.toml` bans them).
//! What the state must know of the machine it asks of a [`Machine`], times are arguments, and what
//! is to be done is an [`Effect`]. Called by the daemon's tasks, which share one [`Node`] behind a
//! lock.
//!
//! ```text
//!   call, look, order ─► Node ─► answer
//!              Machine ◄─┘ └─► Effects ─► Daemon::change: records, log, ledger's file, cards, events
//! ```

mod backend;
pub mod card;
mod effect;
mod grant_devices;
pub mod holders;
mod machine;
pub mod memory;
pub mod overuse;
pub mod refusal_counts;
mod refuse;
pub mod slice_sizes;
mod state;
mod trouble;
pub mod usage_sums;

pub use backend::Backend;
pub use effect::{Effect, Why};
pub use machine::Machine;
pub use state::sharing;
pub use state::{
    AtDoor, Confirmed, Driver, Kills, NOT_YET, Node, Reserved, Resizing, not_prepared,
};
