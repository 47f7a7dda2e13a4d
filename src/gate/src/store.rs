//! Who keeps the listening sockets while the gate is being replaced: systemd, in the descriptor
//! store of its unit. A client that finds no listener goes on without MPS, so a socket has to
//! outlive whoever serves it.

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use mpsgate_model::Instance;
use sd_notify::NotifyState;

/// Where sockets are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// In systemd's store.
    Systemd,
    /// Nowhere: they end with this process.
    Nowhere,
}

impl Store {
    /// systemd's, where it has started us; and the sockets that it has kept.
    #[must_use]
    pub fn find() -> (Self, Vec<(String, OwnedFd)>) {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return (Self::Nowhere, Vec::new());
        }
        let kept = sd_notify::listen_fds_with_names();
        (Self::Systemd, kept.into_iter().flatten().map(owned).collect())
    }

    /// The sockets are served.
    pub(crate) fn ready(self) {
        self.notify(&[NotifyState::Ready], &[]);
    }

    /// Keeps a container's socket; what is kept is ours again after a restart.
    pub(crate) fn keep(self, name: &Instance, socket: BorrowedFd<'_>) {
        let states = [NotifyState::FdStore, NotifyState::FdName(name.as_str())];
        self.notify(&states, &[socket]);
    }

    /// Keeps it no longer.
    pub(crate) fn remove(self, name: &Instance) {
        self.notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name.as_str())], &[]);
    }

    fn notify(self, states: &[NotifyState<'_>], fds: &[BorrowedFd<'_>]) {
        if self == Self::Nowhere {
            return;
        }
        let told: io::Result<()> = if fds.is_empty() {
            sd_notify::notify(states)
        } else {
            sd_notify::notify_with_fds(states, fds)
        };
        if let Err(error) = told {
            log::error!(error:%; "systemd cannot be told: sockets may end with this process");
        }
    }
}

#[allow(
    unsafe_code,
    reason = "JUSTIFICATION: systemd passes descriptors by number, as sd_listen_fds(3) says"
)]
fn owned((fd, name): (i32, String)) -> (String, OwnedFd) {
    // SAFETY: the environment names it as passed to this process, which nobody else has read.
    (name, unsafe { OwnedFd::from_raw_fd(fd) })
}
