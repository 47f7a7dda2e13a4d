//! A directory of kubelet: its owner, the sockets in it, and changes of these.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::SocketError;

/// The identity of a socket, different for a later one of the same name. Inode numbers are reused;
/// together with the time of creation they are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

/// The socket of that name. `None` where there is none.
///
/// # Errors
/// If it cannot be read, or is something else.
pub fn socket(path: &Path) -> Result<Option<Stamp>, SocketError> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(SocketError::File { action: "look at", path: path.to_owned(), source });
        }
    };
    if !found.file_type().is_socket() {
        return Err(SocketError::NotASocket { path: path.to_owned() });
    }
    let changed = (found.ctime(), found.ctime_nsec());
    Ok(Some(Stamp { device: found.dev(), inode: found.ino(), changed }))
}

/// Checks that only root can put something there: then no link in it leads where another user
/// wants. `/var/lib/kubelet` itself may be a link, because root made it.
///
/// # Errors
/// If others than root can.
pub fn check(directory: &Path) -> Result<(), SocketError> {
    let failed =
        |source| SocketError::File { action: "look at", path: directory.to_owned(), source };
    let found = std::fs::metadata(directory).map_err(failed)?;
    if !found.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if !is_root(owner) || mode & 0o022 != 0 {
        return Err(SocketError::NotRoots { path: directory.to_owned(), owner, mode });
    }
    Ok(())
}

/// Root, or in tests the user who runs them.
#[must_use]
pub fn is_root(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

// JUSTIFICATION (1 block): tokio 1.54 has no safe way to wait for a descriptor that the caller
// owns; its older, safe one is deprecated.
#[expect(unsafe_code, reason = "see the justification above")]
fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open, always gives the same number, and is moved into the `AsyncFd`,
    // which never hands it out for writing.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// Waits for files in some directories to appear or disappear. If inotify fails, the caller's limit
/// makes it a poll.
#[derive(Debug)]
pub struct Changes {
    directories: Vec<PathBuf>,
    names: Vec<String>,
    inotify: Option<AsyncFd<OwnedFd>>,
}

impl Changes {
    /// Watches only these names in the directories; others write files there all the time.
    #[must_use]
    pub fn new(
        directories: impl IntoIterator<Item = PathBuf>,
        names: impl IntoIterator<Item = String>,
    ) -> Self {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok();
        let inotify = inotify.and_then(|fd| register(fd).ok());
        let (directories, names) = (directories.into_iter().collect(), names.into_iter().collect());
        Self { directories, names, inotify }
    }

    /// Watches the directories that are there now; kubelet may have made new ones.
    pub fn follow(&self) {
        if let Some(inotify) = &self.inotify {
            let flags = WatchFlags::CREATE
                | WatchFlags::DELETE
                | WatchFlags::MOVE
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF
                | WatchFlags::ONLYDIR;
            for directory in &self.directories {
                // It is not there yet, or inotify has no watch left: then the poll finds the
                // change.
                let _ = inotify::add_watch(inotify, directory, flags);
            }
        }
    }

    /// Waits for a change, or `limit`.
    pub async fn wait(&mut self, limit: Duration) {
        let changed = async {
            match &self.inotify {
                Some(inotify) => self.changed(inotify).await,
                None => std::future::pending().await,
            }
        };
        let _ = tokio::time::timeout(limit, changed).await;
        self.follow();
    }

    async fn changed(&self, inotify: &AsyncFd<OwnedFd>) {
        loop {
            let Ok(mut ready) = inotify.readable().await else { return };
            if self.drain(inotify) {
                return;
            }
            ready.clear_ready();
        }
    }

    /// Reads all events; returns whether one was of interest.
    fn drain(&self, inotify: &AsyncFd<OwnedFd>) -> bool {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify.get_ref(), &mut space);
        let mut found = false;
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(std::ffi::CStr::to_bytes);
                    let about_us = name
                        .is_some_and(|name| self.names.iter().any(|ours| ours.as_bytes() == name));
                    // An event without a name: the directory itself changed, or events were lost.
                    found |= about_us || name.is_none_or(<[u8]>::is_empty);
                    found |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return found,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_directory_that_others_can_write_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |mode| {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            check(dir.path())
        };
        assert!(mode(0o750).is_ok() && mode(0o755).is_ok());
        for bad in [0o770, 0o757, 0o1777] {
            assert!(matches!(mode(bad), Err(SocketError::NotRoots { .. })), "{bad:o}");
        }
        assert!(matches!(check(&dir.path().join("x")), Err(SocketError::File { .. })));
    }

    #[test]
    fn only_a_socket_itself_is_a_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        assert_eq!(socket(&path("a")).unwrap(), None);
        let listener = UnixListener::bind(path("a")).unwrap();
        let first = socket(&path("a")).unwrap().unwrap();
        assert_eq!(socket(&path("a")).unwrap(), Some(first));
        symlink(path("a"), path("link")).unwrap();
        std::fs::write(path("file"), "").unwrap();
        for no in ["link", "file"] {
            assert!(matches!(socket(&path(no)), Err(SocketError::NotASocket { .. })), "{no}");
        }
        drop(listener);
        std::fs::remove_file(path("a")).unwrap();
        let _again = UnixListener::bind(path("a")).unwrap();
        assert_ne!(socket(&path("a")).unwrap(), Some(first));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn only_changes_of_the_names_wake() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["kubelet.sock", "ours.sock"].map(ToOwned::to_owned);
        let mut changes = Changes::new([dir.path().to_owned()], names);
        changes.follow();
        std::fs::write(dir.path().join("kubelet_internal_checkpoint"), "").unwrap();
        let inotify = changes.inotify.as_ref().unwrap();
        assert!(!changes.drain(inotify));
        std::fs::write(dir.path().join("kubelet.sock"), "").unwrap();
        changes.wait(Duration::MAX).await;
        std::fs::remove_file(dir.path().join("kubelet.sock")).unwrap();
        changes.wait(Duration::MAX).await;
        std::fs::remove_dir_all(dir.path()).unwrap();
        changes.wait(Duration::MAX).await;
        // A new directory of the same name is followed with the next wait.
        std::fs::create_dir(dir.path()).unwrap();
        changes.follow();
        std::fs::write(dir.path().join("ours.sock"), "").unwrap();
        changes.wait(Duration::MAX).await;
    }
}
