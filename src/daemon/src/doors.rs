//! The doors of grants: mpsgated makes a container's directory and tells the gate of it by a file,
//! and the gate makes the socket.
//!
//! ```text
//!  reserve ──► directory, file ──► the gate's socket is waited for ──► answer
//!  activate ─► file, with the container's cgroup: now its clients are served
//!  end ──────► file, directory removed
//! ```

use std::path::Path;

use mpsgate_model::Grant;
use mpsgate_model::door::Container;
use mpsgate_model::ledger::Ledger;
use mpsgate_mps::{ClientLinks, MpsDirectories};

use crate::Paths;
use crate::error::chain;

/// A grant's door.
#[derive(Debug)]
pub(crate) struct Door<'a> {
    dirs: MpsDirectories,
    name: &'a str,
}

impl<'a> Door<'a> {
    /// `None` where the grant has none.
    pub(crate) fn of(paths: &Paths, grant: &'a Grant) -> Option<Self> {
        let card = grant.cards.first().filter(|_| grant.has_door())?;
        Some(Self { dirs: directories(paths, card.minor)?, name: grant.key.instance.as_str() })
    }

    /// Tells the gate of the container.
    ///
    /// # Errors
    /// Why it cannot be told.
    pub(crate) fn tell(&self, container: &Container) -> Result<(), String> {
        let bytes = container.write().map_err(|error| error.to_string())?;
        self.dirs.put_door(self.name, &bytes).map_err(|error| chain(&error))
    }

    /// Whether clients can connect.
    pub(crate) fn is_open(&self) -> bool {
        self.dirs.is_open_door(self.name)
    }

    /// One that cannot be closed now is at the next start.
    pub(crate) fn close(&self) {
        if let Err(error) = self.dirs.remove_door(self.name) {
            let reason = chain(&error);
            log::warn!(instance = self.name, reason = reason.as_str(); "a door cannot be removed");
        }
    }
}

/// Where a card's gate says what is wrong with it.
pub(crate) fn where_to_look(minor: u32) -> String {
    format!(
        "systemctl status mpsgate-gate@{minor}; journalctl -u mpsgate-gate@{minor} -n 50; under \
         Kubernetes kubectl logs -c gate of mpsgated's pod; without either \
         /run/mpsgate/mps/{minor}/log/gate.log"
    )
}

/// Closes the doors of grants that ended while mpsgated was away.
pub(crate) fn remove_strays(paths: &Paths, ledger: &Ledger) {
    let Ok(cards) = std::fs::read_dir(paths.mps()) else { return };
    let cards = cards.flatten().filter_map(|card| card.file_name().to_str()?.parse().ok());
    for dirs in cards.filter_map(|card| directories(paths, card)) {
        for name in dirs.doors().unwrap_or_default() {
            let path = dirs.door_dir(&name);
            let is_its = |grant: &Grant| grant.has_door() && path == Path::new(&grant.client_dir);
            if !ledger.entries().iter().any(|entry| is_its(&entry.grant)) {
                log::info!(instance = name.as_str(); "door without a grant is removed");
                Door { dirs: dirs.clone(), name: &name }.close();
            }
        }
    }
}

fn directories(paths: &Paths, minor: u32) -> Option<MpsDirectories> {
    MpsDirectories::new(&paths.mps(), minor, ClientLinks::ControlOnly).ok()
}
