//! A refusal: a stable code, one sentence, and a hint that can be pasted.

use std::fmt;

use crate::printable;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+) => {
        /// Stable codes of refusals. Messages, logs, status and pages use them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code { $($(#[doc = $doc])+ $variant,)+ }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The code as users see it.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// Its meaning in one sentence: the line that documents it here.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_start(),)+ }
            }

            /// The code of a text, `None` where there is no such code.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

codes! {
    // What a request says.
    /// A value of the request cannot be taken literally.
    Request = "E_REQUEST",
    /// The request is for several cards, where MPS gives one.
    MultiCard = "E_MULTI_CARD",
    /// A request in a container that is restored from a checkpoint: its env is frozen there.
    Restore = "E_RESTORE",
    /// The request is not confirmed by anybody whom the daemon trusts.
    Unconfirmed = "E_UNCONFIRMED",
    /// A ResourceClaim of Kubernetes gives nothing that a container could be held to.
    Claim = "E_CLAIM",
    /// The request comes through a rootless engine, and mpsgated is root's.
    Rootless = "E_ROOTLESS",
    /// The request comes where only the hook is installed, which cannot change a container.
    HookOnly = "E_HOOK_ONLY",

    // What a spec shows.
    /// The container's IPC namespace is not the MPS server's.
    NoHostIpc = "E_NO_HOST_IPC",
    /// A request in a container whose `/dev/shm` is not the MPS server's, on a node that has shown
    /// that no CUDA process attaches so.
    NoShm = "E_NO_SHM",
    /// A request in a container whose `/dev/shm` is not the MPS server's: warned, as drivers from
    /// 580 on need none.
    Shm = "W_SHM",
    /// `NVIDIA_VISIBLE_DEVICES` names a managed card.
    VisibleDevices = "E_VISIBLE_DEVICES",
    /// NVIDIA's prestart hook would inject a managed card.
    NvidiaHook = "E_NVIDIA_HOOK",
    /// A device node of a managed card, or its files in sysfs by a mount: these are refused with a
    /// request, and else noted.
    DeviceNode = "E_DEVICE_NODE",
    /// A device-cgroup rule opens managed cards.
    DeviceRule = "E_DEVICE_RULE",
    /// A device list in the form of volume mounts.
    VolumeDevices = "E_VOLUME_DEVICES",
    /// A CDI annotation names a managed card.
    CdiAnnotation = "E_CDI_ANNOTATION",
    /// A swarm resource variable names a managed card.
    SwarmResource = "E_SWARM_RESOURCE",
    /// MIG capability devices or variables.
    MigCaps = "E_MIG_CAPS",
    /// IMEX channels.
    ImexChannel = "E_IMEX_CHANNEL",
    /// A privileged container: refused with a request; else it loses the nodes of managed cards.
    Privileged = "E_PRIVILEGED",
    /// A request together with a capability by which no limit would hold, as `CAP_SYS_ADMIN` or
    /// `CAP_BPF`, or with `CAP_SYS_PTRACE` and the pids of the host or of another container
    /// (SECURITY.md, row 23, has all); or with a `/proc/sys` or `/proc/bus`
    /// that it can write, which reaches as far.
    Capability = "E_CAPABILITY",
    /// A request with a way to the cgroups of others: a writable mount of the hierarchies that hold
    /// device rules, memory or freezing, a cgroup that is, holds or lies in another grant's, or one
    /// that is not the root of the container's cgroup namespace.
    Cgroup = "E_CGROUP",
    /// A request that sees the host's processes or another container's, by its PID namespace or by
    /// a mount of a procfs: there it can end or trace the MPS server and its neighbours.
    HostPid = "E_HOST_PID",
    /// A mount of the MPS channel or of mpsgate's own directories, as a layer of an overlay too; or
    /// a request and a mount that is not looked into: a file system on a disk, of a process or of
    /// another kind.
    MpsMount = "E_MPS_MOUNT",
    /// An annotation that makes the runtime open devices or files, or that with a request lets the
    /// container leave the cgroup in which its grant is counted.
    Annotation = "E_ANNOTATION",
    /// Variables of CUDA MPS without a grant: taken away, never refused.
    MpsVariables = "E_MPS_VARIABLES",
    /// Noted, never refused: it reaches an engine, by which its users can start containers past
    /// mpsgate.
    EngineSocket = "E_ENGINE_SOCKET",
    /// Noted, never refused: a hook that runs after mpsgate's has looked at the container.
    LateHook = "E_LATE_HOOK",
    /// Of a pod, at the API server: its RuntimeClass has a handler that bypasses mpsgate.
    Handler = "E_HANDLER",
    /// A path of the spec that the injection needs is taken by something else.
    Spec = "E_SPEC",

    // What the node can give.
    /// No card has so much left.
    NoCapacity = "E_NO_CAPACITY",
    /// No card is so large.
    TooLarge = "E_TOO_LARGE",
    /// A user may have no more GPU memory, or no more grants, at a time (`run.max_mib`,
    /// `run.max_grants`).
    Quota = "E_QUOTA",
    /// No such GPU.
    UnknownGpu = "E_UNKNOWN_GPU",
    /// A container that runs cannot have so much or so little (`mpsgate resize`).
    Resize = "E_RESIZE",
    /// The GPU is not managed.
    GpuUnmanaged = "E_GPU_UNMANAGED",
    /// The settings name the GPU, so that a command cannot take it back.
    GpuConfigured = "E_GPU_CONFIGURED",
    /// Processes use the GPU, or containers hold memory of it.
    GpuInUse = "E_GPU_IN_USE",
    /// The GPU cannot be shared under MPS: before Volta, or MIG.
    GpuUnfit = "E_GPU_UNFIT",
    /// The GPU or its MPS control daemon is not healthy.
    GpuUnhealthy = "E_GPU_UNHEALTHY",
    /// The GPU is being asked what holds on it, and takes grants when that is over.
    GpuNotReady = "E_GPU_NOT_READY",
    /// The node goes from one schedule to another, and containers of the old one still run.
    Schedule = "E_SCHEDULE",
    /// No card's MPS server can serve this uid.
    Uid = "E_UID",
    /// The MPS server did not start.
    MpsServer = "E_MPS_SERVER",
    /// No driver library would be in the container.
    NoDriverLibs = "E_NO_DRIVER_LIBS",

    // What stands between.
    /// The daemon is not there.
    DaemonAway = "E_DAEMON_AWAY",
    /// The daemon does not answer in time.
    DaemonSilent = "E_DAEMON_SILENT",
    /// The daemon speaks another version, or garbage.
    DaemonVersion = "E_DAEMON_VERSION",
    /// Our configuration cannot be read.
    Config = "E_CONFIG",
    /// The bundle's config.json cannot be read.
    Bundle = "E_BUNDLE",
    /// The bundle's config.json, or the exec record, cannot be written.
    Write = "E_WRITE",
    /// The runtime is not installed.
    NoRuntime = "E_NO_RUNTIME",
    /// The daemon could not record the grant.
    Ledger = "E_LEDGER",

    // What the hook found in the container that came out.
    /// The state on the hook's standard input is none.
    HookState = "E_HOOK_STATE",
    /// The container cannot open a device that it was granted.
    DeviceClosed = "E_DEVICE_CLOSED",
    /// The container can open a managed card that it was not granted.
    DeviceOpen = "E_DEVICE_OPEN",
    /// There is no reservation, and no room for a new one.
    NoReservation = "E_NO_RESERVATION",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a container is not started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sentence} [{code}]")]
pub struct Refusal {
    /// The stable code.
    pub code: Code,
    /// One sentence: what was found. The program that prints it names the container.
    pub sentence: String,
    /// What to do, pasteable.
    pub hint: String,
}

/// Messages in any case of letters.
const PODMAN_KNOWS: [&str; 4] = [
    "permission denied",
    "operation not permitted",
    "executable file not found in",
    "no such file or directory",
];

impl Refusal {
    /// A refusal from its parts.
    pub fn new(code: Code, sentence: impl Into<String>, hint: impl Into<String>) -> Self {
        let sentence: String = sentence.into();
        Self { code, sentence: printable::line(&sentence).into_owned(), hint: hint.into() }
    }

    /// The two lines that the user of an engine reads, in the runtime's log file and on stderr.
    /// Without the name of a container they are about the whole pod.
    ///
    /// Both are one line where Podman would show only the first: Podman shows only the line with a
    /// message of the system that it knows, out of a runtime's text (libpod's `getOCIRuntimeError`;
    /// seen with Podman 5.4).
    #[must_use]
    pub fn render(&self, container: &str) -> String {
        // A daemon's refusal comes over the socket.
        let (sentence, hint) = (printable::line(&self.sentence), printable::line(&self.hint));
        let text = sentence.to_ascii_lowercase();
        let gap = if PODMAN_KNOWS.iter().any(|words| text.contains(words)) { "; " } else { "\n" };
        let whom =
            if container.is_empty() { String::new() } else { format!(" container {container:?}") };
        format!("mpsgate: refused{whom}: {sentence} [{}]{gap}hint: {hint}", self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::{Code, Refusal};

    #[test]
    fn the_hint_has_a_line_of_its_own_unless_podman_would_cut_it_off() {
        let text = |sentence: &str| Refusal::new(Code::Request, sentence, "do this").render("web");
        assert_eq!(
            text("7GB is no size"),
            "mpsgate: refused container \"web\": 7GB is no size [E_REQUEST]\nhint: do this"
        );
        for known in ["open /x: No such file or directory (os error 2)", "Permission denied"] {
            assert_eq!(text(known).lines().count(), 1, "{known}");
            assert!(text(known).ends_with(" [E_REQUEST]; hint: do this"), "{known}");
        }
    }

    #[test]
    fn what_is_the_whole_pods_names_no_container() {
        let refusal = Refusal::new(Code::Request, "it is too long", "make it smaller");
        assert_eq!(
            refusal.render(""),
            "mpsgate: refused: it is too long [E_REQUEST]\nhint: make it smaller"
        );
    }
}
