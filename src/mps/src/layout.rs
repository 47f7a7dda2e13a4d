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
//! ```
//!
//! Through `client` even uid 0 can ask but neither set nor quit (measured on 550; 535 does not
//! protect its settings at all, see [`crate::Capabilities`]). Everything goes through directory
//! descriptors without following links: a path checked and then used by name could be swapped.

mod repair;

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use mpsgate_host::crash_point;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, linkat, unlinkat};

pub use repair::Repair;

use crate::error::MpsError;
use crate::log_file::LogFile;

/// `sockaddr_un.sun_path` without its final zero.
const SUN_PATH_MAX: usize = 107;
const DIRECTORY: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// The directories of a card and their modes.
const PARTS: [(&str, u32); 3] = [("pipe", 0o711), ("client", 0o755), ("log", 0o711)];

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
pub struct CardDirs {
    base: PathBuf,
    links: ClientLinks,
}

impl CardDirs {
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
        for name in ["client", "pipe", "log"] {
            self.remove_dir(name, &mut left);
        }
        if let Err(error) = std::fs::remove_file(self.lock_path()) {
            note(&mut left, &self.lock_path(), &error);
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

/// What a walk does where a directory is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// Makes it with mode 0711.
    Make,
    /// Says so.
    Fail,
}

/// Walks from `/` to `path`. No component may be a link, or be open to strangers: who can rename a
/// parent owns all below it.
fn open_trusted(path: &Path, missing: Missing) -> Result<OwnedFd, MpsError> {
    let mut at = PathBuf::from("/");
    let mut dir =
        open(&at, DIRECTORY, Mode::empty()).map_err(|errno| MpsError::fs("open", &at, errno))?;
    let names: Vec<_> = path.iter().skip(1).collect();
    for (depth, name) in names.iter().enumerate() {
        at.push(name);
        let last = depth + 1 == names.len();
        dir = match missing {
            Missing::Make if last => make_own(&dir, &at, name, 0o711)?,
            _ => pass_through(&dir, &at, name, missing)?,
        };
        if last {
            check_own(&dir, &at)?;
        }
    }
    Ok(dir)
}

fn pass_through(
    parent: &OwnedFd,
    path: &Path,
    name: &OsStr,
    missing: Missing,
) -> Result<OwnedFd, MpsError> {
    let made = missing == Missing::Make && make_dir(parent, path, name)?;
    let dir = open_child(parent, path, name)?;
    if made {
        fchmod(&dir, Mode::from_bits_truncate(0o711))
            .map_err(|errno| MpsError::fs("set mode of", path, errno))?;
    }
    let stat = fstat(&dir).map_err(|errno| MpsError::fs("look at", path, errno))?;
    if stat.st_uid != 0 && stat.st_uid != geteuid().as_raw() {
        return Err(MpsError::ForeignOwner { path: path.into(), found: stat.st_uid, expected: 0 });
    }
    let sticky = stat.st_mode & 0o1000 != 0;
    if stat.st_mode & 0o022 != 0 && !sticky {
        return Err(MpsError::WritableByOthers { path: path.into(), mode: stat.st_mode & 0o7777 });
    }
    Ok(dir)
}

/// Makes or takes a directory that must be ours, with exactly this mode.
fn make_own(parent: &OwnedFd, path: &Path, name: &OsStr, mode: u32) -> Result<OwnedFd, MpsError> {
    let made = make_dir(parent, path, name)?;
    let dir = open_child(parent, path, name)?;
    let found = check_own(&dir, path)?;
    if made || found != mode {
        // The umask may have taken bits away from a new one; an old one may be stricter or looser.
        fchmod(&dir, Mode::from_bits_truncate(mode))
            .map_err(|errno| MpsError::fs("set mode of", path, errno))?;
    }
    Ok(dir)
}

fn make_dir(parent: &OwnedFd, path: &Path, name: &OsStr) -> Result<bool, MpsError> {
    match mkdirat(parent, name, Mode::S_IRWXU) {
        Ok(()) => Ok(true),
        Err(Errno::EEXIST) => Ok(false),
        Err(errno) => Err(MpsError::fs("create directory", path, errno)),
    }
}

fn open_child(parent: &OwnedFd, path: &Path, name: &OsStr) -> Result<OwnedFd, MpsError> {
    openat(parent, name, DIRECTORY, Mode::empty())
        .map_err(|errno| not_a_directory(path, parent, Path::new(name), errno))
}

/// Tells a planted file or link from other failures to open a directory.
fn not_a_directory(
    path: &Path,
    parent: impl std::os::fd::AsFd,
    name: &Path,
    errno: Errno,
) -> MpsError {
    if matches!(errno, Errno::ELOOP | Errno::ENOTDIR)
        && let Ok(stat) = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)
    {
        return MpsError::Planted { path: path.into(), found: words(&stat) };
    }
    MpsError::fs("open directory", path, errno)
}

fn words(stat: &FileStat) -> &'static str {
    match kind(stat) {
        SFlag::S_IFLNK => "a symbolic link",
        SFlag::S_IFREG => "a regular file",
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFSOCK => "a socket",
        SFlag::S_IFIFO => "a FIFO",
        _ => "something else",
    }
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

/// The directory's mode, once owner and mode have passed.
fn check_own(dir: &OwnedFd, path: &Path) -> Result<u32, MpsError> {
    let stat = fstat(dir).map_err(|errno| MpsError::fs("look at", path, errno))?;
    let expected = geteuid().as_raw();
    if stat.st_uid != expected {
        return Err(MpsError::ForeignOwner { path: path.into(), found: stat.st_uid, expected });
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o022 != 0 {
        return Err(MpsError::WritableByOthers { path: path.into(), mode });
    }
    Ok(mode)
}

fn lstat(dir: &OwnedFd, name: &str) -> Result<Option<FileStat>, Errno> {
    match fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
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

/// Names in a directory, sorted.
fn entries(dir: &OwnedFd, path: &Path) -> Result<BTreeSet<CString>, MpsError> {
    let again = openat(dir, ".", DIRECTORY, Mode::empty())
        .map_err(|errno| MpsError::fs("read directory", path, errno))?;
    let mut listing =
        Dir::from_fd(again).map_err(|errno| MpsError::fs("read directory", path, errno))?;
    let mut names = BTreeSet::new();
    for entry in listing.iter() {
        let entry = entry.map_err(|errno| MpsError::fs("read directory", path, errno))?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.insert(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

fn unlink(dir: &OwnedFd, name: &CString, parent: &Path) -> Result<(), MpsError> {
    unlinkat(dir, name.as_c_str(), UnlinkatFlags::NoRemoveDir).map_err(|errno| {
        MpsError::fs("remove", parent.join(OsStr::from_bytes(name.to_bytes())), errno)
    })
}
