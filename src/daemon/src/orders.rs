//! What one task wants of another: values that are sent to it.

use std::collections::BTreeSet;

use mpsgate_model::door_file::{Counts, Prepared};
use mpsgate_model::ledger::{CgroupId, Entry, ProcessId};
use mpsgate_model::{GpuUuid, GrantKey, Instance, Mib, Refusal};
use mpsgate_mps::Server;
use mpsgate_node::card::Trouble;
use tokio::sync::oneshot;

use crate::{container_cgroup, process_end};

/// What a card task is asked to do.
#[derive(Debug)]
pub(crate) enum Order {
    /// A server for this uid must take clients.
    Server { uid: u32, reply: oneshot::Sender<Result<(), Refusal>> },
    /// The smallest grant of the card may have changed: let MPS know.
    Cap,
    /// A client of this container is to be handed over: its server must have the container's limit.
    /// Void where whoever asked does not wait any more.
    Prepare { instance: Instance, client: Option<ProcessId>, reply: oneshot::Sender<Prepared> },
    /// The card's gate cannot serve anybody, and why.
    Unserved { why: String },
    /// What became of the clients at the card's doors, and which gate says so.
    GateCounts(Counts, Option<ProcessId>),
    /// Somebody changed the card's compute mode: change it back.
    ComputeMode,
    /// Ask the control daemon how it is, for `status`.
    View { reply: oneshot::Sender<()> },
    /// End the GPU work of the clients that are in `doomed`, by `deadline`; `taken` is told first.
    /// Nobody wants it late: it is dropped where whoever asked has gone.
    Terminate {
        doomed: Doomed,
        deadline: std::time::Instant,
        taken: oneshot::Sender<()>,
        reply: oneshot::Sender<Result<Vec<i32>, Trouble>>,
    },
    /// Name the card's servers and their clients.
    Clients { reply: oneshot::Sender<Result<Clients, Trouble>> },
    /// The node's schedule is another one: prepare the card for it.
    Schedule,
    /// End the card's control daemon, servers and clients, and bring it up again.
    Restart { reply: oneshot::Sender<Result<(), Trouble>> },
    /// Take the card down and end.
    Stop { reply: oneshot::Sender<Result<(), Trouble>> },
}

/// Servers with the pids of their clients.
pub(crate) type Clients = Vec<(Server, Vec<i32>)>;

/// Whose clients are to be terminated.
#[derive(Debug, Clone)]
pub(crate) struct Doomed {
    pub(crate) init: ProcessId,
    pub(crate) cgroup: Option<CgroupId>,
    /// Inodes of other containers' below it.
    pub(crate) others: BTreeSet<u64>,
}

impl Doomed {
    /// Pids of the container's processes now. Without a cgroup on record, that of its init.
    pub(crate) fn processes(&self) -> std::io::Result<BTreeSet<u32>> {
        match &self.cgroup {
            Some(cgroup) => container_cgroup::own_processes(cgroup, &self.others),
            None => {
                Ok(process_end::is_seen(&self.init).then_some(self.init.pid).into_iter().collect())
            }
        }
    }
}

/// A client that came to a door, for the watchdog's next look. The kernel has said whose it is.
#[derive(Debug)]
pub(crate) struct HandedOver {
    pub(crate) card: GpuUuid,
    pub(crate) client: ProcessId,
    pub(crate) grant: GrantKey,
}

/// What the task that has the driver limit cgroups is asked to do.
#[derive(Debug)]
pub(crate) enum LimitOrder {
    /// Limits a grant that has become active.
    Hold { entry: Box<Entry>, reply: oneshot::Sender<()> },
    /// Takes the limit of one that has ended away.
    Clear(Box<Entry>),
    /// Changes an active grant to `each` on each of its cards, and the driver's limit of its cgroup
    /// with it; both or none. `held`: only where there is such a limit.
    Resize { key: GrantKey, each: Mib, held: bool, reply: oneshot::Sender<Result<(), Refusal>> },
    /// Says when all orders before it are carried out.
    Done { reply: oneshot::Sender<()> },
}
