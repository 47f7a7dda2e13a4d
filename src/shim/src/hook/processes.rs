//! Whose processes the container that came out sees. The spec was decided about before: a source
//! may lead elsewhere since, and a PID namespace that was named by a process may be another's.

use std::path::Path;

use mpsgate_config::{Config, HostPid, paths};
use mpsgate_model::Refusal;
use mpsgate_oci::hook_state::HookState;
use mpsgate_policy::seen_by_hook;

use super::mounts::Mounts;
use crate::facts::inode;
use crate::report::Report;

/// Refuses a container with a grant that sees the node's, unless the settings let it through.
pub(super) fn check(state: &HookState, pid: u32, mounts: &Mounts) -> Result<(), Refusal> {
    let namespace = |of: &str| inode(Path::new(&format!("/proc/{of}/ns/pid")));
    let procfs = mounts.procfs_of_node();
    let (own, its) = (namespace("self"), namespace(&pid.to_string()));
    if procfs.is_none() && own.is_some() && its.is_some() && own != its {
        return Ok(());
    }
    // A configuration that cannot be read is the strictest.
    let policy = Config::load(Path::new(paths::CONFIG_FILE)).map(|config| config.policy.host_pid);
    let note = seen_by_hook(procfs.as_deref(), policy.unwrap_or(HostPid::Refuse))?;
    // mpsgated tells of what the spec showed once.
    let mut report = Report::of_hook();
    report.name(&state.id);
    report.noted(&note, None);
    Ok(())
}
