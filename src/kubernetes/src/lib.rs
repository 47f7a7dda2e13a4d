//! The API server's side of a node: its pods, its own object, events.
//!
//! Owns: one client of one API server. Must never: decide, start anything, or stop mpsgated: every function that talks
//! is a future that goes on for ever, and says in what it publishes how it stands. Called by: the daemon, which
//! spawns the futures and drops them at its end.
//!
//! ```text
//!  pods() ──► watch::Receiver<Arc<Pods>> ──► promises(): what bound pods may still take
//!  node() ──► watch::Receiver<Arc<Node>>     ◄── watch::Sender<Option<NodeReport>>: what is written there
//!  events() ◄── Recorder::report(…)
//! ```

mod asked;
mod chosen;
mod error;
mod event;
mod event_fold;
mod follow;
mod node;
mod node_task;
mod pod;
mod pods;
mod promise;
mod quantity;
mod rbac;
mod settings;
mod time;
mod wire;

pub use asked::slices_asked;
pub use error::Error;
pub use event::{Recorder, events};
pub use event_fold::{Event, Reason, Severity, Subject};
pub use follow::State;
pub use node::{
    CARDS, CONDITION, CardReport, Labels, Node, NodeReport, Placement, Readiness, SHARED,
};
pub use node_task::node;
pub use pod::{Container, GPU_COUNT, GPU_MEMORY, Kind, Life, LimitError, Limits, Pod, Pods};
pub use pods::{pods, wait_for_pod};
pub use promise::{Promise, promise, promises};
pub use quantity::{QuantityError, parse_count};
pub use rbac::{RULES, Rule};
pub use settings::{Settings, Source};
