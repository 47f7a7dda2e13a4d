//! `mpsgated`, the node daemon: the ledger of grants, the cards and their MPS control daemons, and
//! the socket by which shim, hook and the operator's command ask for them.
//!
//! ```text
//!  tasks      socket ─► calls    cards (one task each)   inventory   pods   plugin   sharing   watchdog
//!             cgroup_limits   claims   handlers   tokens   metrics   reload   ends
//!                │ what one wants of another is an order, a notice or the state
//!  services   handover   snapshot   enforce   kubelet
//!                ▼
//!  shared     daemon: state, handles, the start of tasks ─► orders, api_server, token_store
//!                ▼
//!  seams      hardware: the one to NVML and the MPS control daemons   files: the one to our files
//!                ▼
//!  state      mpsgate-node: ledger, cards, placement, trust, schedule; effects are done by Daemon::change
//!             around: kubelet, engines, Prometheus, and what the API server is shown
//! ```
//!
//! Imports go down. No module imports another in a circle: `tests/house` looks at that.
//!
//! One thread runs every task: a decision takes microseconds and needs the one ledger anyway, so
//! more threads would only wait for its lock. What is written goes to the threads of [`Files`],
//! and what else blocks to tokio's blocking pool through `Daemon::blocking`. Each task is owned by
//! [`run`]'s loop, and its failure ends the process.

mod answer_files;
mod api_server;
mod args;
mod around;
mod calls;
mod card_news;
mod card_orders;
mod cards;
mod cgroup_limits;
mod claims;
mod container_cgroup;
mod counters;
mod daemon;
mod daemon_paths;
mod device_nodes;
mod directories;
mod ends;
mod enforce;
mod engine_settings;
mod error;
mod exec_record;
mod files;
#[cfg(test)]
#[path = "../../node/tests/state/fixture.rs"]
mod fixture;
#[doc(hidden)]
pub mod fuzz;
mod grant_doors;
mod handler_watch;
mod handover;
mod hardware;
mod inventory;
mod jobs;
mod kubelet;
mod ledger_record;
mod line;
mod managed;
mod metrics;
mod node_cdi;
mod node_programs;
mod node_root;
mod operator;
mod orders;
mod other_nodes;
mod owner;
mod plugin;
mod pods;
mod process_end;
mod real_machine;
mod reload_settings;
mod runs;
mod scontrol;
mod service;
mod settings_in_force;
mod sharing_task;
mod snapshot;
mod socket;
mod status_call;
mod tell;
mod terminate;
mod token_store;
mod tokens;
mod usage_files;
mod user_database;
mod user_turns;
mod watchdog;

pub use args::{Arguments, Command, command};
pub use daemon_paths::{PROGRAM, Paths};
pub use error::DaemonError;
pub use files::{FileKind, Files};
pub use service::{Options, run, serve};
