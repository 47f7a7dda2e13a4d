//! Errors of NVML and of cards, with their remedies.

use std::fmt;
use std::path::{Path, PathBuf};

use mpsgate_model::ComputeMode;
use nvml_wrapper::error::NvmlError;

/// A failure of NVML. The cause is in `source()`, the remedy in [`GpuError::hint`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The dynamic loader finds no such library: no driver is installed, or it is elsewhere.
    #[error("this node has no NVML library {}", library.display())]
    NoLibrary {
        /// The path or name that was asked for.
        library: PathBuf,
    },
    /// The dynamic loader cannot open the library: it is not ELF, is for another architecture, or
    /// lacks a library of its own.
    #[error("cannot load the NVML library {}", library.display())]
    LibraryUnavailable {
        /// The path or name that was asked for.
        library: PathBuf,
        /// The dynamic loader's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The library loads, but is not NVML (or is far too old).
    #[error("{} is not an NVML library", library.display())]
    NotNvml {
        /// The path or name that was asked for.
        library: PathBuf,
        /// Names the missing symbol.
        #[source]
        source: NvmlError,
    },
    /// NVML loads, but does not start.
    #[error("cannot initialise NVML from {}", library.display())]
    Init {
        /// The path or name that was asked for.
        library: PathBuf,
        /// NVML's answer.
        #[source]
        source: NvmlError,
    },
    /// A call that concerns the whole node failed.
    #[error("cannot {action}")]
    System {
        /// What was tried.
        action: &'static str,
        /// NVML's answer.
        #[source]
        source: NvmlError,
    },
    /// No card of this node has that UUID.
    #[error("no card has the uuid {uuid}")]
    UnknownCard {
        /// The UUID as it was given.
        uuid: String,
    },
    /// The UUID names a part of a card.
    #[error("{uuid} is a MIG instance, not a card")]
    MigInstance {
        /// The UUID as it was given.
        uuid: String,
    },
    /// Reading the driver's process lists would corrupt memory.
    #[error("driver {driver_version} has process lists of an incompatible layout")]
    UnsoundProcessLists {
        /// Version of the driver.
        driver_version: String,
    },
    /// A call on one card failed.
    #[error(transparent)]
    Card(#[from] CardError),
    /// The limit of a cgroup could not be set, cleared or read.
    #[error("cannot {action} of {} on card {uuid}", cgroup.display())]
    MemoryLimit {
        /// What was tried.
        action: LimitAction,
        /// UUID of the card.
        uuid: String,
        /// The cgroup's directory.
        cgroup: PathBuf,
        /// NVML's answer.
        #[source]
        source: NvmlError,
    },
}

/// An action on the memory limit of a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitAction {
    /// Set the hard limit.
    Set {
        /// The limit in MiB.
        mib: u64,
    },
    /// Remove it.
    Clear,
    /// Read it back.
    Read,
}

impl fmt::Display for LimitAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set { mib } => write!(f, "set a memory limit of {mib} MiB on the processes"),
            Self::Clear => f.write_str("clear the memory limit"),
            Self::Read => f.write_str("read the memory limit"),
        }
    }
}

/// A call on one card failed; the others may be well.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", CardName(self))]
pub struct CardError {
    /// NVML's index, where known.
    pub index: Option<u32>,
    /// UUID, where known. NVML does not return it for every lost card.
    pub uuid: Option<String>,
    /// What was tried.
    pub action: CardAction,
    /// NVML's answer.
    #[source]
    pub source: NvmlError,
}

/// An action on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardAction {
    /// Get NVML's handle.
    Open,
    /// Read the named property.
    Read(&'static str),
    /// Change who may create contexts.
    SetComputeMode(ComputeMode),
}

impl fmt::Display for CardAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open"),
            Self::Read(property) => write!(f, "read the {property} of"),
            Self::SetComputeMode(mode) => write!(f, "set compute mode {mode} on"),
        }
    }
}

struct CardName<'a>(&'a CardError);

impl fmt::Display for CardName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.index, &self.0.uuid) {
            (Some(index), Some(uuid)) => write!(f, "card {index} ({uuid})"),
            (Some(index), None) => write!(f, "card {index}"),
            (None, Some(uuid)) => write!(f, "card {uuid}"),
            (None, None) => f.write_str("a card"),
        }
    }
}

impl GpuError {
    /// The remedy, in one line. `None` where NVML names no cause that a person could act on.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoLibrary { .. } | Self::LibraryUnavailable { .. } => {
                "install the NVIDIA driver, which brings libnvidia-ml.so.1 (check: nvidia-smi), or \
                 set nvml.library to where it lies"
            }
            Self::NotNvml { .. } => {
                "set nvml.library to the driver's libnvidia-ml.so.1 (find it: ldconfig -p | grep \
                 libnvidia-ml)"
            }
            Self::UnknownCard { .. } => "list the cards of this node: nvidia-smi -L",
            Self::MigInstance { .. } => {
                "name the whole card by its GPU-… uuid; MIG and MPS sharing exclude each other here"
            }
            Self::UnsoundProcessLists { .. } => "upgrade the NVIDIA driver to 535.104.05 or newer",
            Self::Init { source, .. } | Self::System { source, .. } => {
                return nvml_hint(source, "N");
            }
            Self::Card(error) => return error.hint(),
            Self::MemoryLimit { cgroup, source, uuid, .. } => {
                return limit_hint(cgroup, source).or_else(|| nvml_hint(source, uuid));
            }
        };
        Some(hint.to_owned())
    }

    /// Whether the driver has no memory limits of cgroups, although its library has the calls.
    #[must_use]
    pub fn is_no_limits(&self) -> bool {
        matches!(self, Self::MemoryLimit { source: NvmlError::FunctionNotFound, .. })
    }
}

/// The remedy for NVML's answer about a cgroup; other answers are about the card.
fn limit_hint(cgroup: &Path, error: &NvmlError) -> Option<String> {
    match error {
        NvmlError::NoPermission => {
            Some("only root of the host may set limits: run as root, outside any container".into())
        }
        // NVML returns either for a directory without dmem.* files (NVIDIA MPS documentation,
        // r615).
        NvmlError::NotFound | NvmlError::NotSupported => Some(format!(
            "ls {0}/dmem.max; cat {0}/cgroup.controllers; where RmMemacctMode is 0 the driver keeps none: \
             grep Memacct /proc/driver/nvidia/params",
            cgroup.display()
        )),
        _ => None,
    }
}

impl CardError {
    /// The remedy, in one line. `None` where NVML names no cause that a person could act on.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        if let (CardAction::SetComputeMode(_), NvmlError::NoPermission) =
            (self.action, &self.source)
        {
            return Some(
                "only root of the host may change the compute mode: run as root, outside \
                         any container"
                    .to_owned(),
            );
        }
        let index = self.index.map(|index| index.to_string());
        nvml_hint(&self.source, self.uuid.as_deref().or(index.as_deref()).unwrap_or("N"))
    }
}

/// The remedy for an answer of NVML. `card` is what `nvidia-smi -i` takes.
fn nvml_hint(error: &NvmlError, card: &str) -> Option<String> {
    let hint = match error {
        NvmlError::DriverNotLoaded => "load the kernel module: modprobe nvidia (why not: dmesg)",
        NvmlError::LibRmVersionMismatch => {
            "library and kernel module differ, mostly after an upgrade: reboot, or unload and load \
             the nvidia modules"
        }
        NvmlError::NoPermission => {
            "run as root; /dev/nvidiactl and /dev/nvidia* must be there and readable"
        }
        NvmlError::OperatingSystem => {
            "the operating system blocks the device: let the service's DeviceAllow= and cgroup \
             open /dev/nvidia*"
        }
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
            // Memory with `reserved` and the `_v3` lists came with 510.39.01; 535.98 lacks the
            // lists (XuehaiPan/nvitop pull request 89, NVIDIA/nvidia-settings issue 78).
            "upgrade the NVIDIA driver: calls that are needed came with 510.39.01, and 535.98 lacks \
             some"
        }
        NvmlError::LibraryNotFound => "reinstall the NVIDIA driver: a part of it is missing",
        NvmlError::GpuLost => {
            return Some(format!(
                "the card fell off the bus: look for Xid lines in dmesg, then try nvidia-smi \
                 --gpu-reset -i {card}, or reboot"
            ));
        }
        NvmlError::ResetRequired => {
            return Some(format!(
                "stop what uses the card, then reset it: nvidia-smi --gpu-reset -i {card}"
            ));
        }
        NvmlError::InUse => {
            return Some(format!("see what uses the card: nvidia-smi -i {card}"));
        }
        NvmlError::InsufficientPower => "attach the card's external power cables",
        NvmlError::IrqIssue => {
            "the card's interrupts do not arrive: see dmesg, and the firmware's PCI settings"
        }
        NvmlError::CorruptedInfoROM => "the card's infoROM is damaged: have the card serviced",
        NvmlError::NotSupported => {
            "this card, driver or virtual GPU lacks the call; it cannot be managed by mpsgate"
        }
        NvmlError::Unknown | NvmlError::Timeout | NvmlError::InsufficientMemory => {
            "see what the driver says: nvidia-smi -q, and NVRM lines in dmesg"
        }
        // The rest are mistakes between mpsgate and NVML (bad arguments, unknown values, sizes).
        _ => return None,
    };
    Some(hint.to_owned())
}

#[cfg(test)]
mod tests;
