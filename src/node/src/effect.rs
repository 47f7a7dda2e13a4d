//! What is to be done after a change of the state. Values: the daemon does them in their order,
//! tests print them.

use mpsgate_api::Done;
use mpsgate_model::ledger::Entry;
use mpsgate_model::{GpuUuid, Grant, GrantKey, Mib, PodContainer};
use mpsgate_policy::SharedMemory;

use crate::trouble::Trouble;

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The record from which `exec` restores this grant is nobody's any more.
    RemoveRecord(GrantKey),
    /// The record from which `exec` restores a grant says another amount.
    RewriteRecord(Box<Grant>),
    /// A shim has ended, and may have left a record half written.
    RemoveLeftovers,
    /// An entry has ended: say so, and how.
    TellEnd(Box<Entry>, &'static str),
    /// Bring the ledger's file up to date; nobody waits for it.
    WriteLedger,
    /// Show what is left of the cards.
    Publish,
    /// Wake who waits for a change of a card.
    TellChange,
    /// The node's schedule may go on.
    AdvanceSchedule,
    /// Take the limit of an ended entry's cgroup away, and only then its exec record: by that the
    /// runtime's `delete` knows that there is something to wait for.
    ClearLimit(Box<Entry>),
    /// Close an ended grant's door.
    CloseDoor(Box<Grant>),
    /// The smallest grant of the card may have changed.
    Cap(GpuUuid),
    /// Log what happened to the card of this UUID and index.
    TellCard(GpuUuid, u32, CardNews),
    /// Look at the cards again, and start the card tasks that are missing.
    Look,
    /// The card task is to see to the compute mode.
    CheckComputeMode(GpuUuid),
    /// Count what was done to a container or process.
    Count(Done),
    /// Tell the pod's author.
    TellPod(PodContainer, Why, String),
}

/// Why a pod's author is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Something was done to the container, or found in it.
    Watchdog,
    /// Its card's MPS has died.
    MpsFault,
}

/// What the log says of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CardNews {
    /// It takes grants.
    Ready(Mib),
    /// It does not.
    NotReady(Trouble),
    /// Its control daemon answers: pid, whether it was there before, memory.
    Answers(u32, bool, Mib),
    /// How its servers share memory.
    SharedMemory(SharedMemory),
    /// NVML shows it again.
    Back,
    /// NVML does not show it.
    Lost(Trouble),
    /// The settings do not name it any more, and it has grants.
    Kept,
    /// These containers' grants are broken.
    Broken(Vec<String>),
    /// The driver limits no container of it by cgroup.
    Unlimited(Trouble),
}
