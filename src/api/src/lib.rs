//! The protocol between the daemon and its callers, and a small blocking client.
//!
//! One connection carries one [`Call`] and its answer. A frame is a length (four bytes, big endian)
//! and that many bytes of JSON. The daemon answers with any number of [`Reply::Progress`] frames
//! and then one that is final. `activate` carries a pidfd as SCM_RIGHTS on its first byte.
//!
//! ```text
//!   caller ── Envelope{version, call} ──► daemon
//!   caller ◄── Progress ─ … ─ Reply ───── daemon
//! ```
//!
//! The socket is root's: the daemon checks its peer's uid, and the client checks the daemon's, so
//! that a user who can plant a socket cannot hand out memory.

mod call;
mod client;
mod files;
mod frame;
mod json;
mod kubernetes;
mod message;
mod status;
mod usage;

pub use call::{
    Activate, Call, Engine, Mps, MpsAction, Qualify, Release, Removal, Report, Reserve, Resize,
    Run, Terminate,
};
pub use client::{ApiError, Client, FIRST_BYTE_TIMEOUT};
pub use files::{ExecRecord, FILES_FORMAT, NodeSnapshot};
pub use frame::{FrameError, MAX_FRAME, decode_length, encode};
pub use json::Json;
pub use kubernetes::{ApiServerStatus, ClaimsStatus, ResourceStatus};
pub use message::{
    Asking, ClientProcess, Envelope, NoStatus, Reply, ServerClients, VERSION, WireRefusal,
    WouldEnd, compatible, parse_envelope,
};
pub use status::{
    ACTIONS_KEPT, Action, CardMemory, CardState, CardStatus, ControlState, Done, GateStatus,
    GrantState, GrantStatus, MpsStatus, ServerState, ServerStatus, Status,
};
pub use usage::{CardUsage, GrantUsage, MOST_GRANTS, USAGE_FORMAT, UsageDay};
