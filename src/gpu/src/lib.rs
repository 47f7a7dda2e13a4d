//! NVML, loaded at run time, as plain structs.
//!
//! Owns the one NVML handle of a process: the cards, whether they can be shared under MPS, their
//! processes, and their compute mode. Every call blocks; an async caller goes through
//! `spawn_blocking`. Decides nothing about grants. Called by the daemon and the operator's command,
//! never by the shim.

mod card;
mod error;
mod limits;
mod memory;
mod nvml;
mod process;
mod simulated;

pub use card::{Card, MigState, Unfit};
pub use error::{CardAction, CardError, GpuError, LimitAction};
pub use limits::{MemoryLimit, MemoryLimits};
pub use memory::advertised_mib;
pub use nvml::Nvml;
pub use nvml_wrapper::error::NvmlError;
pub use process::{GpuProcess, ProcessKind, ProcessList};
