//! One NVIDIA MPS control daemon per card: its directories, its process, its control channel.
//!
//! ```text
//!  ensure_running ──► channel.set_default_limit ──► ensure_gate ──► ensure_server ──► grants
//!        │ adopt or start          read back            doors           ACTIVE?
//!        ▼
//!      stop: quit ──► SIGTERM ──► SIGKILL ──► files and directories removed
//! ```
//!
//! Blocking; no async, no NVML, no policy. It runs only these programs: the control program (as
//! front-end, and by the launcher as daemon), `mpsgated` as launcher and holder, `mpsgate-gate`,
//! and `systemctl`. Facts marked "measured" were seen on `nvidia-cuda-mps` 535.261.03 and
//! 550.163.01 without a GPU; `tests/contract.rs` repeats them. The behaviour of servers and clients
//! needs a GPU and is marked "unverified".

mod channel;
mod connection;
mod door_name;
mod error;
mod file_lock;
mod find;
mod gate;
mod hold_spawner;
mod instance;
mod kept_programs;
mod launch;
mod layout;
mod log_file;
mod mode_lease;
mod mps_capability;
mod mps_clients;
mod mps_process;
mod mps_state;
mod orphan;
pub mod protocol;
mod root;
mod server;
mod spawner;
mod start;
mod stop;
mod subprocess;
pub mod supervisor;
mod sys;
mod wedge_cause;

pub use channel::Channel;
pub use connection::Connections;
pub use error::MpsError;
pub use hold_spawner::{HoldSpawner, OwnHolder, choose_spawner};
pub use instance::{ControlDaemon, MpsInstance};
pub use kept_programs::{Kept, server_of};
pub use launch::{LaunchError, launch};
pub use layout::{MpsDirectories, Repair};
pub use log_file::LogFile;
pub use mode_lease::{Lease, LeaseDir, Taken};
pub use mps_capability::Capabilities;
pub use mps_process::Process;
pub use mps_state::{MpsState, Server};
pub use mpsgate_host::process::Signal;
pub use root::Root;
pub use server::ServerOutcome;
pub use spawner::{Spawner, Started, UnitSpawner};
pub use start::Origin;
pub use stop::{StopReport, StoppedBy};
pub use wedge_cause::{Glance, WedgeCause};
