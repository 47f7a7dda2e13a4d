//! What a CUDA client shares with its MPS server: the IPC namespace, which operators ask for by
//! habit, and `/dev/shm`, which some drivers need.

use mpsgate_config::{Ipc as IpcPolicy, Schedule};
use mpsgate_model::{Code, Refusal};
use mpsgate_oci::spec::Namespace;

use crate::found::{Note, NoteAction};
use crate::input::{Input, Ipc};
use crate::refusal_texts::{self, WantsHosts};
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
    let why = wants_hosts(input.policy.ipc, input.node.shared_memory, &input.shm)?;
    let found = match (&input.ipc, input.node.ipc_inode) {
        (Ipc::Inode(inode), Some(server)) if *inode == server => return None,
        // Without a daemon nothing is granted anyway; `explain` leaves it open.
        (Ipc::Inode(_), None) | (Ipc::Unknown, _) => return None,
        (Ipc::Inode(inode), Some(server)) => {
            format!("its IPC namespace (ipc:[{inode}]) is not the MPS server's (ipc:[{server}])")
        }
        (Ipc::New, _) => refusal_texts::OWN_IPC.to_owned(),
        (Ipc::Unreadable(why), _) => format!("its IPC namespace cannot be looked at: {why}"),
    };
    let own_users = !matches!(input.view.user_namespace(), Namespace::Callers);
    Some(refusal_texts::no_host_ipc(&found, why, own_users))
}

/// Why a container with GPU memory may not have an IPC namespace of its own, by the setting, by
/// what the node's servers were seen to do, and by what it has at `/dev/shm`; `None` where it may.
/// `auto`: what the node's driver was seen to need, and until then the host's namespace.
#[must_use]
pub fn wants_hosts(policy: IpcPolicy, seen: SharedMemory, shm: &Shm) -> Option<WantsHosts> {
    let asked = policy == IpcPolicy::RequireHost;
    let wanted = match seen {
        SharedMemory::Unknown => Some(WantsHosts::Unseen { auto: !asked }),
        SharedMemory::Anonymous => asked.then_some(WantsHosts::Setting),
        SharedMemory::Named | SharedMemory::Required if *shm == Shm::Servers => {
            asked.then_some(WantsHosts::SettingBesideShm)
        }
        SharedMemory::Named | SharedMemory::Required => Some(WantsHosts::Driver),
    };
    wanted.filter(|_| policy != IpcPolicy::Any)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a refusal states of a node is what the node has shown, and what it names helps there.
    #[test]
    fn a_refusal_names_a_setting_that_would_let_the_container_start() {
        let shms = [Shm::Servers, Shm::Other("a tmpfs of its own".to_owned()), Shm::Unknown];
        for seen in SharedMemory::ALL {
            for (shm, has_it) in shms.iter().zip([true, false, false]) {
                let of = |policy| wants_hosts(policy, seen, shm);
                assert_eq!(of(IpcPolicy::Any), None, "{seen:?} {shm:?}");
                let (asked, auto) = match (seen, has_it) {
                    (SharedMemory::Unknown, _) => (
                        WantsHosts::Unseen { auto: false },
                        Some(WantsHosts::Unseen { auto: true }),
                    ),
                    (SharedMemory::Anonymous, _) => (WantsHosts::Setting, None),
                    (SharedMemory::Named | SharedMemory::Required, true) => {
                        (WantsHosts::SettingBesideShm, None)
                    }
                    (SharedMemory::Named | SharedMemory::Required, false) => {
                        (WantsHosts::Driver, Some(WantsHosts::Driver))
                    }
                };
                assert_eq!((of(IpcPolicy::RequireHost), of(IpcPolicy::Auto)), (Some(asked), auto));
                let names_auto = asked.setting().is_some_and(|text| text.contains("\"auto\""));
                let may_help = auto.is_none() || seen == SharedMemory::Unknown;
                assert_eq!(names_auto, may_help, "{seen:?} {shm:?}");
                let denies = asked.because().contains("no CUDA process in it reaches");
                assert_eq!(denies, auto.is_some(), "{seen:?} {shm:?}");
                // Where the one says that nothing is needed, the other does not warn.
                let warned = shared_memory(IpcPolicy::Auto, seen, shm).is_ok_and(|n| n.is_some());
                assert!(!(warned && asked == WantsHosts::Setting), "{seen:?} {shm:?}");
            }
        }
    }
}
