//! Pure decisions: who gets in, on which card, with which edits.
//!
//! Every function here takes values and returns values: no file, clock, environment, process or
//! socket (`clippy.toml` bans them). The shim gathers facts and applies edits, the daemon holds the
//! ledger; both ask here. Also used by `mpsgate explain`.
//!
//! ```text
//!   may_matter ─no─► pass, untouched
//!       │yes
//!     decide ──► Pass │ Edit │ Refuse
//!       │             └ Reserve ──► placement::choose (daemon) ──► grant_edits
//! ```

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod admission;
mod caller;
pub mod cluster;
mod decide;
mod exempt;
mod grant_edits;
mod limits;
mod node;
mod notes;
mod placement;
mod pod;
mod promise;
mod refusal;
pub mod schedule;
mod signals;
mod users;
pub mod watchdog;

pub use caller::Caller;
pub use decide::{
    Action, Decision, Input, Ipc, MountFact, MountKind, Verdict, Wanted, asks, decide,
    decide_rootless,
};
pub use exempt::exempt_as;
pub use grant_edits::{CLIENT_DIRECTORY, Injector, grant_edits, grant_env};
pub use limits::{Listed, confirmed};
pub use mpsgate_config::Schedule;
pub use node::{CTL_MINOR, Cards, Majors, NVIDIA_MAJOR, Node, NodeCard};
pub use notes::{Note, NoteAction};
pub use placement::*;
pub use promise::{Asked, expected_on};
pub use refusal::{Code, Refusal};
pub use signals::{
    Signal, has_driver, has_nvidia_hook, is_nvidia_runtime, is_privileged, may_matter,
};
pub use users::Users;
