//! One card's control daemon: with which program, directories and settings it runs.
//!
//! It is found in `find.rs`, started in `start.rs`, and `state.rs` says how it is.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::channel::Channel;
use crate::error::MpsError;
use crate::layout::MpsDirectories;
use crate::process::Process;
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

/// A control daemon whose program, owner and directory were checked.
#[derive(Debug)]
pub struct ControlDaemon {
    /// The daemon's process.
    pub process: Process,
    /// Its program was replaced on disk since it was started, as an upgrade of the driver does. It
    /// is ours all the same, with all its clients.
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

    /// Starts it with one root server for all uids; only where [`crate::Capabilities`] says so.
    #[must_use]
    pub fn with_multiuser(mut self, multiuser: bool) -> Self {
        self.multiuser = multiuser;
        self
    }

    /// Knows what a holder with that directory started, whose `/` is not ours.
    #[must_use]
    pub fn with_holder(mut self, dir: PathBuf) -> Self {
        self.hold_dir = Some(dir);
        self
    }

    /// Whose `/` a control daemon or server of ours can have: ours, or the holder's.
    pub(crate) fn trusted_roots(&self) -> Vec<Root> {
        let holders = self.hold_dir.as_deref().and_then(Root::of_holder);
        Root::of(Path::new("/proc/self")).into_iter().chain(holders).collect()
    }

    /// Is one that no launcher starts, for a moment.
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

    /// The card's number on this node: names directory and unit.
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

    /// The directory in which the control daemon that lives has its sockets, as a descriptor: no
    /// path leads there. `None` where none lives.
    ///
    /// # Errors
    /// [`MpsError::Lost`], [`MpsError::Fs`].
    pub fn pipe(&self) -> Result<Option<OwnedFd>, MpsError> {
        self.dirs.open_pipe()
    }

    /// What the daemon is started with.
    pub(crate) fn arguments(&self) -> &'static [&'static str] {
        if self.multiuser { &["-f", "-multiuser-server"] } else { &["-f"] }
    }

    /// What the daemon finds in its environment. The server program is searched in PATH, not
    /// beside the daemon (measured), so its directory comes first. Without a UUID it may see every
    /// card: from 580 on it ends at once where the variable is empty or names no card (measured on
    /// 580.159.04, on an H200).
    pub(crate) fn environment(&self) -> Vec<(&'static str, std::ffi::OsString)> {
        let mut path =
            self.binary.parent().unwrap_or_else(|| Path::new("/usr/bin")).as_os_str().to_owned();
        path.push(":");
        path.push(crate::run::FIXED_PATH);
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
