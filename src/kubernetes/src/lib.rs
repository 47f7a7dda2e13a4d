//! The API server's side of a node: its pods, its own object, events.
//!
//! Owns: one client of one API server. Must never: decide, start anything, or stop mpsgated: every
//! function that talks is a future that goes on for ever, and says in what it publishes how it
//! stands. Called by: the daemon, which spawns the futures and drops them at its end.
//!
//! ```text
//!  pods() ──► watch::Receiver<Arc<Pods>> ──► bound_pods(): what bound pods may still take
//!  node() ──► watch::Receiver<Arc<Node>>     ◄── watch::Sender<Option<NodeReport>>: what is written there
//!  events() ◄── Recorder::report(…)
//!  resource_slices() ──► watch::Receiver<Arc<Slices>>  ◄── watch::Sender<Wanted>: the cards as devices of DRA
//! ```

mod api_access;
mod asked;
mod bound_pod;
mod chosen;
mod claim_api;
mod classes;
mod cluster_watch;
mod error;
mod event;
mod event_fold;
mod follow;
#[doc(hidden)]
pub mod fuzz;
mod handler_annotation;
mod lease;
mod listen;
mod node_object;
mod node_task;
mod objects;
mod placed;
mod pod;
mod pod_binding;
mod pod_watch;
mod rbac;
mod read;
mod removal_api;
mod requests;
mod resource_slice;
mod seen;
mod slice_spec;
mod time;
mod wire;

pub use api_access::{Patience, Settings, Source};
pub use asked::{SliceSize, slices_asked};
pub use bound_pod::{BoundPod, bound_pods};
pub use claim_api::{Claims, memory_asked, parse_claim};
pub use classes::runtime_classes;
pub use cluster_watch::{Change, ClusterNode, cluster_nodes, cluster_pods};
pub use error::Error;
pub use event::{Recorder, events};
pub use event_fold::{Event, Reason, Severity, Subject};
pub use follow::State;
pub use handler_annotation::{BYPASS, HANDLERS, parse_handlers};
pub use lease::{Lead, LeaseSettings, lead};
pub use node_object::{
    CARDS, CONDITION, ConditionReport, Labels, Node, NodeReport, REMOVAL, SHARED, parse_cards,
};
pub use node_task::node;
pub use placed::{Placed, WRITTEN};
pub use pod::{Container, Lifecycle, LimitError, Limits, PLACEMENT, Pod, Pods, parse_limits};
pub use pod_binding::{Binder, Fetched, WriteError};
pub use pod_watch::{pods, wait_for_pod};
pub use rbac::{
    DRA_RULES, REMOVAL_OWN_RULES, REMOVAL_RULES, RULES, Rule, SCHEDULER_DRA_RULES,
    SCHEDULER_LABEL_RULES, SCHEDULER_LEASE_RULES, SCHEDULER_RULES,
};
pub use read::LeftOut;
pub use removal_api::{Remains, Remover, Which};
pub use resource_slice::{Slices, Wanted, resource_slices};
pub use seen::{Access, Seen, SeenError, SeenNode, seen};
pub use time::now;
