//! Finds out what the installed control program can do, by running it for a moment in a directory
//! of its own. Versions do not show that: distributions patch and rename them.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::error::MpsError;
use crate::instance::MpsInstance;
use crate::layout::MpsDirectories;
use crate::mps_process::POLL;
use crate::protocol::Command as Mps;

/// The program answers or ends within milliseconds; from 580 on it looks at every card first (110
/// ms for one H200, seconds for eight that no persistence mode keeps awake).
const LIMIT: Duration = Duration::from_secs(30);

/// What one version of `nvidia-cuda-mps-control` offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Accepts `-multiuser-server`: one server for all uids (not 535, 550).
    pub multiuser: bool,
    /// Knows `get_server_status` (not 535).
    pub server_status: bool,
}

/// A running probe. Dropping it ends the daemon and removes its directories.
struct Probe {
    child: Child,
    card: MpsInstance,
}

impl Drop for Probe {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Err(error) = self.card.dirs().remove() {
            log::warn!(error:% = error; "probe left files");
        }
    }
}

impl Capabilities {
    /// Runs `binary` below `scratch` (an existing directory) and leaves nothing there.
    ///
    /// # Errors
    /// [`MpsError::Run`], [`MpsError::StartFailed`] when it does not run at all, and errors of
    /// directories and channel.
    pub fn probe(binary: &Path, scratch: &Path) -> Result<Self, MpsError> {
        let multiuser = Probe::start(binary, scratch, true)?.is_some();
        let plain = Probe::start(binary, scratch, false)?;
        let Some(probe) = plain else {
            let reason = format!("{} -f ended at once", binary.display());
            return Err(MpsError::StartFailed { card: 0, reason, tail: String::new() });
        };
        let server_status = !matches!(
            probe.card.channel().ask(&Mps::GetServerStatus(1)),
            Err(MpsError::UnknownCommand { .. })
        );
        Ok(Self { multiuser, server_status })
    }
}

/// A directory for each probe. In a shared one a program that ends at once over its option would
/// seem to serve, because another probe's daemon answers. The name is never a number, which would
/// be the name of a card (in a container this pid is 1).
fn own_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("probe-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

impl Probe {
    /// `None` if the program ends instead of serving: its text for an unknown option is the same as
    /// for a missing daemon.
    fn start(binary: &Path, scratch: &Path, multiuser: bool) -> Result<Option<Self>, MpsError> {
        let dirs = MpsDirectories::named(scratch, &own_name())?;
        let card = MpsInstance::new(0, "", binary, dirs).with_multiuser(multiuser).in_plain_sight();
        card.dirs().create()?;
        // It has no mount namespace of its own, and makes files that any user may write.
        card.dirs().shut()?;
        let child = Command::new(binary)
            .args(card.arguments())
            .env_clear()
            .envs(card.environment())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(source) => {
                card.dirs().remove()?;
                return Err(MpsError::Run { program: binary.into(), source });
            }
        };
        let mut probe = Self { child, card };
        let deadline = Instant::now() + LIMIT;
        loop {
            let ended = probe
                .child
                .try_wait()
                .map_err(|source| MpsError::Run { program: binary.into(), source })?;
            match probe.card.channel().server_list() {
                _ if ended.is_some() => return Ok(None),
                Ok(_) => return Ok(Some(probe)),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => std::thread::sleep(POLL),
            }
        }
    }
}
