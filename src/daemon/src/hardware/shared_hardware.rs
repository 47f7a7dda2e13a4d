//! A card without MPS.

use mpsgate_config::Schedule;
use mpsgate_gpu::{Card, Unfit};
use mpsgate_model::ComputeMode;
use mpsgate_node::card::{CardId, Trouble};

use super::control::mps_trouble;
use super::{Fault, Hardware, gpu_trouble, unfit_words};

/// Whether a card can be shared so. Cards from before Volta lack what MPS limits clients with.
pub(super) fn fits(card: &Card, schedule: Schedule) -> Result<(), Trouble> {
    match (card.fitness(), schedule) {
        (Ok(()), _) | (Err(Unfit::PreVolta { .. }), Schedule::Share) => Ok(()),
        (Err(unfit), _) => Err(Trouble::new(unfit_words(&unfit), unfit.hint())),
    }
}

impl Hardware {
    /// Makes a card ready to be shared without MPS, and tells its compute mode; safe to repeat.
    /// What an earlier schedule has left is taken down.
    pub(crate) fn share(&self, card: &CardId) -> Result<ComputeMode, Fault> {
        let nvml = self.nvml().map_err(Fault::Failed)?;
        let uuid = card.uuid.as_str();
        let failed = |error: mpsgate_gpu::GpuError| Fault::Failed(gpu_trouble(&error));
        let found = nvml.card(uuid).map_err(failed)?;
        fits(&found, Schedule::Share).map_err(Fault::Unfit)?;
        self.has_memory(card)?;
        let lease = self.leases().read(uuid).map_err(|e| Fault::Failed(mps_trouble(&e)))?;
        if lease.is_some() || !self.is_dead(card) {
            self.take_down(card).map_err(Fault::Failed)?;
        }
        nvml.compute_mode(uuid).map_err(failed)
    }

    pub(super) fn has_memory(&self, card: &CardId) -> Result<(), Fault> {
        if card.memory.0 > 0 {
            return Ok(());
        }
        Err(Fault::Unfit(Trouble::new(
            format!(
                "has nothing left to give after the reserve of {} MiB",
                self.settings.now().gpus.reserve_mib
            ),
            "lower gpus.reserve_mib in /etc/mpsgate/config.toml",
        )))
    }
}
