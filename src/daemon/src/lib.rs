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

mod api_server;
mod arguments;
mod around;
mod calls;
mod card_news;
mod card_orders;
mod cards;
mod cdi;
mod cgroup;
mod cgroup_limits;
mod claims;
mod counters;
mod daemon;
mod devices;
mod directories;
mod doors;
mod ends;
mod enforce;
mod engine;
mod error;
mod exec_record;
mod files;
#[cfg(test)]
#[path = "../../node/tests/state/fixture.rs"]
mod fixture;
#[doc(hidden)]
pub mod fuzz;
mod handlers;
mod handover;
mod hardware;
mod inventory;
mod jobs;
mod kubelet;
mod line;
mod machine;
mod managed;
mod metrics;
mod node_root;
mod operator;
mod orders;
mod other_nodes;
mod owner;
mod paths;
mod plugin;
mod pods;
mod process;
mod program;
mod qualification;
mod record;
mod reload;
mod run;
mod runs;
mod settings;
mod sharing;
mod slurm;
mod snapshot;
mod socket;
mod status;
mod tell;
mod terminate;
mod token_store;
mod tokens;
mod turns;
mod usage;
mod users;
mod watchdog;

pub use arguments::{Arguments, Command, command};
pub use error::DaemonError;
pub use files::{FileKind, Files};
pub use paths::{PROGRAM, Paths};
pub use run::{Options, run, serve};
