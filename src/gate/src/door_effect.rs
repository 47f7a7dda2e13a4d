//! What the doors want done, and what mpsgated or the control daemon may fail at. Values: the loop
//! does them in their order, tests compare them.

use mpsgate_host::process::ProcessId;
use mpsgate_model::Instance;

use crate::door::ClientId;
use crate::handshake::{Peer, Reason};
use crate::mps_wire::{Sender, Word};

/// A client that got its descriptor: known by its container before it exists for MPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    /// Its container.
    pub door: Instance,
    /// Its pid, and when it was started.
    pub pid: u32,
    /// See `pid`.
    pub start_time: u64,
    /// The uid under which the control daemon knows it.
    pub uid: u32,
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Leave a container's listening socket alone.
    Pause(Instance),
    /// Accept there again.
    Resume(Instance),
    /// Close a client's connection.
    Close(ClientId),
    /// Ask mpsgated to prepare the server for a client of this container.
    Prepare(Instance, ProcessId),
    /// Speak with the control daemon for a client.
    Call(ClientId, Sender, Word),
    /// Close the connections to mpsgated and to the control daemon, with what they answered.
    HangUp,
    /// Give the client the descriptor that the control daemon answered with: the container's n-th.
    HandOver(ClientId, Known, u64),
    /// A client was ended, which is the container's n-th for this reason.
    Ended(Instance, Peer, Reason, u64),
}

/// Why there is no descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// mpsgated or the control daemon cannot be reached, or ended the conversation.
    Unreachable,
    /// mpsgated cannot prepare the server for this container now; perhaps for another one.
    Later,
    /// The control daemon has no server yet, or is busy.
    NoAnswer,
}
