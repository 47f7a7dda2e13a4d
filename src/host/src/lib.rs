//! The machine: one way to do what several programs do with files, sockets, processes and cgroups.
//!
//! Blocking and without settings: callers choose paths, modes and durability. Every crate that
//! touches the machine uses it, the shim among them: so it has no threads, no environment, and few
//! dependencies.

pub mod bound_socket;
pub mod cgroup;
pub mod clock;
pub mod crash;
pub mod door_place;
pub mod engine;
pub mod exchange;
pub mod fd_store;
pub mod file;
pub mod format;
pub mod process;
pub mod procfs;
pub mod program;
pub mod random;
pub mod seats;
