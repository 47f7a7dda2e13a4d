//! What the checks evaluate. Plain values, so that each check can be shown a broken node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use mpsgate_api::{NodeSnapshot, Status};
use mpsgate_config::{Config, Manage};
use mpsgate_gpu::Card;
use mpsgate_mps::{Capabilities, MpsState};
use mpsgate_policy::schedule::Word;

/// Why a fact is missing: an error with its causes, and its remedy where it knows one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) what: String,
    pub(super) hint: Option<String>,
}

pub(super) type Known<T> = Result<T, Trouble>;

/// Everything that was looked at. `None` inside `Known` means: is not there.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) euid: u32,
    pub(super) config: Known<Settings>,
    pub(super) nvml: Known<NvmlFacts>,
    /// NVIDIA's character devices of `/proc/devices`, by name.
    pub(super) majors: Known<BTreeMap<String, u64>>,
    /// `/dev/nvidia*` by path.
    pub(super) nodes: BTreeMap<String, DeviceFile>,
    pub(super) control: Program,
    /// `None`: there is no binary to ask.
    pub(super) capabilities: Option<Known<Capabilities>>,
    pub(super) runtime: RuntimeFacts,
    /// `mpsgate-runtime` and `mpsgate-hook`.
    pub(super) own_programs: Vec<Program>,
    pub(super) daemon: Known<Status>,
    /// Entries of the ledger.
    pub(super) ledger: Known<Option<usize>>,
    /// UUIDs of the cards that `mpsgate enable` handed over.
    pub(super) enabled: Known<BTreeSet<String>>,
    pub(super) snapshot: Known<Option<NodeSnapshot>>,
    pub(super) runtime_link: Known<Option<PathBuf>>,
    pub(super) cgroup: Cgroup,
    /// Whether the kernel has the `dmem` controller in the tree of v2.
    pub(super) dmem: bool,
    pub(super) pidfd: Known<()>,
    pub(super) kernel: Known<String>,
    /// Inode of our own IPC namespace.
    pub(super) ipc_inode: Known<u64>,
    /// The control daemons by number of their directory below `/run/mpsgate/mps`.
    pub(super) mps_states: Known<BTreeMap<u32, Known<MpsState>>>,
    pub(super) leases: Known<Vec<Known<LeaseFacts>>>,
    /// Every socket that we or MPS bind, at its longest.
    pub(super) sockets: Vec<PathBuf>,
    pub(super) open_files: Vec<OpenFiles>,
    pub(super) default_mps: bool,
    /// The kernel module's version; `None`: it is not loaded.
    pub(super) module: Known<Option<String>>,
    /// What the control daemons' logs say of their version; 535 and 550 say nothing.
    pub(super) mps_version: Option<String>,
    pub(super) engines: Vec<EngineFacts>,
    /// Why engines may run that are not among these.
    pub(super) doubts: BTreeSet<String>,
    /// Policy in kubelet's `cpu_manager_state`; `None`: no kubelet wrote one.
    pub(super) cpu_manager: Known<Option<String>>,
    pub(super) security: Security,
    pub(super) clock: Clock,
    /// Directory and file of the tokens' keys; empty where there are none yet.
    pub(super) tokens: Known<Vec<KeyFile>>,
}

/// An installed engine.
#[derive(Debug, Clone)]
pub(super) struct EngineFacts {
    pub(super) name: &'static str,
    pub(super) version: Option<String>,
    pub(super) in_use: bool,
    pub(super) ways: Known<Ways>,
}

/// Handlers of an engine, a sentence each.
#[derive(Debug, Clone)]
pub(super) struct Ways {
    pub(super) round: Vec<String>,
    pub(super) through: Vec<String>,
    /// A daemon that runs since before these settings were written.
    pub(super) stale: Option<u32>,
}

/// What the kernel's security modules do here.
#[derive(Debug, Clone)]
pub(super) struct Security {
    /// `None`: no SELinux. Else whether it enforces.
    pub(super) selinux: Option<bool>,
    pub(super) apparmor: bool,
    /// SELinux type of each directory that containers are given; `None`: it cannot be read.
    pub(super) client_types: BTreeMap<PathBuf, Option<String>>,
}

#[derive(Debug, Clone)]
pub(super) struct Clock {
    /// Seconds since 1970.
    pub(super) now: u64,
    /// The latest file of ours, and when it was written.
    pub(super) newest: Option<(PathBuf, u64)>,
}

#[derive(Debug, Clone)]
pub(super) struct KeyFile {
    pub(super) path: PathBuf,
    pub(super) uid: u32,
    /// Permission bits.
    pub(super) mode: u32,
    /// The bits that it may have.
    pub(super) allowed: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) config: Config,
    /// `None`: there is no file.
    pub(super) file: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub(super) struct NvmlFacts {
    pub(super) driver: Known<String>,
    pub(super) simulated: bool,
    pub(super) cards: Known<Vec<Known<Card>>>,
    /// Whether it holds cgroups to memory limits.
    pub(super) limits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceFile {
    Char { major: u64, minor: u64 },
    Other,
}

#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) file: Known<Option<ProgramFile>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ProgramFile {
    pub(super) uid: u32,
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) linking: Linking,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Linking {
    /// With musl, as it is shipped.
    Static,
    /// With glibc, because Rust's musl target was not there when it was built.
    StaticGlibc,
    Dynamic,
    /// A script, or for another kind of machine.
    NotElf64,
}

#[derive(Debug, Clone)]
pub(super) struct RuntimeFacts {
    /// As configured.
    pub(super) name: PathBuf,
    pub(super) path: Option<PathBuf>,
    /// First line of `--version`.
    pub(super) version: Option<Known<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cgroup {
    V2,
    /// v1 controllers beside a v2 tree without any.
    Hybrid,
    V1,
    None,
}

#[derive(Debug, Clone)]
pub(super) struct LeaseFacts {
    pub(super) uuid: String,
    /// As `nvidia-smi -c` takes it.
    pub(super) previous: &'static str,
}

#[derive(Debug, Clone)]
pub(super) struct OpenFiles {
    /// `mpsgated (pid 7)`
    pub(super) process: String,
    /// `None`: unlimited.
    pub(super) hard: Known<Option<u64>>,
}

impl Facts {
    pub(super) fn is_simulated(&self) -> bool {
        self.nvml.as_ref().is_ok_and(|nvml| nvml.simulated)
    }

    /// The cards that NVML could read.
    pub(super) fn cards(&self) -> impl Iterator<Item = &Card> {
        let cards = self.nvml.iter().filter_map(|nvml| nvml.cards.as_ref().ok());
        cards.flatten().filter_map(|card| card.as_ref().ok())
    }

    /// Whether the cards are shared without MPS, as far as mpsgated has said.
    pub(super) fn shares(&self) -> bool {
        self.daemon.as_ref().is_ok_and(|status| status.schedule == Word::Share)
    }

    /// UUIDs of the managed cards: the daemon knows best, then what it last wrote, then what
    /// it would start with.
    pub(super) fn managed(&self) -> BTreeSet<String> {
        if let Ok(status) = &self.daemon {
            let managed = status.cards.iter().filter(|card| card.managed);
            return managed.map(|card| card.uuid.clone()).collect();
        }
        if let Ok(Some(snapshot)) = &self.snapshot {
            let managed = snapshot.cards.iter().filter(|card| card.managed);
            return managed.map(|card| card.uuid.to_string()).collect();
        }
        let mut managed = self.enabled.clone().unwrap_or_default();
        match self.config.as_ref().map(|settings| &settings.config.gpus.manage) {
            Ok(Manage::Uuids(uuids)) => managed.extend(uuids.iter().cloned()),
            Ok(Manage::All) => managed.extend(self.cards().map(|card| card.uuid.clone())),
            Err(_) => {}
        }
        managed
    }
}
