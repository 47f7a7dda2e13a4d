//! One card's control daemon: its program, directories and settings.
//!
//! `find.rs` finds it, `start.rs` starts it, and `mps_state.rs` reads its state.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::channel::Channel;
use crate::error::MpsError;
use crate::layout::MpsDirectories;
use crate::mps_process::Process;
use crate::root::Root;

/// The control daemon of one card, running or not.
#[derive(Debug)]
pub struct MpsInstance {
    card: u32,
    uuid: String,
    binary: PathBuf,
    multiuser: bool,
    hold_dir: Option<PathBuf>,
    dirs: MpsDirectories,
    channel: Channel,
}

/// A control daemon with a checked program, owner and directory.
#[derive(Debug)]
pub struct ControlDaemon {
    /// The daemon's process.
    pub process: Process,
    /// Its program was replaced on disk since it was started, as an upgrade of the driver does. It
    /// is still the card's daemon, with all its clients.
    pub replaced: bool,
}

impl MpsInstance {
    /// Describes the daemon of card number `card`, run from `binary`. Touches nothing.
    #[must_use]
    pub fn new(
        card: u32,
        uuid: impl Into<String>,
        binary: impl Into<PathBuf>,
        dirs: MpsDirectories,
    ) -> Self {
        let binary = binary.into();
        let channel = Channel::new(&binary, &dirs);
        Self { card, uuid: uuid.into(), binary, multiuser: false, hold_dir: None, dirs, channel }
    }

    /// Starts it with one root server for all uids; only if [`crate::Capabilities`] allows that.
    #[must_use]
    pub fn with_multiuser(mut self, multiuser: bool) -> Self {
        self.multiuser = multiuser;
        self
    }

    /// Accepts processes that a holder with that directory started, with its own `/`.
    #[must_use]
    pub fn with_holder(mut self, dir: PathBuf) -> Self {
        self.hold_dir = Some(dir);
        self
    }

    /// The `/` of control daemons and servers: this process's, or the holder's.
    pub(crate) fn trusted_roots(&self) -> Vec<Root> {
        let holders = self.hold_dir.as_deref().and_then(Root::of_holder);
        Root::of(Path::new("/proc/self")).into_iter().chain(holders).collect()
    }

    /// A daemon that no launcher starts, for a moment.
    pub(crate) fn in_plain_sight(mut self) -> Self {
        self.channel = self.channel.in_plain_sight();
        self
    }

    /// Changes the channel's time limit from its 3 s.
    #[must_use]
    pub fn with_channel_timeout(mut self, timeout: Duration) -> Self {
        self.channel = self.channel.with_timeout(timeout);
        self
    }

    /// The card's number on this node, in the names of directory and unit.
    #[must_use]
    pub fn card(&self) -> u32 {
        self.card
    }

    /// The card's UUID: becomes `CUDA_VISIBLE_DEVICES`, so the card is device 0.
    #[must_use]
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// The control program.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Whether one server serves all uids.
    #[must_use]
    pub fn is_multiuser(&self) -> bool {
        self.multiuser
    }

    /// The card's directories.
    #[must_use]
    pub fn dirs(&self) -> &MpsDirectories {
        &self.dirs
    }

    /// The card's control channel.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// A descriptor of the directory in which the running control daemon has its sockets: no path
    /// leads there. `None` if none runs.
    ///
    /// # Errors
    /// [`MpsError::Lost`], [`MpsError::Fs`].
    pub fn pipe(&self) -> Result<Option<OwnedFd>, MpsError> {
        self.dirs.open_pipe()
    }

    /// The daemon's arguments.
    pub(crate) fn arguments(&self) -> &'static [&'static str] {
        if self.multiuser { &["-f", "-multiuser-server"] } else { &["-f"] }
    }

    /// The daemon's environment. The server program is searched in PATH, not beside the daemon
    /// (measured), so its directory comes first. Without a UUID it may see every card: from 580 on
    /// it ends at once if the variable is empty or names no card (measured on 580.159.04, on an
    /// H200).
    pub(crate) fn environment(&self) -> Vec<(&'static str, std::ffi::OsString)> {
        let mut path =
            self.binary.parent().unwrap_or_else(|| Path::new("/usr/bin")).as_os_str().to_owned();
        path.push(":");
        path.push(crate::subprocess::FIXED_PATH);
        let mut environment = vec![
            ("PATH", path),
            ("CUDA_MPS_PIPE_DIRECTORY", self.dirs.pipe_dir().into()),
            ("CUDA_MPS_LOG_DIRECTORY", self.dirs.log_dir().into()),
        ];
        if !self.uuid.is_empty() {
            environment.push(("CUDA_VISIBLE_DEVICES", self.uuid.clone().into()));
        }
        environment
    }
}
