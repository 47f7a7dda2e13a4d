//! The doors of grants: mpsgated makes a container's directory and tells the gate of it by a file,
//! and the gate makes the socket.
//!
//! ```text
//!  reserve ──► directory, file ──► the gate's socket is waited for ──► answer
//!  activate ─► file, with the container's cgroup: now its clients are served
//!  end ──────► file, directory removed
//! ```

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_host::door_place::Kind;
use mpsgate_model::Grant;
use mpsgate_model::door_file::Container;
use mpsgate_model::ledger::Ledger;
use mpsgate_mps::MpsDirectories;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::error::chain;
use crate::{DaemonError, Paths, process_end};

/// Between two looks for a socket where the kernel does not tell of it, and where it does.
const LOOK: Duration = Duration::from_millis(1);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A grant's door.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    dirs: MpsDirectories,
    kind: Kind,
    name: String,
}

impl Door {
    /// `None` where the grant has none.
    pub(crate) fn of(paths: &Paths, grant: &Grant) -> Option<Self> {
        let (kind, card) = (grant.door()?, grant.cards.first()?);
        let dirs = directories(paths, card.minor)?;
        Some(Self { dirs, kind, name: grant.key.instance.as_str().to_owned() })
    }

    /// Tells the gate of the container. Blocks.
    ///
    /// # Errors
    /// Why it cannot be told.
    pub(crate) fn tell(&self, container: &Container) -> Result<(), String> {
        let bytes = container.write().map_err(|error| error.to_string())?;
        self.dirs.put_door(self.kind, &self.name, &bytes).map_err(|error| chain(&error))
    }

    /// Returns once clients can connect.
    pub(crate) async fn opened(&self, sockets: &Sockets) {
        let mut seen = sockets.watch(&self.dirs.door_dir(self.kind, &self.name));
        while !self.dirs.is_open_door(self.kind, &self.name) {
            match &mut seen {
                Some(seen) => drop(timeout(LOOK_AGAIN, seen.changed()).await),
                None => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// One that cannot be closed now is at the next start. Blocks.
    pub(crate) fn close(&self) {
        close(&self.dirs, &self.name);
    }
}

fn close(dirs: &MpsDirectories, name: &str) {
    if let Err(error) = dirs.remove_door(name) {
        let reason = chain(&error);
        log::warn!(instance = name, reason = reason.as_str(); "a door cannot be removed");
    }
}

/// Closes the doors of grants that ended while mpsgated was away. Blocks.
pub(crate) fn remove_strays(paths: &Paths, ledger: &Ledger) {
    let Ok(cards) = std::fs::read_dir(paths.mps()) else { return };
    let cards = cards.flatten().filter_map(|card| card.file_name().to_str()?.parse().ok());
    for dirs in cards.filter_map(|card| directories(paths, card)) {
        for name in dirs.doors().unwrap_or_default() {
            let is_its = |grant: &Grant| {
                grant
                    .door()
                    .is_some_and(|kind| dirs.door_dir(kind, &name) == Path::new(&grant.client_dir))
            };
            if !ledger.entries().iter().any(|entry| is_its(&entry.grant)) {
                log::info!(instance = name.as_str(); "door without a grant is removed");
                close(&dirs, &name);
            }
        }
    }
}

/// Tells when gates give a socket its name. One instance of inotify for all doors and for good: the
/// kernel takes some 10 ms to close one (measured).
#[derive(Debug)]
pub(crate) struct Sockets {
    /// `None` where the node has none to spare: each user may have 128 by default.
    inotify: Option<AsyncFd<OwnedFd>>,
    shown: watch::Sender<()>,
}

impl Sockets {
    pub(crate) fn new() -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let inotify = inotify.map_err(std::io::Error::from).and_then(process_end::register);
        if let Err(error) = &inotify {
            log::warn!(reason:% = error; "doors are looked for by the clock");
        }
        Self { inotify: inotify.ok(), shown: watch::Sender::new(()) }
    }

    /// Changes when one is shown, in this directory or another. `None` where the kernel does not
    /// tell.
    fn watch(&self, directory: &Path) -> Option<watch::Receiver<()>> {
        let seen = self.shown.subscribe();
        // The watch goes with the event.
        let wanted = WatchFlags::MOVED_TO | WatchFlags::ONLYDIR | WatchFlags::ONESHOT;
        inotify::add_watch(self.inotify.as_ref()?, directory, wanted).ok()?;
        Some(seen)
    }
}

/// Passes on what the kernel tells.
pub(crate) async fn tell(sockets: Arc<Sockets>) -> Result<(), DaemonError> {
    let Some(inotify) = &sockets.inotify else { return Ok(()) };
    // Each waits for a directory of its own, and looks there.
    let mut events = [0; 4096];
    while let Ok(mut ready) = inotify.readable().await {
        while rustix::io::read(inotify, &mut events).is_ok_and(|read| read > 0) {}
        ready.clear_ready();
        sockets.shown.send_replace(());
    }
    Ok(())
}

fn directories(paths: &Paths, minor: u32) -> Option<MpsDirectories> {
    MpsDirectories::new(&paths.mps(), minor).ok()
}
