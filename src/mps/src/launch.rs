//! The launcher: a process that becomes a card's control daemon, in a mount namespace of its own.
//! The units and the holder both start it (`mpsgated launch`).
//!
//! ```text
//!  daemon.lock (POSIX lock, kept over exec) ─► leave the mount namespace ─► tmpfs on pipe/ ─► exec
//! ```
//!
//! The control daemon makes files that any user of the node may write (mode 0666, whatever the
//! umask is; measured on 535 and 550). In its own namespace no user reaches them: on the node
//! `pipe` is empty, and only root can enter it. If any step fails, nothing is started.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use mpsgate_host::crash_point;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, umask};
use nix::unistd::geteuid;

use crate::error::MpsError;
use crate::file_lock::{self, lock_holder, write_lock};
use crate::kept_programs::server_over_exec;
use crate::layout::MpsDirectories;

/// The daemon and its servers keep sockets, a FIFO and a few bytes there. A process with the
/// server's uid can write to some of it, so its size is limited.
const TMPFS: &str = "mode=0711,size=4m,nr_inodes=1024";

/// Why a control daemon was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The card's directories are not as mpsgated makes them.
    #[error("the card's directories cannot be used")]
    Directories(#[source] MpsError),
    /// Another control daemon of the card lives.
    #[error("another control daemon of card {card} has {}: pid {pid}", lock.display())]
    Locked {
        /// The card's number.
        card: u32,
        /// The lock.
        lock: PathBuf,
        /// The lock's holder; 0 for a process of another pid namespace.
        pid: i32,
    },
    /// The file at the lock's path is not mpsgate's.
    #[error("{} {found}", lock.display())]
    Lock {
        /// The lock.
        lock: PathBuf,
        /// What is wrong with it, as the end of a sentence.
        found: String,
    },
    /// Something is in a directory that is empty on the node.
    #[error("{} lies where nothing may", path.display())]
    NotEmpty {
        /// Its path.
        path: PathBuf,
    },
    /// The kernel refused a step.
    #[error("cannot {action}")]
    System {
        /// The step.
        action: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl LaunchError {
    /// The remedy, as a command if possible.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Directories(error) => error.hint().unwrap_or_default(),
            Self::Locked { pid, .. } => format!("ps -fp {pid}; mpsgate status"),
            Self::Lock { lock, .. } => format!("rm {}", lock.display()),
            Self::NotEmpty { path } => format!("ls -ld {0}; rm -r {0}", path.display()),
            Self::System { .. } => {
                "it takes root with CAP_SYS_ADMIN, and a unit without RestrictNamespaces=".into()
            }
        }
    }

    fn system(action: impl Into<String>) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System { action: action.into(), source: errno.into() }
    }
}

/// Becomes `command`, a program with its arguments, as the control daemon of card number `card`,
/// with this process's environment. The card's directories are below `root`. Returns only if that
/// fails. The process must have one thread.
#[must_use]
pub fn launch(root: &Path, card: u32, command: &[OsString]) -> LaunchError {
    let (program, arguments) = match command {
        [program, arguments @ ..] => (program.as_os_str(), arguments),
        [] => (OsStr::new(""), [].as_slice()),
    };
    match prepare(root, card) {
        Ok(_lock) => {
            let _server = server_over_exec(Path::new(program));
            let action = format!("run {}", program.display());
            let source = Command::new(program).args(arguments).current_dir("/").exec();
            LaunchError::System { action, source }
        }
        Err(error) => error,
    }
}

fn prepare(root: &Path, card: u32) -> Result<File, LaunchError> {
    let dirs = MpsDirectories::new(root, card).map_err(LaunchError::Directories)?;
    let lock = take_lock(&dirs, card)?;
    crash_point!("launch.locked");
    unshare(CloneFlags::CLONE_NEWNS)
        .map_err(LaunchError::system("leave the node's mount namespace"))?;
    // Slave: later mounts and unmounts of the node arrive here, so that nothing stays mounted.
    // Nothing goes the other way: the tmpfs would appear on the node.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .map_err(LaunchError::system("part the mounts from the node's"))?;
    crash_point!("launch.parted");
    // Opened only now: an earlier descriptor would belong to the node's namespace.
    let pipe = dirs.pipe_dir();
    if let Some(path) = dirs.lies_in_pipe().map_err(LaunchError::Directories)? {
        return Err(LaunchError::NotEmpty { path });
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let action = format!("mount a tmpfs at {}", pipe.display());
    mount(Some("mpsgate"), &pipe, Some("tmpfs"), flags, Some(TMPFS))
        .map_err(LaunchError::system(action))?;
    crash_point!("launch.mounted");
    umask(Mode::from_bits_truncate(0o022));
    Ok(lock)
}

/// Takes the lock, which belongs to the process and ends with it. The program that this process
/// becomes inherits the descriptor and never closes it (measured on 535 and 550).
fn take_lock(dirs: &MpsDirectories, card: u32) -> Result<File, LaunchError> {
    let lock = dirs.daemon_lock();
    let wrong = |found: String| LaunchError::Lock { lock: lock.clone(), found };
    let file = file_lock::open(&lock).map_err(|error| {
        wrong(match error.raw_os_error() {
            Some(libc::ELOOP) => "is a symbolic link".into(),
            Some(libc::EISDIR) => "is a directory".into(),
            _ => format!("cannot be opened: {error}"),
        })
    })?;
    let found = file.metadata().map_err(|error| wrong(format!("cannot be looked at: {error}")))?;
    let own = geteuid().as_raw();
    if !found.is_file() {
        return Err(wrong("is no regular file".into()));
    }
    if found.uid() != own || found.mode() & 0o077 != 0 || found.nlink() != 1 {
        return Err(wrong(format!(
            "belongs to uid {} with mode {:04o} and {} names, it has to be uid {own}'s with 0600 and one",
            found.uid(),
            found.mode() & 0o7777,
            found.nlink()
        )));
    }
    match fcntl(&file, FcntlArg::F_SETLK(&write_lock())) {
        Ok(_) => {}
        Err(Errno::EAGAIN | Errno::EACCES) => {
            let pid = lock_holder(&lock).ok().flatten().unwrap_or_default();
            return Err(LaunchError::Locked { card, lock, pid });
        }
        Err(errno) => {
            let action = format!("lock {}", lock.display());
            return Err(LaunchError::system(action)(errno));
        }
    }
    fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty()))
        .map_err(LaunchError::system("keep the lock over exec"))?;
    Ok(file)
}
