//! The settings as types. Each default is in one `Default` impl.
//!
//! `config/config.toml` explains each key to operators; a test compares the two.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// An enum whose values are words of the settings file.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(test, derive(serde::Serialize))]
        pub enum $name { $($(#[$value_doc])* #[cfg_attr(test, serde(rename = $word))] $value,)+ }

        impl $name {
            /// Every word that the settings file may have here.
            pub const WORDS: &[&str] = &[$($word),+];

            /// The value of a word of the settings file.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$value),)+ _ => None }
            }

            /// The word of the settings file.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

mod kubernetes;
mod policy;
mod run;
mod slurm;

pub use self::kubernetes::{Kubeconfig, Kubernetes, NodeName, SlicesUid};
pub use self::policy::{
    Enforce, Exempt, HostPid, Ipc, Policy, Privileged, Tolerance, Unallocated, VisibleDevices,
};
pub use self::run::{Run, RunGroup};
pub use self::slurm::{Slurm, SlurmConf};

/// All settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Config {
    /// `[runtime]`: the real OCI runtime.
    pub runtime: Runtime,
    /// `[gpus]`: the cards.
    pub gpus: Gpus,
    /// `[requests]`: where requests may come from.
    pub requests: Requests,
    /// `[trust]`: which requests are trusted.
    pub trust: Trust,
    /// `[policy]`: which containers start.
    pub policy: Policy,
    /// `[inject]`: how a card gets into a container.
    pub inject: Inject,
    /// `[mps]`: the MPS control daemons.
    pub mps: Mps,
    /// `[nvml]`: the driver's management library.
    pub nvml: Nvml,
    /// `[run]`: plain processes.
    pub run: Run,
    /// `[slurm]`: jobs of Slurm.
    pub slurm: Slurm,
    /// `[kubernetes]`: the resources for kubelet.
    pub kubernetes: Kubernetes,
    /// `[metrics]`: the metrics for Prometheus.
    pub metrics: Metrics,
    /// `[log]`: the log.
    pub log: Log,
}

/// `[runtime]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Runtime {
    /// A name that [`find_runtime`](crate::find_runtime) looks up, or an absolute path.
    pub path: PathBuf,
}

impl Default for Runtime {
    fn default() -> Self {
        Self { path: "runc".into() }
    }
}

/// `[gpus]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Gpus {
    /// The cards that mpsgate may use.
    pub manage: Manage,
    /// How their memory is shared.
    pub schedule: Schedule,
    /// MiB of each managed card that are never granted.
    pub reserve_mib: u64,
}

impl Default for Gpus {
    fn default() -> Self {
        Self { manage: Manage::Uuids(Vec::new()), schedule: Schedule::Mps, reserve_mib: 1024 }
    }
}

/// The cards that were handed to mpsgate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manage {
    /// `"all"`: each card of the node, and later ones too.
    All,
    /// These, by UUID as `nvidia-smi -L` prints it; none by default.
    Uuids(Vec<String>),
}

impl Manage {
    /// Whether the card with this UUID was handed over.
    #[must_use]
    pub fn includes(&self, uuid: &str) -> bool {
        match self {
            Self::All => true,
            Self::Uuids(uuids) => uuids.iter().any(|known| known.eq_ignore_ascii_case(uuid)),
        }
    }
}

words! {
    /// How the containers of a node share the memory of its cards: the words of the node label
    /// `ack.node.gpu.schedule`.
    Schedule {
        /// MPS limits each process to its container's grant.
        Mps = "mps",
        /// By agreement alone: grants are counted, nothing limits their containers.
        Share = "share",
    }
}

words! {
    /// A setting that mpsgate can find out for itself.
    Switch {
        /// As the node is.
        Auto = "auto",
        /// In any case.
        On = "on",
        /// In no case.
        Off = "off",
    }
}

impl Switch {
    /// On or off; `auto` takes the node's value.
    #[must_use]
    pub fn is_on(self, auto: bool) -> bool {
        match self {
            Self::On => true,
            Self::Off => false,
            Self::Auto => auto,
        }
    }
}

/// `[requests]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Requests {
    /// Whether `MPSGATE_…` in a container's environment are requests. `Auto`: unless a kubelet
    /// runs.
    pub from_env: Switch,
}

impl Default for Requests {
    fn default() -> Self {
        Self { from_env: Switch::Auto }
    }
}

/// `[trust]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Trust {
    /// Whether requests of docker, podman and ctr are trusted. `Auto`: unless a kubelet runs.
    pub local: Switch,
    /// On a node with a kubelet: state or bundle directories of an engine that it drives, which
    /// otherwise look like Podman's.
    pub kubernetes_roots: Vec<PathBuf>,
}

impl Default for Trust {
    fn default() -> Self {
        Self { local: Switch::Auto, kubernetes_roots: vec!["/run/containers/storage".into()] }
    }
}

/// `[inject]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Inject {
    /// The way of injection.
    pub mode: InjectMode,
}

impl Default for Inject {
    fn default() -> Self {
        Self { mode: InjectMode::Auto }
    }
}

words! {
    /// What brings the granted card and the driver's files into a container.
    InjectMode {
        /// The first of the others that this node has.
        Auto = "auto",
        /// nvidia-container-runtime below mpsgate.
        NvidiaRuntime = "nvidia-runtime",
        /// The node's CDI specifications.
        Cdi = "cdi",
        /// Device nodes only.
        Devices = "devices",
    }
}

/// `[mps]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Mps {
    /// NVIDIA's MPS control daemon, an absolute path.
    pub control: PathBuf,
    /// The memory limit of each process of a container with a door.
    pub processes: Processes,
    /// Whether clients under a debugger attach through a door.
    pub debug: bool,
    /// Seconds that a server may take to start.
    pub start_timeout_s: u32,
    /// Whether one server serves several uids. `Auto`: if the installed binary can.
    pub multiuser: Switch,
    /// Clients per server; 0 means by driver: 48 before CUDA 13.1, else 60.
    pub max_clients: u32,
    /// What keeps the control daemons running.
    pub supervisor: Supervisor,
    /// The treatment of a server whose control daemon has died.
    pub orphan: Orphan,
}

impl Default for Mps {
    fn default() -> Self {
        Self {
            control: "/usr/bin/nvidia-cuda-mps-control".into(),
            processes: Processes::Each,
            debug: false,
            start_timeout_s: 60,
            multiuser: Switch::Auto,
            max_clients: 0,
            supervisor: Supervisor::Auto,
            orphan: Orphan::Wait,
        }
    }
}

words! {
    /// The memory limit of a process that attaches at a door.
    Processes {
        /// The whole grant.
        Each = "each",
        /// The part of it that the container's other processes do not use.
        Split = "split",
    }
}

words! {
    /// What starts the MPS control daemons and keeps them running without mpsgated.
    Supervisor {
        /// The holder if one answers, systemd if it runs and is 240 or newer, else a holder that
        /// mpsgated starts.
        Auto = "auto",
        /// A unit for each card.
        Systemd = "systemd",
        /// `mpsgated hold`, which something else starts: a pod of its own.
        Holder = "holder",
    }
}

words! {
    /// The treatment of a server that outlived its control daemon and still holds the card.
    Orphan {
        /// The card waits for the server's end.
        Wait = "wait",
        /// The server is killed.
        Kill = "kill",
    }
}

/// `[nvml]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Nvml {
    /// A file name that the loader searches, or an absolute path.
    pub library: PathBuf,
}

impl Default for Nvml {
    fn default() -> Self {
        Self { library: "libnvidia-ml.so.1".into() }
    }
}

/// `[metrics]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Metrics {
    /// Where mpsgated answers Prometheus.
    pub listen: Listen,
}

impl Default for Metrics {
    fn default() -> Self {
        // Prometheus' list of exporters has 9100 to 9999; the ports that engines and kubelets
        // assign by themselves begin at 30000.
        Self { listen: Listen::At(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 19400)) }
    }
}

/// Where the metrics are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// At this address. Port 0, which a settings file cannot name, is any free one: for tests.
    At(SocketAddr),
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Log {
    /// The least important messages that are written.
    pub level: LogLevel,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: LogLevel::Info }
    }
}

words! {
    /// How important a message is.
    LogLevel {
        /// Someone must act.
        Error = "error",
        /// Someone may have to act.
        Warn = "warn",
        /// A state changed.
        Info = "info",
        /// Why it changed.
        Debug = "debug",
        /// Every step.
        Trace = "trace",
    }
}
