//! `mpsgate-runtime` and `mpsgate-hook`: the programs in every container start of a node.
//!
//! [`runtime::main`] passes through, refuses, or edits `config.json`, and then becomes the real
//! runtime. [`hook::main`] checks the container that was made. Both run as root for every
//! container. So they have no threads, no network and no NVML, read no environment, and open
//! nothing that a container or an annotation names, except to look at its inode.
//!
//! A container that does not use mpsgate is passed on byte for byte, even if mpsgate's settings or
//! daemon are broken. A container with a request is then refused with a hint, and never started
//! without its limits.

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod alloc;
mod ask_grant;
mod card_mounts;
mod create;
mod descriptors;
mod engine_log;
mod entry;
mod evaluate;
mod exec;
mod exec_verb;
mod facts;
#[doc(hidden)]
pub mod fuzz;
mod grant_record;
pub mod hook;
mod kill_verb;
mod marks;
mod mounts;
mod oci_bundle;
mod precreate;
mod replace;
pub mod runtime;
mod update_verb;

pub use entry::arguments;
