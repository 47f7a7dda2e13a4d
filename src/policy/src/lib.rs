//! Pure decisions: who gets in, on which card, with which edits.
//!
//! Every function here takes values and returns values: no file, clock, environment, process or
//! socket (`clippy.toml` bans them). The shim gathers facts and applies edits, the daemon holds the
//! ledger; both ask here. Also used by `mpsgate explain`.
//!
//! ```text
//!   read (may_matter) ─Nothing─► pass, untouched
//!       │Clean            └Unclean─► decide_unclean ──► Pass │ Refuse
//!     decide ──► Pass │ Edit │ Refuse
//!       │             └ Reserve ──► placement::choose (daemon) ──► grant_edits
//! ```

#![deny(clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod caller;
mod claim_env;
mod conclusions;
mod confirm;
mod container_uid;
mod decide;
mod decision;
mod exempt;
mod found;
mod grant_edits;
mod input;
mod ipc;
mod meanwhile;
mod mount_rules;
mod node_facts;
mod notes;
mod overrides;
mod path;
mod pids;
pub mod placement;
mod pod_identity;
mod processes;
pub mod promise;
mod quota;
mod reach;
mod reading;
pub mod refusal_texts;
mod resize_rules;
mod run_env;
pub mod schedule;
mod settle;
mod shm;
mod signals;
pub mod slurm_request;
mod sysctls;
mod toolkit;
mod unruled;

pub use caller::Caller;
pub use conclusions::{Conclusion, GuaranteeLevel, TOLERANCE, answered_on, conclude};
pub use confirm::{ListedLimits, compute_share, confirmed, core_refusal, list, uncountable};
pub use container_uid::Users;
pub use decide::{ASK_LIMITS, asks, decide, decide_rootless, refusal_of};
pub use decision::{Decision, Held, Verdict, Wanted};
pub use exempt::{exempt_as, is_exempt};
pub use found::{Note, NoteAction, Signal};
pub use grant_edits::{
    CLIENT_DIRECTORY, Injector, MPS_LIMIT, edits_of_any_grant, grant_edits, grant_env, mps_limit,
    mps_limit_of, told,
};
pub use input::{Action, Input, Ipc, MountFact, MountKind, Reach};
pub use ipc::{HOST_SHM, shared_memory, wants_hosts};
pub use meanwhile::{Disturbance, Sight, judge};
pub use mount_rules::{
    HOOK_MOUNTS, holds_ours, mounts_ours, only_looks_again, shows_card_files, touches,
};
pub use mpsgate_config::Schedule;
pub use node_facts::{CTL_MINOR, Cards, Majors, NVIDIA_MAJOR, Node};
pub use overrides::overrides;
pub use path::{clean, inside};
pub use pids::{Pids, shares_pod};
pub use placement::*;
pub use processes::{DRIVER, PROC, by_mount, names_processes, of_mount, seen_by_hook};
pub use promise::{Unplaced, expected_on};
pub use quota::Quota;
pub use reach::is_privileged;
pub use reading::{
    Bytes, DOCUMENT_MAX, Facts, Glimpse, ROOT, Reading, Unclean, decide_unclean, read,
};
pub use resize_rules::{Resize, Resized, resize, resized};
pub use run_env::run_env;
pub use settle::{Unsettled, settle};
pub use shm::{SharedMemory, Shm, ShmMount};
pub use signals::may_matter;
pub use toolkit::{ToolkitNames, VISIBLE, named, visible};
pub use toolkit::{
    has_driver, has_nvidia_hook, is_nvidia_runtime, may_read_annotation, may_read_variable,
    pod_annotation, pod_mount, pod_variables,
};
pub use unruled::Unruled;
