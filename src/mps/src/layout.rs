//! The directories of one card below the root (usually `/run/mpsgate/mps`):
//!
//! ```text
//! <root>/<n>/              0711  traversed by the server, which runs as the clients' uid
//! <root>/<n>/pipe/         0711  private: the control daemon's own; never mounted anywhere. 0700
//!                                would send the server into a restart loop (seen on Bottlerocket)
//! <root>/<n>/client/       0755  what containers get, read-only: a hard link to `control`
//! <root>/<n>/log/          0711  control.log, root's; traversable, because the server is started
//!                                with this path and only a GPU can show whether it opens it
//! <root>/<n>/channel.lock  0600  one command at a time, across processes
//! <root>/<n>/clients/      0711  the containers' own directories, which the gate serves
//! <root>/<n>/gate.lock     0600  held by the gate as long as it lives
//! <root>/<n>/gate.sock     0600  mpsgated's, for the gate's questions
//! <root>/store.sock        0600  the supervisor's, which keeps the gates' sockets
//! ```
//!
//! Through `client` even uid 0 can ask but neither set nor quit (measured on 550; 535 does not
//! protect its settings at all, see [`crate::Capabilities`]). Everything goes through directory
//! descriptors without following links: a path checked and then used by name could be swapped.

mod doors;
mod repair;
mod walk;

use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use mpsgate_host::{crash_point, file};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, open, renameat};
use nix::sys::stat::{Mode, SFlag};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

pub use repair::Repair;

use self::walk::{
    DIRECTORY, Missing, check_own, entries, kind, lstat, make_own, open_child, open_trusted, unlink,
};
use crate::error::MpsError;
use crate::log_file::LogFile;

/// `sockaddr_un.sun_path` without its final zero.
const SUN_PATH_MAX: usize = 107;

/// The directories of a card and their modes.
const PARTS: [(&str, u32); 4] =
    [("pipe", 0o711), ("client", 0o755), ("log", 0o711), (doors::CLIENTS, 0o711)];

/// What the containers' directory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientLinks {
    /// `control` and the FIFO `log`. Whoever can open the FIFO (a read-only mount does not hinder
    /// that) writes lines of whatever process into the daemon's log, ends its logging with one
    /// malformed record, and fills it until the daemon blocks (measured, see
    /// [`crate::WedgeCause::LogBlocked`]).
    ControlAndLog,
    /// `control` alone: a CUDA client finds its control daemon with it (libcuda 550, measured).
    #[default]
    ControlOnly,
}

impl ClientLinks {
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::ControlAndLog => &["control", "log"],
            Self::ControlOnly => &["control"],
        }
    }
}

/// The directories of one card. Making the value touches nothing.
#[derive(Debug, Clone)]
pub struct MpsDirectories {
    base: PathBuf,
    links: ClientLinks,
}

impl MpsDirectories {
    /// Names the directories of card number `card` below `root`.
    ///
    /// # Errors
    /// [`MpsError::NotPlainPath`] and [`MpsError::SocketPathTooLong`]: the control daemon exits
    /// without a word when a socket path does not fit (measured).
    pub fn new(root: &Path, card: u32, links: ClientLinks) -> Result<Self, MpsError> {
        Self::named(root, &card.to_string(), links)
    }

    /// The same for directories that belong to no card; `name` is no number.
    pub(crate) fn named(root: &Path, name: &str, links: ClientLinks) -> Result<Self, MpsError> {
        let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        if !root.is_absolute() || !root.components().all(plain) {
            return Err(MpsError::NotPlainPath { path: root.to_path_buf() });
        }
        let dirs = Self { base: root.join(name), links };
        // Not of a door: the gate binds it by its directory's descriptor.
        let longest =
            [dirs.pipe_dir().join("control_privileged"), dirs.client_dir().join("control")];
        for path in longest {
            let length = path.as_os_str().len();
            if length > SUN_PATH_MAX {
                return Err(MpsError::SocketPathTooLong { path, length });
            }
        }
        Ok(dirs)
    }

    /// The directory of all cards'.
    pub(crate) fn root(&self) -> &Path {
        self.base.parent().unwrap_or(&self.base)
    }

    /// The control daemon's private directory.
    #[must_use]
    pub fn pipe_dir(&self) -> PathBuf {
        self.base.join("pipe")
    }

    /// The directory that containers get, read-only.
    #[must_use]
    pub fn client_dir(&self) -> PathBuf {
        self.base.join("client")
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

    /// Locked by the control daemon for as long as it lives (POSIX lock, measured).
    pub(crate) fn control_lock(&self) -> PathBuf {
        self.pipe_dir().join("control_lock")
    }

    /// Servers and the daemon write their log records into it.
    pub(crate) fn log_fifo(&self) -> PathBuf {
        self.pipe_dir().join("log")
    }

    /// Written by 550, not by 535; anybody may overwrite it (measured).
    pub(crate) fn pid_file(&self) -> PathBuf {
        self.pipe_dir().join("nvidia-cuda-mps-control.pid")
    }

    /// Makes what is missing and checks what is there.
    ///
    /// # Errors
    /// [`MpsError::Planted`], [`MpsError::ForeignOwner`], [`MpsError::WritableByOthers`] or
    /// [`MpsError::Fs`], each naming the directory.
    pub fn create(&self) -> Result<(), MpsError> {
        let base = open_trusted(&self.base, Missing::Make)?;
        for (name, mode) in PARTS {
            make_own(&base, &self.base.join(name), name.as_ref(), mode)?;
        }
        Ok(())
    }

    /// Whether the containers' links lead to the running control daemon.
    ///
    /// # Errors
    /// [`MpsError::Fs`] and what the directories' checks say.
    pub fn links_current(&self) -> Result<bool, MpsError> {
        let (pipe, client) = (self.open_dir("pipe")?, self.open_dir("client")?);
        for name in self.links.names() {
            let own = lstat(&pipe, name)
                .map_err(|errno| MpsError::fs("look at", self.pipe_dir().join(name), errno))?;
            let given = lstat(&client, name)
                .map_err(|errno| MpsError::fs("look at", self.client_dir().join(name), errno))?;
            let (Some(own), Some(given)) = (own, given) else { return Ok(false) };
            if (own.st_dev, own.st_ino) != (given.st_dev, given.st_ino) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Points the containers' links at the present control daemon, each by one rename, and removes
    /// what does not belong there. Call it when limits and server are in place: from here on
    /// containers that still have the directory mounted can attach.
    ///
    /// # Errors
    /// [`MpsError::NothingToLink`], [`MpsError::Fs`] and what the directories' checks say.
    pub fn renew_links(&self) -> Result<(), MpsError> {
        let (pipe, client) = (self.open_dir("pipe")?, self.open_dir("client")?);
        for name in self.links.names() {
            renew_link(
                &pipe,
                &client,
                name,
                &self.pipe_dir().join(name),
                &self.client_dir().join(name),
            )?;
        }
        for name in entries(&client, &self.client_dir())? {
            if !self.links.names().iter().any(|link| link.as_bytes() == name.as_bytes()) {
                unlink(&client, &name, &self.client_dir())?;
            }
        }
        Ok(())
    }

    /// Takes the links away, so that no container can attach until [`Self::renew_links`].
    ///
    /// # Errors
    /// [`MpsError::Fs`] and what the directories' checks say.
    pub fn remove_links(&self) -> Result<(), MpsError> {
        let client = self.open_dir("client")?;
        entries(&client, &self.client_dir())?
            .iter()
            .try_for_each(|name| unlink(&client, name, &self.client_dir()))
    }

    /// Removes everything below and including the card's directory. Clean-up: goes on after a
    /// failure and names all that is left. Nothing there is success.
    ///
    /// # Errors
    /// [`MpsError::LeftBehind`].
    pub fn remove(&self) -> Result<(), MpsError> {
        let mut left = Vec::new();
        self.remove_doors(&mut left);
        for name in ["client", "pipe", "log", doors::CLIENTS] {
            self.remove_dir(name, &mut left);
        }
        let socket = self.gate_socket();
        for path in [self.lock_path(), self.gate_lock(), file::beside(&socket), socket] {
            if let Err(error) = std::fs::remove_file(&path) {
                note(&mut left, &path, &error);
            }
        }
        if let Err(error) = std::fs::remove_dir(&self.base) {
            note(&mut left, &self.base, &error);
        }
        if left.is_empty() { Ok(()) } else { Err(MpsError::LeftBehind { paths: left }) }
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

fn note(left: &mut Vec<String>, path: &Path, error: &std::io::Error) {
    if error.kind() != std::io::ErrorKind::NotFound {
        left.push(format!("{} ({error})", path.display()));
    }
}

fn renew_link(
    pipe: &OwnedFd,
    client: &OwnedFd,
    name: &str,
    own: &Path,
    given: &Path,
) -> Result<(), MpsError> {
    let source = lstat(pipe, name)
        .map_err(|errno| MpsError::fs("look at", own, errno))?
        .filter(|stat| matches!(kind(stat), SFlag::S_IFSOCK | SFlag::S_IFIFO))
        .ok_or_else(|| MpsError::NothingToLink { path: own.into() })?;
    let present = lstat(client, name).map_err(|errno| MpsError::fs("look at", given, errno))?;
    // rename(2) between two links to one inode does nothing and would leave the temporary name.
    if present.is_some_and(|stat| (stat.st_dev, stat.st_ino) == (source.st_dev, source.st_ino)) {
        return Ok(());
    }
    let temporary = format!(".{name}.new");
    match unlinkat(client, temporary.as_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(MpsError::fs("remove", given.with_file_name(&temporary), errno)),
    }
    linkat(pipe, name, client, temporary.as_str(), AtFlags::empty())
        .and_then(|()| {
            crash_point!("mps.links.temporary");
            renameat(client, temporary.as_str(), client, name)
        })
        .map_err(|errno| MpsError::fs("link", given, errno))?;
    crash_point!("mps.links.renamed");
    Ok(())
}
