//! `mpsgate-gate`: the containers' doors to the MPS control daemon of one card.
//!
//! ```text
//!  container ── control ──► gate ──► nvidia-cuda-mps-control
//!               its own     │  speaks the client's first words, passes one descriptor on
//!                 ▲         │
//!                 │         └──► mpsgated: the server's memory limit is this container's
//!  mpsgated ── <name>/, <name>.json       what the gate serves, and to whom
//! ```
//!
//! Nothing of a container's goes to the control daemon but who it is and that it is a CUDA client.
//! One thread, no async, no settings: it reads what containers send, and holds two capabilities. It
//! decides nothing about memory.

mod args;
pub mod confine;
mod control_call;
mod door;
mod door_directory;
mod door_effect;
mod doors;
mod error;
pub mod filter;
#[doc(hidden)]
pub mod fuzz;
mod gate_lock;
mod handshake;
mod kernel;
mod listener_store;
pub mod mount_view;
mod mps_wire;
mod parent;
mod question;
mod serve;
mod signal_wait;
mod sockets;

pub use args::{Arguments, command};
pub use door::Bounds;
pub use error::GateError;
pub use gate_lock::{Lock, lock};
pub use listener_store::Store;
pub use mpsgate_model::door_file::Container;
pub use parent::start_all;
pub use serve::{Options, serve};
