//! NVML, loaded at run time, as plain structs.
//!
//! Owns the one NVML handle of a process: the cards, whether they can be shared under MPS, their
//! processes, and their compute mode. Every call blocks; an async caller goes through
//! `spawn_blocking`. Decides nothing about grants. Called by the daemon and the operator's command,
//! never by the shim.

mod error;
mod gpu_processes;
mod memory_limits;
mod nvml;
mod nvml_card;
mod offered_memory;
mod simulated;

pub use error::{CardAction, CardError, GpuError, LimitAction};
pub use gpu_processes::{GpuProcess, ProcessKind, ProcessList};
pub use memory_limits::{MemoryLimit, MemoryLimits};
pub use nvml::Nvml;
pub use nvml_card::{Card, MigState, Unfit};
pub use nvml_wrapper::error::NvmlError;
pub use offered_memory::advertised_mib;
