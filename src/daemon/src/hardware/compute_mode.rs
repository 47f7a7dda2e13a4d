//! The compute mode of a card, which is ours while it is managed: the old one is kept as a lease
//! and given back.

use mpsgate_gpu::Nvml;
use mpsgate_host::crash_point;
use mpsgate_model::ComputeMode;
use mpsgate_mps::{LeaseDir, Taken};
use mpsgate_node::card::Trouble;

use super::control::mps_trouble;
use super::{Hardware, gpu_trouble};
use crate::error::chain;

impl Hardware {
    /// Makes the compute mode of a ready card EXCLUSIVE_PROCESS again; `true` where it was another.
    pub(crate) fn retake_compute_mode(&self, uuid: &str) -> Result<bool, Trouble> {
        let nvml = self.nvml()?;
        let now = nvml.compute_mode(uuid).map_err(|e| gpu_trouble(&e))?;
        self.take_compute_mode(&nvml, uuid, now)?;
        Ok(now != ComputeMode::ExclusiveProcess)
    }

    /// Remembers the card's compute mode and makes it EXCLUSIVE_PROCESS.
    pub(super) fn take_compute_mode(
        &self,
        nvml: &Nvml,
        uuid: &str,
        now: ComputeMode,
    ) -> Result<(), Trouble> {
        let taken = self.leases().take(uuid, now).map_err(|e| mps_trouble(&e))?;
        crash_point!("lease.taken");
        match taken {
            Taken::New(_) => log::info!(uuid, previous:% = now; "compute mode leased"),
            Taken::Renewed(_) => {
                log::info!(uuid, previous:% = now; "compute mode leased anew: the card had lost ours");
            }
            Taken::Existing(_) => {}
        }
        if now == ComputeMode::ExclusiveProcess {
            return Ok(());
        }
        nvml.set_compute_mode(uuid, ComputeMode::ExclusiveProcess).map_err(|e| gpu_trouble(&e))?;
        crash_point!("compute_mode.set");
        let set = nvml.compute_mode(uuid).map_err(|e| gpu_trouble(&e))?;
        if set != ComputeMode::ExclusiveProcess {
            return Err(Trouble::new(
                format!("its compute mode is {set} although EXCLUSIVE_PROCESS was set"),
                format!("nvidia-smi -i {uuid} -c EXCLUSIVE_PROCESS"),
            ));
        }
        Ok(())
    }

    /// Gives a card its old compute mode back, where we had changed it and ours still stands.
    pub(crate) fn restore_compute_mode(&self, uuid: &str) -> Result<(), Trouble> {
        let leases = self.leases();
        let Some(lease) = leases.read(uuid).map_err(|e| mps_trouble(&e))? else { return Ok(()) };
        let nvml = self.nvml()?;
        let now = nvml.compute_mode(uuid).map_err(|e| gpu_trouble(&e))?;
        if now == ComputeMode::ExclusiveProcess {
            let mode = lease.previous;
            nvml.set_compute_mode(uuid, mode).map_err(|e| gpu_trouble(&e))?;
            crash_point!("compute_mode.restored");
            log::info!(uuid, mode:% = mode; "compute mode restored");
        } else {
            log::info!(uuid, mode:% = now; "compute mode left alone: the card had lost ours");
        }
        leases.remove(uuid).map_err(|e| mps_trouble(&e))?;
        crash_point!("lease.removed");
        Ok(())
    }

    /// UUIDs of all cards whose compute mode we changed.
    pub(crate) fn leased(&self) -> Vec<String> {
        let all = match self.leases().read_all() {
            Ok(all) => all,
            Err(error) => {
                log::error!(reason = chain(&error); "leases cannot be listed");
                return Vec::new();
            }
        };
        let mut uuids = Vec::new();
        for lease in all {
            match lease {
                Ok(lease) => uuids.push(lease.uuid),
                Err(error) => {
                    log::error!(reason = chain(&error), hint = error.hint(); "lease cannot be read")
                }
            }
        }
        uuids
    }

    pub(super) fn leases(&self) -> LeaseDir {
        LeaseDir::new(self.paths.leases())
    }
}
