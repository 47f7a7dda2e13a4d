//! The card that comes and goes: `mpsgate enable`, `disable`, `mps stop` and `mps restart` are cut
//! short on it.

use std::path::Path;

use mpsgate_config::paths;

use crate::node::{THIRD, compute_mode, run, uuid, wait_for};
use crate::{Failure, Workplace};

/// The card that comes and goes.
pub(crate) struct Third<'a> {
    pub(crate) at: &'a Workplace,
    /// Whether the point needs it.
    pub(crate) is_wanted: bool,
}

impl Third<'_> {
    pub(crate) fn once(&self, command: &[&str]) -> Result<String, Failure> {
        let card = uuid(THIRD);
        let words: Vec<&str> = command.iter().copied().chain([card.as_str()]).collect();
        run("/usr/bin/mpsgate", &words)
    }

    /// The same until it works, as an operator does it whose command was cut short.
    pub(crate) fn retried(&self, command: &[&str]) -> Result<(), Failure> {
        let mut last = String::new();
        let done = wait_for("the operator's command to work", || match self.once(command) {
            Ok(_) => Ok(true),
            Err(error) => {
                last = error.to_string();
                Ok(false)
            }
        });
        done.map_err(|error| format!("{error}: {last}").into())
    }

    /// Gives the card back: nothing of mpsgate may be left at it.
    pub(crate) fn give_back(&self) -> Result<(), Failure> {
        if !self.is_wanted {
            return Ok(());
        }
        self.retried(&["disable"])?;
        let mode = compute_mode(self.at, THIRD)?;
        let lease = Path::new(paths::STATE_DIR).join("compute-mode").join(uuid(THIRD));
        let directory = Path::new(paths::MPS_DIR).join(THIRD.to_string());
        if mode != "DEFAULT" || lease.exists() || directory.exists() {
            return Err(format!(
                "the third card was given back with compute mode {mode}, lease {}, directory {}",
                lease.exists(),
                directory.exists()
            )
            .into());
        }
        Ok(())
    }
}
