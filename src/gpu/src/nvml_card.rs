//! One card as NVML describes it, and whether it can be shared under MPS.

use mpsgate_model::ComputeMode;
use nvml_wrapper::enum_wrappers::device::ComputeMode as NvmlComputeMode;

/// One card at the moment of the call. Nothing in it updates itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// `GPU-…`: the same across reboots, and the only name that should be stored.
    pub uuid: String,
    /// NVML's index, as `nvidia-smi` prints it. Changes when cards come and go.
    pub index: u32,
    /// The `N` of `/dev/nvidiaN`. It may differ from the index.
    pub minor: u32,
    /// Product name, for people only.
    pub name: String,
    /// All memory in MiB, rounded down. It includes what driver and firmware keep for themselves.
    pub memory_total_mib: u64,
    /// Memory in use in MiB, rounded up, without what driver and firmware keep for themselves.
    pub memory_used_mib: u64,
    /// CUDA compute capability as (major, minor).
    pub compute_capability: (u32, u32),
    /// Whether the card is cut into MIG instances now. A pending change shows only after a reset.
    pub mig: MigState,
    /// Who may create contexts.
    pub compute_mode: ComputeMode,
    /// PCI address in NVML's spelling, `00000000:3B:00.0`.
    pub pci_bus_id: String,
}

/// Oldest compute capability with memory limits and separate address spaces under MPS: Volta.
const VOLTA: (u32, u32) = (7, 0);

impl Card {
    /// Whether containers can share this card under MPS.
    ///
    /// # Errors
    /// The reason why not. The age is reported before MIG, because only MIG can be changed.
    pub fn fitness(&self) -> Result<(), Unfit> {
        if self.compute_capability < VOLTA {
            return Err(Unfit::PreVolta {
                uuid: self.uuid.clone(),
                name: self.name.clone(),
                compute_capability: self.compute_capability,
            });
        }
        if self.mig == MigState::Enabled {
            return Err(Unfit::MigEnabled { uuid: self.uuid.clone(), name: self.name.clone() });
        }
        Ok(())
    }
}

/// State of Multi-Instance GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigState {
    /// The card supports MIG, and is not divided.
    Disabled,
    /// The card is divided into instances.
    Enabled,
    /// The card does not support MIG.
    Unsupported,
}

pub(crate) fn of_nvml(mode: NvmlComputeMode) -> ComputeMode {
    match mode {
        NvmlComputeMode::Default => ComputeMode::Default,
        NvmlComputeMode::ExclusiveThread => ComputeMode::ExclusiveThread,
        NvmlComputeMode::Prohibited => ComputeMode::Prohibited,
        NvmlComputeMode::ExclusiveProcess => ComputeMode::ExclusiveProcess,
    }
}

pub(crate) fn to_nvml(mode: ComputeMode) -> NvmlComputeMode {
    match mode {
        ComputeMode::Default => NvmlComputeMode::Default,
        ComputeMode::ExclusiveThread => NvmlComputeMode::ExclusiveThread,
        ComputeMode::Prohibited => NvmlComputeMode::Prohibited,
        ComputeMode::ExclusiveProcess => NvmlComputeMode::ExclusiveProcess,
    }
}

/// Why a card cannot be shared under MPS.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// MPS before Volta has neither memory limits nor separate address spaces (NVIDIA MPS
    /// documentation, r615).
    #[error(
        "{name} ({uuid}) has compute capability {}.{}, sharing needs 7.0 (Volta) or newer",
        compute_capability.0, compute_capability.1
    )]
    PreVolta {
        /// UUID of the card.
        uuid: String,
        /// Product name.
        name: String,
        /// (major, minor).
        compute_capability: (u32, u32),
    },
    /// A card that is divided into instances has no whole to share.
    #[error("{name} ({uuid}) is in MIG mode")]
    MigEnabled {
        /// UUID of the card.
        uuid: String,
        /// Product name.
        name: String,
    },
}

impl Unfit {
    /// The remedy, in one line.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::PreVolta { uuid, .. } => format!("leave {uuid} out of gpus.manage"),
            Self::MigEnabled { uuid, .. } => {
                format!("turn MIG off: nvidia-smi -i {uuid} -mig 0, or leave it out of gpus.manage")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(compute_capability: (u32, u32), mig: MigState) -> Card {
        Card {
            uuid: "GPU-1".to_owned(),
            index: 0,
            minor: 0,
            name: "Test".to_owned(),
            memory_total_mib: 16384,
            memory_used_mib: 0,
            compute_capability,
            mig,
            compute_mode: ComputeMode::Default,
            pci_bus_id: "00000000:3B:00.0".to_owned(),
        }
    }

    #[test]
    fn volta_and_newer_cards_that_are_whole_are_fit() {
        for compute_capability in [(7, 0), (7, 5), (8, 0), (9, 0), (10, 0), (12, 1)] {
            for mig in [MigState::Disabled, MigState::Unsupported] {
                assert_eq!(card(compute_capability, mig).fitness(), Ok(()));
            }
        }
    }

    #[test]
    fn cards_before_volta_are_unfit() {
        for compute_capability in [(6, 2), (6, 1), (3, 5), (0, 0)] {
            let fitness = card(compute_capability, MigState::Unsupported).fitness();
            assert!(matches!(fitness, Err(Unfit::PreVolta { .. })), "{fitness:?}");
        }
    }

    #[test]
    fn a_card_cut_by_mig_is_unfit() {
        let unfit = Unfit::MigEnabled { uuid: "GPU-1".to_owned(), name: "Test".to_owned() };
        assert_eq!(card((9, 0), MigState::Enabled).fitness(), Err(unfit));
    }

    #[test]
    fn compute_modes_survive_nvml() {
        for word in ["DEFAULT", "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"] {
            let mode = ComputeMode::parse(word).expect("a compute mode");
            assert_eq!((mode.as_str(), of_nvml(to_nvml(mode))), (word, mode));
        }
    }

    #[test]
    fn the_reason_why_a_card_is_unfit_reads_as_a_sentence() {
        let old = Unfit::PreVolta {
            uuid: "GPU-1".to_owned(),
            name: "Tesla P4".to_owned(),
            compute_capability: (6, 1),
        };
        assert_eq!(
            old.to_string(),
            "Tesla P4 (GPU-1) has compute capability 6.1, sharing needs 7.0 (Volta) or newer"
        );
        assert_eq!(old.hint(), "leave GPU-1 out of gpus.manage");
        let mig = Unfit::MigEnabled { uuid: "GPU-2".to_owned(), name: "H200".to_owned() };
        assert_eq!(mig.to_string(), "H200 (GPU-2) is in MIG mode");
        assert!(mig.hint().contains("nvidia-smi -i GPU-2 -mig 0"));
    }
}
