//! Checks which processes the container sees. The decision about the spec came before: since then a
//! source may lead elsewhere, and a PID namespace that is named by a process may be another one.

use std::path::Path;

use mpsgate_config::{Config, HostPid, paths};
use mpsgate_model::Refusal;
use mpsgate_oci::hook_state::HookState;
use mpsgate_policy::seen_by_hook;

use super::mount_checks::Mounts;
use crate::engine_log::Report;
use crate::facts::inode;

/// Refuses a container with a grant that sees the node's processes, unless the settings allow it.
pub(super) fn check(state: &HookState, pid: u32, mounts: &Mounts) -> Result<(), Refusal> {
    let namespace = |of: &str| inode(Path::new(&format!("/proc/{of}/ns/pid")));
    let procfs = mounts.procfs_of_node();
    let (own, its) = (namespace("self"), namespace(&pid.to_string()));
    if procfs.is_none() && own.is_some() && its.is_some() && own != its {
        return Ok(());
    }
    // A settings file that cannot be read counts as the strictest.
    let policy = Config::load(Path::new(paths::CONFIG_FILE)).map(|config| config.policy.host_pid);
    let note = seen_by_hook(procfs.as_deref(), policy.unwrap_or(HostPid::Refuse))?;
    // mpsgated has already reported what the spec showed.
    let mut report = Report::of_hook();
    report.name(&state.id);
    report.noted(&note, None);
    Ok(())
}
