//! What a CUDA client shares with its MPS server: the IPC namespace, which operators ask for by
//! habit, and `/dev/shm`, which some drivers need.

use mpsgate_config::{Ipc as IpcPolicy, Schedule};
use mpsgate_model::{Code, Refusal};
use mpsgate_oci::spec::Namespace;

use crate::found::{Note, NoteAction};
use crate::input::{Input, Ipc};
use crate::refusal;
use crate::shm::{PLACE, SharedMemory, Shm};

/// A container that asks for GPU memory on this node: what it lacks, or what is to be said of it.
pub(crate) fn evaluate(input: &Input<'_>) -> Result<Option<Note>, Refusal> {
    if input.node.schedule == Schedule::Share {
        return Ok(None);
    }
    if let Some(refusal) = namespace(input) {
        return Err(refusal);
    }
    shared_memory(input.policy.ipc, input.node.shared_memory, &input.shm)
}

/// A container's `/dev/shm` alone: for the hook, which looks at what came out.
///
/// # Errors
/// Where its CUDA processes would not attach.
pub fn shared_memory(
    policy: IpcPolicy,
    node: SharedMemory,
    shm: &Shm,
) -> Result<Option<Note>, Refusal> {
    let Shm::Other(found) = shm else { return Ok(None) };
    match node {
        SharedMemory::Anonymous => Ok(None),
        SharedMemory::Required if policy != IpcPolicy::Any => Err(Refusal::new(
            Code::NoShm,
            format!(
                "it asks for GPU memory and has {found} at {PLACE}, and on this node no CUDA process attaches that has not the \
                 MPS server's there"
            ),
            HOST_SHM,
        )),
        _ => {
            let whose = match node {
                SharedMemory::Unknown => "with drivers up to 555 CUDA processes need",
                _ => "with this node's driver CUDA processes need",
            };
            let text = format!(
                "it has {found} at {PLACE}, where {whose} what the MPS server has there (else cuInit fails with \
                 CUDA_ERROR_MAP_FAILED, 205): the host's IPC namespace brings it where nothing else is mounted there"
            );
            Ok(Some(Note::new(NoteAction::Warned, Code::Shm, text)))
        }
    }
}

/// What gives a container the servers' `/dev/shm`.
pub const HOST_SHM: &str = "set hostIPC: true and mount nothing at /dev/shm (in many charts a volume named dshm or shm, an emptyDir of \
                            medium Memory); docker or podman run --ipc=host; ctr run --mount \
                            type=bind,src=/dev/shm,dst=/dev/shm,options=rbind:rw";

/// Whether the namespace matters here.
fn namespace(input: &Input<'_>) -> Option<Refusal> {
    if may_have_its_own(input.policy.ipc, input.node.shared_memory, &input.shm) {
        return None;
    }
    let own_users = !matches!(input.view.user_namespace(), Namespace::Callers);
    let found = match (&input.ipc, input.node.ipc_inode) {
        (Ipc::Inode(inode), Some(server)) if *inode == server => return None,
        // Without a daemon nothing is granted anyway; `explain` leaves it open.
        (Ipc::Inode(_), None) | (Ipc::Unknown, _) => return None,
        (Ipc::Inode(inode), Some(server)) => {
            format!("its IPC namespace (ipc:[{inode}]) is not the MPS server's (ipc:[{server}])")
        }
        (Ipc::New, _) => return Some(refusal::own_ipc(own_users)),
        (Ipc::Unreadable(why), _) => format!("its IPC namespace cannot be looked at: {why}"),
    };
    Some(refusal::no_host_ipc(&found, own_users))
}

/// Whether a container with GPU memory may have an IPC namespace of its own. `auto`: what the
/// node's driver was seen to need, and until then the host's namespace.
#[must_use]
pub fn may_have_its_own(policy: IpcPolicy, seen: SharedMemory, shm: &Shm) -> bool {
    match (policy, seen) {
        (IpcPolicy::RequireHost, _) | (IpcPolicy::Auto, SharedMemory::Unknown) => false,
        (IpcPolicy::Any, _) | (IpcPolicy::Auto, SharedMemory::Anonymous) => true,
        (IpcPolicy::Auto, SharedMemory::Named | SharedMemory::Required) => *shm == Shm::Servers,
    }
}
