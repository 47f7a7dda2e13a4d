//! The directories of one card below the root (usually `/run/mpsgate/mps`):
//!
//! ```text
//! <root>/<n>/              0711  traversed by the server, which runs as the clients' uid
//! <root>/<n>/pipe/         0700  empty. In the control daemon's mount namespace a tmpfs of mode 0711
//!                                lies on it: 0700 would send the server, which has the clients'
//!                                uid, into a restart loop (seen on Bottlerocket)
//! <root>/<n>/daemon.lock   0600  held by the control daemon as long as it lives
//! <root>/<n>/log/          0711  control.log, root's; traversable, because the server is started
//!                                with this path and only a GPU can show whether it opens it
//! <root>/<n>/channel.lock  0600  one command at a time, across processes
//! <root>/<n>/containers/   0700  the containers' doors, which the gate serves
//! <root>/<n>/clients/      0711  those of plain processes, and the files that tell the gate of all
//! <root>/<n>/gate.lock     0600  held by the gate as long as it lives
//! <root>/<n>/gate.sock     0600  mpsgated's, for the gate's questions
//! <root>/store.sock        0600  the supervisor's, which keeps the gates' sockets
//! ```
//!
//! All access is through directory descriptors without following links: a path that is checked and
//! then used by name could be swapped.

mod door_layout;
mod pipe;
mod repair;
mod walk;

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use mpsgate_host::door_place::Kind;
use mpsgate_host::file;
use nix::errno::Errno;
use nix::fcntl::open;
use nix::sys::stat::Mode;

pub use repair::Repair;

use self::walk::{
    DIRECTORY, Missing, check_own, entries, make_own, open_child, open_trusted, unlink,
};
use crate::error::MpsError;
use crate::file_lock::lock_holder;
use crate::log_file::LogFile;

/// `sockaddr_un.sun_path` without its final zero.
const SUN_PATH_MAX: usize = 107;

/// The directories of a card and their modes.
const PARTS: [(&str, u32); 4] = [
    ("pipe", 0o700),
    ("log", 0o711),
    (Kind::Container.directory(), Kind::Container.mode()),
    (Kind::Process.directory(), Kind::Process.mode()),
];

/// A directory of versions before doors, with a link to the control daemon's socket for all
/// containers.
const BEFORE_DOORS: &str = "client";

/// The directories of one card. Making the value touches nothing.
#[derive(Debug, Clone)]
pub struct MpsDirectories {
    base: PathBuf,
}

impl MpsDirectories {
    /// Names the directories of card number `card` below `root`.
    ///
    /// # Errors
    /// [`MpsError::NotPlainPath`] and [`MpsError::SocketPathTooLong`]: the control daemon exits
    /// without a word when a socket path does not fit (measured).
    pub fn new(root: &Path, card: u32) -> Result<Self, MpsError> {
        Self::named(root, &card.to_string())
    }

    /// The same for directories of no card; `name` is not a number.
    pub(crate) fn named(root: &Path, name: &str) -> Result<Self, MpsError> {
        let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        if !root.is_absolute() || !root.components().all(plain) {
            return Err(MpsError::NotPlainPath { path: root.to_path_buf() });
        }
        let dirs = Self { base: root.join(name) };
        // A door's path is shorter to bind: the gate uses its directory's descriptor.
        let path = dirs.pipe_dir().join("control_privileged");
        let length = path.as_os_str().len();
        if length > SUN_PATH_MAX {
            return Err(MpsError::SocketPathTooLong { path, length });
        }
        Ok(dirs)
    }

    /// The card's directory.
    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    /// The directory above all cards' directories.
    pub(crate) fn root(&self) -> &Path {
        self.base.parent().unwrap_or(&self.base)
    }

    /// The control daemon's private directory.
    #[must_use]
    pub fn pipe_dir(&self) -> PathBuf {
        self.base.join("pipe")
    }

    /// `CUDA_MPS_LOG_DIRECTORY` of the control daemon.
    #[must_use]
    pub fn log_dir(&self) -> PathBuf {
        self.base.join("log")
    }

    /// Receives the control daemon's stdout. A unit needs
    /// `StandardOutput=append:<log_dir>/control.log`.
    #[must_use]
    pub fn log_file(&self) -> LogFile {
        LogFile::new(self.log_dir().join("control.log"))
    }

    /// Serialises the control channel between processes.
    pub(crate) fn lock_path(&self) -> PathBuf {
        self.base.join("channel.lock")
    }

    /// The control daemon holds this lock for as long as it lives (POSIX lock). The launcher takes
    /// it, and the daemon that it becomes keeps it.
    pub(crate) fn daemon_lock(&self) -> PathBuf {
        self.base.join("daemon.lock")
    }

    /// Servers and the daemon write their log records into it.
    pub(crate) fn log_fifo(&self) -> PathBuf {
        self.pipe_dir().join("log")
    }

    /// Makes missing directories, checks existing ones, and removes the directory that an older
    /// mpsgate gave to all containers.
    ///
    /// # Errors
    /// [`MpsError::Planted`], [`MpsError::ForeignOwner`], [`MpsError::WritableByOthers`] or
    /// [`MpsError::Fs`], each naming the directory; [`MpsError::LeftBehind`].
    pub fn create(&self) -> Result<(), MpsError> {
        let base = open_trusted(&self.base, Missing::Make)?;
        for (name, mode) in PARTS {
            make_own(&base, &self.base.join(name), name.as_ref(), mode)?;
        }
        let mut left = Vec::new();
        self.remove_dir(BEFORE_DOORS, &mut left);
        none_left(left)
    }

    /// The path of something in the node's `pipe`, which must be empty; `None` if it is.
    ///
    /// # Errors
    /// [`MpsError::Fs`] and errors of the directories' checks.
    pub(crate) fn lies_in_pipe(&self) -> Result<Option<PathBuf>, MpsError> {
        let (pipe, path) = (self.open_dir("pipe")?, self.pipe_dir());
        let names = entries(&pipe, &path)?;
        Ok(names.first().map(|name| path.join(OsStr::from_bytes(name.to_bytes()))))
    }

    /// Removes what an older mpsgate's control daemon has left in `pipe`. Only if none lives.
    ///
    /// # Errors
    /// [`MpsError::LeftBehind`], and errors of the directories' checks.
    pub(crate) fn clear_pipe(&self) -> Result<(), MpsError> {
        let (pipe, path) = (self.open_dir("pipe")?, self.pipe_dir());
        entries(&pipe, &path)?.iter().try_for_each(|name| unlink(&pipe, name, &path))
    }

    /// Closes the card's directory to all users but root.
    ///
    /// # Errors
    /// [`MpsError::Fs`].
    pub(crate) fn shut(&self) -> Result<(), MpsError> {
        std::fs::set_permissions(&self.base, Permissions::from_mode(0o700))
            .map_err(|source| MpsError::fs("set mode of", &self.base, source))
    }

    /// Removes the card's directory and everything below it. It continues after a failure and names
    /// everything that is left. A missing directory is a success.
    ///
    /// # Errors
    /// [`MpsError::LeftBehind`].
    pub fn remove(&self) -> Result<(), MpsError> {
        let mut left = Vec::new();
        // If it is a mount point elsewhere, its removal would end that mount (measured).
        let lock = self.daemon_lock();
        if let Some(pid) = lock_holder(&lock).ok().flatten() {
            return none_left(vec![format!("{} (locked by pid {pid})", lock.display())]);
        }
        self.remove_doors(&mut left);
        for name in PARTS.map(|(name, _)| name).into_iter().chain([BEFORE_DOORS]) {
            self.remove_dir(name, &mut left);
        }
        let socket = self.gate_socket();
        for path in [lock, self.lock_path(), self.gate_lock(), file::beside(&socket), socket] {
            if let Err(error) = std::fs::remove_file(&path) {
                note(&mut left, &path, &error);
            }
        }
        if let Err(error) = std::fs::remove_dir(&self.base) {
            note(&mut left, &self.base, &error);
        }
        none_left(left)
    }

    fn remove_dir(&self, name: &str, left: &mut Vec<String>) {
        let path = self.base.join(name);
        let dir = match open(&path, DIRECTORY, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::ENOENT) => return,
            Err(errno) => return note(left, &path, &errno.into()),
        };
        match entries(&dir, &path) {
            Ok(files) => {
                for file in &files {
                    if let Err(error) = unlink(&dir, file, &path) {
                        left.push(error.to_string());
                    }
                }
            }
            Err(error) => left.push(error.to_string()),
        }
        if let Err(error) = std::fs::remove_dir(&path) {
            note(left, &path, &error);
        }
    }

    fn open_dir(&self, name: &str) -> Result<OwnedFd, MpsError> {
        let path = self.base.join(name);
        let base = open_trusted(&self.base, Missing::Fail)?;
        let dir = open_child(&base, &path, name.as_ref())?;
        check_own(&dir, &path)?;
        Ok(dir)
    }
}

fn none_left(left: Vec<String>) -> Result<(), MpsError> {
    if left.is_empty() { Ok(()) } else { Err(MpsError::LeftBehind { paths: left }) }
}

fn note(left: &mut Vec<String>, path: &Path, error: &std::io::Error) {
    if error.kind() != std::io::ErrorKind::NotFound {
        left.push(format!("{} ({error})", path.display()));
    }
}
