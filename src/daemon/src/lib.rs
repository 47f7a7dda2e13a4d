//! `mpsgated`, the node daemon: the ledger of grants, the cards and their MPS control daemons, and the
//! socket by which shim, hook and the operator's command ask for them.
//!
//! ```text
//!  socket ─► calls ─► node (ledger, placement, trust) ◄─ watch (pidfds, cgroups)
//!                       ▲                 │
//!            keeper × card ◄─ inventory   └─► snapshot (node.json, runtime link), exec records
//!                  │              │
//!                  └── hardware ──┘  the one seam to NVML and the MPS control daemons (control)
//! ```
//!
//! One thread runs every task: a decision takes microseconds and needs the one ledger anyway, so more
//! threads would only wait for its lock. What blocks goes to tokio's blocking pool through
//! `Daemon::blocking`. Each task is owned by [`run`]'s loop, and its failure ends the process.

mod api_server;
mod arguments;
mod calls;
mod card;
mod cgroup;
mod control;
mod daemon;
mod device_plugin;
mod devices;
mod directories;
mod enforce;
mod engine;
mod error;
mod exec_record;
#[doc(hidden)]
pub mod fuzz;
mod handlers;
mod hardware;
mod inventory;
mod judged;
mod keeper;
mod limits;
mod managed;
mod metrics;
mod node;
mod node_root;
mod operator;
mod other_nodes;
mod places;
mod process;
mod qualification;
mod reload;
mod run;
mod schedule;
mod settings;
mod snapshot;
mod socket;
mod status;
mod terminate;
mod tokens;
mod watch;
mod watchdog;

pub use arguments::{Arguments, Command, command};
pub use error::DaemonError;
pub use places::Places;
pub use run::{Options, run, serve};
