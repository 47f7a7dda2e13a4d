//! From a pod onto its node: what comes after sees the node's files as the node does.

use std::fs::{self, File};
use std::path::Path;

use nix::sched::{CloneFlags, setns};

use crate::error::NodeInstallError;

/// Enters a mount namespace; from then on all paths are that node's. This process has one thread,
/// as the kernel asks for it (setns(2)).
pub(crate) fn enter_mounts(mounts: &Path) -> Result<(), NodeInstallError> {
    let link = |path: &Path| fs::read_link(path).map_err(NodeInstallError::Enter);
    if link(mounts)? == link(Path::new("/proc/self/ns/mnt"))? {
        return Err(NodeInstallError::OnTheNode);
    }
    let node = File::open(mounts).map_err(NodeInstallError::Enter)?;
    setns(node, CloneFlags::CLONE_NEWNS).map_err(|errno| NodeInstallError::Enter(errno.into()))?;
    std::env::set_current_dir("/").map_err(NodeInstallError::Enter)
}

/// Enters the namespaces of the node's pid 1 in which containers are started there. The node's pids
/// are seen already (`hostPID`): without them that would be the pod's own pid 1.
pub(crate) fn enter_all() -> Result<(), NodeInstallError> {
    // Opened before its /proc is another.
    let open = |name: &str| File::open(format!("/proc/1/ns/{name}"));
    let kinds = [
        ("ipc", CloneFlags::CLONE_NEWIPC),
        ("cgroup", CloneFlags::CLONE_NEWCGROUP),
        ("uts", CloneFlags::CLONE_NEWUTS),
        ("net", CloneFlags::CLONE_NEWNET),
    ];
    let mut others = Vec::new();
    for (name, kind) in kinds {
        others.push((open(name).map_err(NodeInstallError::Enter)?, kind));
    }
    enter_mounts(Path::new("/proc/1/ns/mnt"))?;
    for (namespace, kind) in others {
        setns(namespace, kind).map_err(|errno| NodeInstallError::Enter(errno.into()))?;
    }
    Ok(())
}
