//! `mpsgate-scheduler`: a kube-scheduler extender that knows every card of the cluster.
//!
//! ```text
//!  API server ─► watch of nodes, pods ─► cluster (ledger) ◄─ extender: filter, prioritize, preempt ◄─ kube-scheduler
//!       ▲                                    ▲
//!       │                                    └─ reserve ─┐
//!       └── annotations, then Binding ◄───────────────── bind, where the lease is ours
//! ```
//!
//! Owns: the one ledger, HTTP, the lease. Must never: decide where a pod goes, which is `policy::cluster`'s, or talk to
//! the API server but through `kubernetes`. Several replicas answer; one of them binds.

mod arguments;
mod ask;
mod bind;
mod cluster;
mod error;
mod extender;
mod http;
mod inspect;
mod leading;
mod logging;
mod metrics;
mod router;
mod run;
mod shared;
mod tls;
pub mod webhook;

pub use arguments::{Arguments, Level, Pack, command};
pub use error::SchedulerError;
pub use extender::parse_any;
pub use run::{run, serve};
