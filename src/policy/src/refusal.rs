//! The refusals that several deciders have in common: one sentence and one hint for each.

use mpsgate_model::{Code, Refusal};

/// A request in a privileged container.
#[must_use]
pub fn privileged() -> Refusal {
    Refusal::new(
        Code::Privileged,
        "it asks for GPU memory and is privileged, so that no limit would hold",
        "remove privileged: true from the securityContext (docker run: drop --privileged and add \
         the capabilities it needs with --cap-add)",
    )
}

/// Capabilities with which a container changes what holds its limit and its neighbours'. Measured
/// from inside (`tests/e2e/escape`, runc 1.1.5): the first makes the client directory writable, has
/// the host run programs and opens devices on cgroup v1, the second loads modules, the last opens
/// the host's files by handle. The third has the ports by which devices are programmed (ioperm(2)).
const STRONG: [&str; 4] =
    ["CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_DAC_READ_SEARCH"];

/// A request in a container that may use a capability by which no limit would hold.
#[must_use]
pub fn capability(may_gain: impl Fn(&str) -> bool, others_pids: bool) -> Option<Refusal> {
    let (found, hint) = match STRONG.into_iter().find(|name| may_gain(name)) {
        Some(name) => (
            format!("may use {name}"),
            "drop the capability (securityContext.capabilities, docker run --cap-add), or do what needs it in \
             a container without GPU memory",
        ),
        None if others_pids && may_gain("CAP_SYS_PTRACE") => (
            "may trace every process that it sees (CAP_SYS_PTRACE with the host's PID namespace, or another \
             container's)"
                .to_owned(),
            "drop SYS_PTRACE, or give it a PID namespace of its own (no hostPID: true, no docker run --pid=host or \
             --pid=container:X)",
        ),
        None => return None,
    };
    Some(Refusal::new(
        Code::Capability,
        format!("it asks for GPU memory and {found}, so that no limit would hold"),
        hint,
    ))
}

/// How each engine's user asks for the host's IPC namespace.
pub const HOST_IPC: &str = "set hostIPC: true in the pod spec (Compose: ipc: host; docker or podman run --ipc=host, ctr run --with-ns \
                            ipc:/proc/1/ns/ipc)";
/// The same from a user namespace of its own, beside which Kubernetes takes no `hostIPC`.
const HOST_IPC_AND_USERS: &str = "remove hostUsers: false from the pod spec and set hostIPC: true, which Kubernetes takes only without it (docker \
                                  run --userns=host --ipc=host); or leave it, and choose nodes that share cards without MPS: nodeSelector \
                                  ack.node.gpu.schedule: share";

/// A request in an IPC namespace that is not the MPS server's; `own_users`: in a user namespace of
/// its own.
#[must_use]
pub fn no_host_ipc(found: &str, own_users: bool) -> Refusal {
    let hint = if own_users { HOST_IPC_AND_USERS } else { HOST_IPC };
    Refusal::new(Code::NoHostIpc, format!("it asks for GPU memory but {found}"), hint)
}

/// A request in a new IPC namespace.
#[must_use]
pub fn own_ipc(own_users: bool) -> Refusal {
    let found =
        "it has an IPC namespace of its own, and no CUDA process in it reaches the MPS server";
    no_host_ipc(found, own_users)
}

/// A request in a PID namespace with others' processes.
#[must_use]
pub fn host_pid(found: &str) -> Refusal {
    Refusal::new(
        Code::HostPid,
        format!(
            "it asks for GPU memory and {found}, where it can end or trace the MPS server and other containers"
        ),
        "give it a PID namespace of its own (no hostPID: true, no docker or podman run --pid=host or \
         --pid=container:X), or set policy.host_pid = \"warn\" in /etc/mpsgate/config.toml",
    )
}
