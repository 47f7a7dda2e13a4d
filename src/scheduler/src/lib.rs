//! `mpsgate-scheduler`: a kube-scheduler extender that knows every card of the cluster.
//!
//! ```text
//!  API server ─► watch of nodes, pods ─► cluster (ledger) ◄─ extender: filter, prioritize, preempt ◄─ kube-scheduler
//!       ▲                                    ▲
//!       │                                    └─ reserve ─┐
//!       └── Binding, with annotations ◄───────────────── bind, where the lease is ours
//! ```
//! Whoever is in the cluster's network may reach its port. So what is asked is bounded (`http`,
//! `desk`), searched in a copy of the ledger on threads of its own, and lease, watches and probes
//! are served on others: no request can keep them.
//!
//! Owns: the one ledger, HTTP, the lease. Must never: decide where a pod goes, which is
//! `cluster`'s, or talk to the API server but through `kubernetes`. Several replicas answer; one of
//! them binds.

mod args;
mod bind;
mod cluster;
mod desk;
mod error;
mod extender;
mod http;
mod inspect;
mod known;
mod leading;
mod ledger_input;
mod pod_claims;
mod removal;
mod router;
mod scheduler_metrics;
mod shared_state;
mod tasks;
mod tls;
pub mod webhook;

pub use args::{Arguments, Level, Removal, command};
pub use error::SchedulerError;
pub use extender::parse_any;
pub use removal::remove;
pub use tasks::{run, serve};
