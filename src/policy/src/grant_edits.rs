//! A grant as edits of the spec, and as env for `exec`.

use mpsgate_allocation::{Grant, Priority};
use mpsgate_oci::spec::{Edit, HookStage, View};

use crate::decide::Wanted;
use crate::{Code, Refusal};

/// Where a granted container finds its end of the MPS channel.
pub const CLIENT_DIRECTORY: &str = "/run/mpsgate/mps";
/// Seconds for the hook: the daemon's answer and its own checks take milliseconds.
const HOOK_TIMEOUT_S: u32 = 10;
/// The hook's whole environment. Explicit, because a hook without one inherits the runtime's.
const HOOK_ENV: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";

/// What brings the card and the driver's files into the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Injector {
    /// nvidia-container-runtime below us, or its hook in the spec: it acts on the env.
    NvidiaRuntime,
    /// Our own device nodes.
    Devices,
}

/// The variables that a granted process must have, and those that it must not: for `config.json`
/// and for every `exec`.
#[must_use]
pub fn grant_env(wanted: &Wanted, grant: &Grant) -> (Vec<String>, Vec<(String, String)>) {
    let memory = wanted.own_limit.map_or(grant.memory, |own| own.min(grant.memory));
    let mut set = vec![
        ("CUDA_MPS_PIPE_DIRECTORY".to_owned(), CLIENT_DIRECTORY.to_owned()),
        // The card is device 0 of its MPS server, and the only one that the container sees.
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".to_owned(), format!("0={}M", memory.0)),
    ];
    let share = match (grant.compute, wanted.own_share) {
        (Some(granted), Some(own)) => Some(granted.0.min(own.0)),
        (granted, own) => granted.or(own).map(|share| share.0),
    };
    if let Some(share) = share {
        set.push(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), share.to_string()));
    }
    if grant.priority == Priority::Low {
        set.push(("CUDA_MPS_CLIENT_PRIORITY".to_owned(), "1".to_owned()));
    }
    if let Some(card) = grant.cards.first() {
        set.push(("NVIDIA_VISIBLE_DEVICES".to_owned(), card.uuid.as_str().to_owned()));
    }
    let drop = [
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_CLIENT_PRIORITY",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
        "CUDA_MPS_SM_PARTITION",
        "CUDA_MPS_PROTOCOL_VERSION",
    ];
    (drop.map(str::to_owned).to_vec(), set)
}

/// The edits that put a grant into the container's spec.
///
/// # Errors
/// Where the spec mounts something over the place of the MPS directory.
pub fn grant_edits(
    view: View<'_>,
    wanted: &Wanted,
    grant: &Grant,
    injector: Injector,
    hook: &str,
) -> Result<Vec<Edit>, Refusal> {
    let mut edits = wanted.edits.clone();
    let (drop, set) = grant_env(wanted, grant);
    edits.push(Edit::Env { drop, set });
    let removed = |destination: &str| {
        edits.iter().any(|e| matches!(e, Edit::RemoveMount { destination: d } if d == destination))
    };
    let taken = view.mounts().find(|m| {
        (m.destination == CLIENT_DIRECTORY && !removed(m.destination))
            || m.destination.strip_prefix(CLIENT_DIRECTORY).is_some_and(|r| r.starts_with('/'))
    });
    if let Some(mount) = taken {
        return Err(Refusal::new(
            Code::Spec,
            format!("it mounts {:?} where its MPS directory belongs", mount.destination),
            format!("mount it elsewhere than below {CLIENT_DIRECTORY}"),
        ));
    }
    edits.push(Edit::Bind {
        source: grant.client_dir.clone(),
        destination: CLIENT_DIRECTORY.to_owned(),
        options: vec!["bind", "ro", "nosuid", "nodev", "noexec", "rprivate"],
    });
    if injector == Injector::Devices {
        edits.extend(grant.devices.iter().map(|device| Edit::AddDevice {
            path: device.path.clone(),
            major: device.major,
            minor: device.minor,
            uid: 0,
        }));
    }
    let key = &grant.key;
    // A bundle that is created again still holds the hooks of its last grant.
    edits.push(Edit::RemoveHooks { path: hook.to_owned() });
    for (stage, word) in
        [(HookStage::CreateRuntime, "createRuntime"), (HookStage::Poststop, "poststop")]
    {
        edits.push(Edit::AddHook {
            stage,
            path: hook.to_owned(),
            args: vec![
                "mpsgate-hook".to_owned(),
                word.to_owned(),
                format!("--root={}", key.runtime_root),
                format!("--instance={}", key.instance.as_str()),
            ],
            env: vec![HOOK_ENV.to_owned()],
            timeout_s: HOOK_TIMEOUT_S,
        });
    }
    Ok(edits)
}
