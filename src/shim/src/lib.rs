//! `mpsgate-runtime` and `mpsgate-hook`: the programs in every container start of a node.
//!
//! [`runtime::main`] passes through, refuses, or edits `config.json`, and then becomes the real
//! runtime. [`hook::main`] checks the container that really came out. Both run as root for every
//! container, so they have no threads, no network and no NVML, read no environment, and open
//! nothing that a container or an annotation names, except to look at its inode.
//!
//! A container that asked for nothing of ours is passed on byte for byte, even where our own
//! configuration or daemon is broken; one that did ask is refused with a hint, never started
//! without its limits.

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod bundle;
mod card_mounts;
mod create;
mod entry;
mod evaluate;
mod exec;
mod exec_verb;
mod facts;
#[doc(hidden)]
pub mod fuzz;
mod grant;
pub mod hook;
mod kill_verb;
mod marks;
mod mounts;
mod precreate;
mod process;
mod record;
mod replace;
mod report;
pub mod runtime;
mod update_verb;

pub use entry::arguments;
