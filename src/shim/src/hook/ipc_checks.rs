//! Checks what the container shares with the MPS servers: the IPC namespace, and `/dev/shm`.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use mpsgate_config::{Config, Ipc as IpcPolicy, paths};
use mpsgate_model::{Code, Refusal};
use mpsgate_oci::hook_state::HookState;
use mpsgate_policy::refusal_texts::no_host_ipc;
use mpsgate_policy::{Node, SharedMemory, Shm, shared_memory, wants_hosts};

use super::mount_checks::Mounts;
use crate::engine_log::Report;
use crate::facts;

/// Refuses a container in which CUDA processes would not attach. The MPS control daemons are in the
/// IPC namespace of mpsgated and of the hook: the host's.
pub(super) fn check(state: &HookState, pid: u32, mounts: &Mounts) -> Result<(), Refusal> {
    let inode = |path: &str| std::fs::metadata(path).map(|meta| meta.ino());
    let node: Option<Node> = facts::node_of_daemon();
    let servers = node.as_ref().and_then(|node| node.ipc_inode);
    let servers = servers.map_or_else(|| inode("/proc/self/ns/ipc"), Ok);
    let found = match (inode(&format!("/proc/{pid}/ns/ipc")), servers) {
        (Ok(its), Ok(servers)) if its == servers => None,
        (Ok(its), Ok(servers)) => Some(Ok(format!(
            "its IPC namespace (ipc:[{its}]) is not the MPS server's (ipc:[{servers}])"
        ))),
        (Err(error), _) | (_, Err(error)) => Some(Err(Refusal::new(
            Code::NoHostIpc,
            format!("its IPC namespace cannot be looked at: {error}"),
            "create the container anew",
        ))),
    };
    let seen = node.as_ref().map(|node| node.shared_memory).unwrap_or_default();
    // Most containers are done here.
    if found.is_none() && seen == SharedMemory::Anonymous {
        return Ok(());
    }
    let shm = mounts.shm(state, node.and_then(|node| node.shm));
    if found.is_none() && !matches!(shm, Shm::Other(_)) {
        return Ok(());
    }
    // Read last, because it takes longest. A settings file that cannot be read counts as the
    // strictest.
    let policy = || Config::load(Path::new(paths::CONFIG_FILE)).map(|config| config.policy.ipc);
    let policy = policy().unwrap_or(IpcPolicy::RequireHost);
    if let Some(found) = found
        && let Some(why) = wants_hosts(policy, seen, &shm)
    {
        return Err(match found {
            Ok(found) => no_host_ipc(&found, why, false),
            Err(refusal) => refusal,
        });
    }
    if let Some(note) = shared_memory(policy, seen, &shm)? {
        // mpsgated has already reported what the spec showed.
        let mut report = Report::of_hook();
        report.name(&state.id);
        report.noted(&note, None);
    }
    Ok(())
}
