//! The daemon from its socket to its files, with the fakes of NVML and of the MPS control program.
//!
//! Each test has its own directories, cards and control daemons, and ends what it started. What
//! needs root, a cgroup hierarchy or a private mount namespace says so by name and is skipped
//! without.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a failed unwrap is a failed test, and tests start processes and threads"
)]

mod binary;
mod cards;
mod claims;
mod disk;
mod gate;
mod grants;
mod harness;
mod kill;
mod kubelet;
mod leases;
mod limits;
mod metrics;
mod operator;
mod qualify;
mod resize;
mod restart;
mod share;
mod shim;
mod tokens;
mod trouble;
mod watchdog;
mod wedge;
mod wire;
