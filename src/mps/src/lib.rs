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

mod capability;
mod channel;
mod client;
mod connection;
mod door_name;
mod error;
mod find;
mod gate;
mod glance;
mod hold_spawner;
mod instance;
mod kept;
mod launch;
mod layout;
mod lease;
mod lock;
mod log_file;
mod orphan;
mod process;
pub mod protocol;
mod root;
mod run;
mod server;
mod spawner;
mod start;
mod state;
mod stop;
pub mod supervisor;
mod sys;

pub use capability::Capabilities;
pub use channel::Channel;
pub use connection::Connections;
pub use error::MpsError;
pub use glance::{Glance, WedgeCause};
pub use hold_spawner::{HoldSpawner, OwnHolder, choose_spawner};
pub use instance::{ControlDaemon, MpsInstance};
pub use kept::{Kept, server_of};
pub use launch::{LaunchError, launch};
pub use layout::{MpsDirectories, Repair};
pub use lease::{Lease, LeaseDir, Taken};
pub use log_file::LogFile;
pub use mpsgate_host::process::Signal;
pub use process::Process;
pub use root::Root;
pub use server::ServerOutcome;
pub use spawner::{Spawner, Started, UnitSpawner};
pub use start::Origin;
pub use state::{MpsState, Server};
pub use stop::{StopReport, StoppedBy};
