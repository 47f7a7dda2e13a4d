//! The refusals that several deciders have in common: one sentence and one hint for each.

use mpsgate_model::{Code, Refusal, printable};

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

/// Whether a container with a request may have a capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum May {
    /// No: no limit would hold, its own or its neighbours'.
    Never,
    /// Where it sees no processes of others.
    Alone,
    /// Yes.
    Have,
}

// As SECURITY.md has it.
mpsgate_model::words!(May:
    Never = "refused", Alone = "refused with others' processes", Have = "allowed",
);

/// Every capability of today's kernels, with what it does to limits. What is not here is a newer
/// one, and counts as [`May::Never`]. Measured from inside (`tests/e2e/escape`, runc 1.1.5):
/// `CAP_SYS_ADMIN`, `CAP_SYS_MODULE` and `CAP_DAC_READ_SEARCH`; with Linux 6.18 `CAP_BPF` and
/// `CAP_PERFMON`. The others: capabilities(7), and what the kernel asks each for. Docker's,
/// containerd's, CRI-O's and Podman's usual ones are all allowed.
pub const CAPABILITIES: [(&str, May, &str); 41] = [
    ("CAP_SYS_ADMIN", May::Never, "mounts, and has the host run programs"),
    ("CAP_SYS_MODULE", May::Never, "loads modules"),
    ("CAP_SYS_RAWIO", May::Never, "opens the host's memory and ports (row 27)"),
    ("CAP_DAC_READ_SEARCH", May::Never, "opens the host's files by handle"),
    ("CAP_BPF", May::Never, "loads programs that run in the kernel"),
    (
        "CAP_PERFMON",
        May::Never,
        "attaches such programs everywhere, and signals any process by one",
    ),
    ("CAP_SYS_BOOT", May::Never, "loads the kernel that the host starts next (kexec)"),
    ("CAP_SYS_TIME", May::Never, "sets the node's clock, by which the keys of tokens age"),
    ("CAP_CHECKPOINT_RESTORE", May::Never, "chooses its processes' numbers on the host"),
    ("CAP_IPC_OWNER", May::Never, "opens all System V memory of the host's IPC namespace"),
    ("CAP_MAC_ADMIN", May::Never, "changes AppArmor's and Smack's rules of the node"),
    ("CAP_MAC_OVERRIDE", May::Never, "goes past Smack's rules"),
    ("CAP_SYS_PTRACE", May::Alone, "traces, and joins, each process that it sees"),
    ("CAP_KILL", May::Have, "signals those processes alone that it sees (row 23a)"),
    ("CAP_MKNOD", May::Have, "makes nodes, which the device rules keep shut (row 14a)"),
    ("CAP_CHOWN", May::Have, "files that it sees"),
    ("CAP_DAC_OVERRIDE", May::Have, "files that it sees"),
    ("CAP_FOWNER", May::Have, "files that it sees"),
    ("CAP_FSETID", May::Have, "files that it sees"),
    ("CAP_SETFCAP", May::Have, "files that it sees; gives nothing that it has not"),
    ("CAP_LINUX_IMMUTABLE", May::Have, "files that it sees"),
    ("CAP_LEASE", May::Have, "files that it sees"),
    (
        "CAP_SETUID",
        May::Have,
        "any uid: still the container's door (row 21); System V memory: row 31",
    ),
    ("CAP_SETGID", May::Have, "its own processes; the server's gid helps nobody (row 23a)"),
    ("CAP_SETPCAP", May::Have, "gives its processes nothing beyond this list"),
    ("CAP_SYS_CHROOT", May::Have, "joins no mount namespace without CAP_SYS_ADMIN"),
    ("CAP_NET_ADMIN", May::Have, "its network; with hostNetwork the node's; doors are files"),
    ("CAP_NET_RAW", May::Have, "its network; with hostNetwork the node's packets"),
    (
        "CAP_NET_BIND_SERVICE",
        May::Have,
        "its network; with hostNetwork the node's ports below 1024",
    ),
    ("CAP_NET_BROADCAST", May::Have, "nothing: the kernel does not ask for it"),
    ("CAP_IPC_LOCK", May::Have, "memory of the host, not of the GPU"),
    ("CAP_SYS_RESOURCE", May::Have, "rlimits, disk quotas, who is killed first: no GPU memory"),
    ("CAP_SYS_NICE", May::Have, "time on the CPUs, of processes that it sees"),
    ("CAP_SYS_PACCT", May::Have, "accounts of its PID namespace"),
    ("CAP_SYS_TTY_CONFIG", May::Have, "terminals, which the device rules keep shut"),
    ("CAP_AUDIT_WRITE", May::Have, "lines of the audit log"),
    (
        "CAP_AUDIT_CONTROL",
        May::Have,
        "its login uid; all else needs the host's PID namespace (row 23a)",
    ),
    ("CAP_AUDIT_READ", May::Have, "reads the audit log"),
    ("CAP_SYSLOG", May::Have, "the kernel's log and addresses, which decide nothing here"),
    ("CAP_WAKE_ALARM", May::Have, "wakes the machine"),
    ("CAP_BLOCK_SUSPEND", May::Have, "keeps the machine awake"),
];

/// A request in a container that may use a capability by which no limit would hold. `unknown`: one
/// of its capabilities that no kernel of today has.
#[must_use]
pub fn capability(
    may_gain: impl Fn(&str) -> bool,
    unknown: Option<&str>,
    others_pids: bool,
) -> Option<Refusal> {
    const DROP: &str = "drop the capability (securityContext.capabilities, docker run --cap-add), or do what needs it in \
                        a container without GPU memory";
    let gained = |what: May| {
        let names = CAPABILITIES.iter().filter(move |(_, may, _)| *may == what);
        names.map(|(name, ..)| name).find(|name| may_gain(name))
    };
    let (found, hint) = if let Some(name) = gained(May::Never) {
        (format!("may use {name}"), DROP)
    } else if let Some(text) = unknown {
        let text = printable::value(text);
        (
            format!("may use the capability {text}, of which mpsgate does not know what it does"),
            DROP,
        )
    } else if let Some(name) = gained(May::Alone).filter(|_| others_pids) {
        (
            format!(
                "may trace every process that it sees ({name} with the host's PID namespace, or another container's)"
            ),
            "drop SYS_PTRACE, or give it a PID namespace of its own (no hostPID: true, no docker run --pid=host or \
             --pid=container:X)",
        )
    } else {
        return None;
    };
    Some(Refusal::new(
        Code::Capability,
        format!("it asks for GPU memory and {found}, so that no limit would hold"),
        hint,
    ))
}

/// What is found of a new IPC namespace.
pub(crate) const OWN_IPC: &str = "it has an IPC namespace of its own";
/// How each engine's user asks for the host's IPC namespace.
const HOST_IPC: &str = "set hostIPC: true in the pod spec (Compose: ipc: host; docker or podman run --ipc=host in place of --shm-size, \
                        ctr run --with-ns ipc:/proc/1/ns/ipc)";
/// The same from a user namespace of its own, beside which Kubernetes takes no `hostIPC`.
const HOST_IPC_AND_USERS: &str = "remove hostUsers: false from the pod spec and set hostIPC: true, which Kubernetes takes only without it (docker \
                                  run --userns=host --ipc=host); or leave it, and choose nodes that share cards without MPS: nodeSelector \
                                  ack.node.gpu.schedule: share";

/// Why a container with GPU memory may not have an IPC namespace of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantsHosts {
    /// The setting alone wants it: the node has shown that its driver's clients attach without a
    /// name in `/dev/shm`.
    Setting,
    /// The same: they need the servers' `/dev/shm`, and the container has it.
    SettingBesideShm,
    /// The driver's clients need the servers' `/dev/shm`, which the container was not seen to have.
    Driver,
    /// The node has not shown what its driver's clients need, and the setting waits for that
    /// (`auto`) or does not.
    Unseen {
        /// It is `auto`.
        auto: bool,
    },
}

impl WantsHosts {
    /// What the node has shown, and what follows from it: the rest of a refusal's sentence.
    pub(crate) fn because(self) -> &'static str {
        match self {
            Self::Setting => {
                "and policy.ipc = \"require-host\" wants the MPS server's, though this node's driver has shown that it \
                 needs none (anonymous shared memory)"
            }
            Self::SettingBesideShm => {
                "and policy.ipc = \"require-host\" wants the MPS server's, though this node's driver has shown that it \
                 needs the server's /dev/shm alone (named shared memory), which it has"
            }
            Self::Driver => {
                "and no CUDA process in it reaches the MPS server: this node's driver has shown that it needs the \
                 server's /dev/shm (named shared memory), which it was not seen to have"
            }
            Self::Unseen { .. } => {
                "and with drivers up to 555 no CUDA process in it reaches the MPS server; this node has not shown yet \
                 what its driver needs"
            }
        }
    }

    /// What its operator may set instead of the host's namespace, where that helps.
    pub(crate) fn setting(self) -> Option<&'static str> {
        match self {
            Self::Setting | Self::SettingBesideShm => Some(
                "set policy.ipc = \"auto\" in /etc/mpsgate/config.toml, and it starts as it is",
            ),
            Self::Unseen { auto: false } => Some(
                "set policy.ipc = \"auto\" in /etc/mpsgate/config.toml where the driver needs none, as from 580 on",
            ),
            Self::Unseen { auto: true } => Some(
                "start it anew once a container with the host's has used the GPU: a driver from 580 on then shows that \
                 it needs none",
            ),
            Self::Driver => None,
        }
    }
}

/// A request in an IPC namespace that is not the MPS server's, which it has to be; `own_users`: in
/// a user namespace of its own.
#[must_use]
pub fn no_host_ipc(found: &str, why: WantsHosts, own_users: bool) -> Refusal {
    let hint = if own_users { HOST_IPC_AND_USERS } else { HOST_IPC };
    let setting = why.setting().map(|setting| format!("; or {setting}")).unwrap_or_default();
    let sentence = format!("it asks for GPU memory but {found}, {}", why.because());
    Refusal::new(Code::NoHostIpc, sentence, format!("{hint}{setting}"))
}

/// A pod with a request and without `hostIPC`, before any node has it: what the driver there needs
/// is not known.
#[must_use]
pub fn pod_without_host_ipc(own_users: bool) -> Refusal {
    let sentence = format!(
        "it asks for GPU memory but {OWN_IPC}, and the nodes' policy.ipc is \"require-host\": with drivers up to 555 \
         no CUDA process in it reaches the MPS server"
    );
    let host = if own_users { HOST_IPC_AND_USERS } else { "set hostIPC: true in the pod spec" };
    // The setting first: the end of a long warning is cut off, and a template's says this too.
    let hint = format!(
        "with drivers from 580 on, set config.policy.ipc: auto in the chart, and it needs none; or {host}"
    );
    Refusal::new(Code::NoHostIpc, sentence, hint)
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
         --pid=container:X), or set policy.host_pid in /etc/mpsgate/config.toml: \"own\" gives it one in the place of \
         the host's, \"warn\" lets it through",
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mpsgate_oci::spec;

    use super::*;

    #[test]
    fn every_capability_of_the_kernel_is_decided_once() {
        let decided: BTreeSet<&str> = CAPABILITIES.iter().map(|(name, ..)| *name).collect();
        assert_eq!(decided, spec::CAPABILITIES.into_iter().collect());
        assert!(CAPABILITIES.iter().all(|(.., why)| !why.is_empty()));
    }

    #[test]
    fn what_engines_give_by_default_is_allowed_and_what_is_unknown_is_not() {
        // Docker's and containerd's; CRI-O and Podman give fewer.
        let usual = "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP \
                     NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE";
        let usual: Vec<String> = usual.split(' ').map(|name| format!("CAP_{name}")).collect();
        let found = |has: &[String], unknown, others_pids| {
            capability(|name| has.iter().any(|one| one == name), unknown, others_pids)
        };
        assert_eq!(found(&usual, None, true), None);
        assert!(
            found(&usual, Some("CAP_NEW\n"), false).is_some_and(|r| r.sentence.contains("\\n"))
        );
        for (name, may, _) in CAPABILITIES {
            let has = [name.to_owned()];
            let refused = [false, true].map(|pids| found(&has, None, pids).is_some());
            let expected = match may {
                May::Never => [true, true],
                May::Alone => [false, true],
                May::Have => [false, false],
            };
            assert_eq!(refused, expected, "{name}");
        }
    }
}
