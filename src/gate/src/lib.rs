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

mod arguments;
mod call;
mod client;
pub mod confine;
mod directory;
mod door;
mod doors;
mod effect;
mod error;
pub mod filter;
#[doc(hidden)]
pub mod fuzz;
mod kernel;
mod lock;
mod parent;
mod question;
mod serve;
mod signals;
mod sockets;
mod store;
pub mod view;
mod wire;

pub use arguments::{Arguments, command};
pub use door::Bounds;
pub use error::GateError;
pub use lock::{Lock, lock};
pub use mpsgate_model::door::Container;
pub use parent::start_all;
pub use serve::{Options, serve};
pub use store::Store;
