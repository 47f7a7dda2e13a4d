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
mod daemon_client;
mod frame;
mod json_text;
mod kubernetes_status;
mod message;
mod shim_files;
mod status_document;
mod usage_day;

pub use call::{
    Activate, Call, Engine, Mps, MpsAction, Qualify, Release, Removal, Report, Reserve, Resize,
    Run, Terminate,
};
pub use daemon_client::{ApiError, Client, FIRST_BYTE_TIMEOUT};
pub use frame::{FrameError, MAX_FRAME, decode_length, encode};
pub use json_text::Json;
pub use kubernetes_status::{ApiServerStatus, ClaimsStatus, ResourceStatus};
pub use message::{
    Asking, ClientProcess, Envelope, NoStatus, Reply, ServerClients, VERSION, WireRefusal,
    WouldEnd, compatible, parse_envelope,
};
pub use shim_files::{ExecRecord, FILES_FORMAT, NodeSnapshot};
pub use status_document::{
    ACTIONS_KEPT, Action, CardMemory, CardState, CardStatus, ControlState, Done, GateStatus,
    GrantState, GrantStatus, MpsStatus, ServerState, ServerStatus, Status,
};
pub use usage_day::{CardUsage, GrantUsage, MOST_GRANTS, USAGE_FORMAT, UsageDay};
