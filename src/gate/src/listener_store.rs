//! Who keeps the listening sockets while the gate is being replaced: systemd, in the descriptor
//! store of its unit, or the supervisor of the control daemons. A client that finds no listener
//! goes on without MPS, so a socket has to outlive whoever serves it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mpsgate_host::fd_store::{self, Answer, Request, is_away};
use mpsgate_model::Instance;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::stat;
use sd_notify::NotifyState;

use crate::error::GateError;

/// For each of the sockets that the supervisor gives. It does nothing but answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Where sockets are kept.
#[derive(Debug)]
pub enum Store {
    /// In systemd's store.
    Systemd,
    /// In the supervisor's; nowhere where there is none: then they end with this process.
    Supervisor(Supervisor),
}

/// A supervisor's store.
#[derive(Debug)]
pub struct Supervisor {
    socket: PathBuf,
    card: u32,
    /// The socket of the one that has been told of all sockets: device, inode and the time of its
    /// making. A supervisor that is started anew has none of ours.
    told: Option<(u64, u64, i64)>,
}

impl Store {
    /// systemd's, where it has started us, else the supervisor's; and the sockets that it has kept.
    ///
    /// # Errors
    /// [`GateError::Store`] where there is a supervisor that does not give them: whoever serves
    /// without them takes their clients' connections away.
    pub fn find(mps: &Path, card: u32) -> Result<(Self, Vec<(String, OwnedFd)>), GateError> {
        if std::env::var_os("NOTIFY_SOCKET").is_some() {
            let kept = sd_notify::listen_fds_with_names();
            return Ok((Self::Systemd, kept.into_iter().flatten().map(owned).collect()));
        }
        let socket = fd_store::socket(mps);
        let mut supervisor = Supervisor { socket, card, told: None };
        supervisor.told = supervisor.identity();
        let kept = supervisor
            .take()
            .map_err(|source| GateError::Store { socket: supervisor.socket.clone(), source })?;
        Ok((Self::Supervisor(supervisor), kept))
    }

    /// The sockets are served.
    pub(crate) fn ready(&self) {
        if matches!(self, Self::Systemd) {
            notify(&[NotifyState::Ready], &[]);
        }
    }

    /// Keeps a container's socket; what is kept is ours again after a restart.
    pub(crate) fn keep(&mut self, name: &Instance, socket: BorrowedFd<'_>) {
        match self {
            Self::Systemd => {
                let states = [NotifyState::FdStore, NotifyState::FdName(name.as_str())];
                notify(&states, &[socket]);
            }
            Self::Supervisor(supervisor) => {
                let (card, name) = (supervisor.card, name.as_str().to_owned());
                supervisor.tell(&Request::Keep { card, name }, Some(socket));
            }
        }
    }

    /// Keeps it no longer.
    pub(crate) fn remove(&mut self, name: &Instance) {
        match self {
            Self::Systemd => {
                notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name.as_str())], &[]);
            }
            Self::Supervisor(supervisor) => {
                let (card, name) = (supervisor.card, name.as_str().to_owned());
                supervisor.tell(&Request::Remove { card, name }, None);
            }
        }
    }

    /// Whether the store is another than the one that was told of all sockets: then it has none of
    /// them. Asked now and then.
    pub(crate) fn is_another(&mut self) -> bool {
        let Self::Supervisor(supervisor) = self else { return false };
        let there = supervisor.identity();
        let is_another = there.is_some() && there != supervisor.told;
        supervisor.told = there;
        is_another
    }
}

impl Supervisor {
    fn identity(&self) -> Option<(u64, u64, i64)> {
        let found = stat(&self.socket).ok()?;
        Some((found.st_dev, found.st_ino, found.st_ctime))
    }

    /// Nothing where no supervisor is.
    fn take(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let socket = match fd_store::dial(&self.socket) {
            Ok(socket) => socket,
            Err(error) if is_away(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        fd_store::send(socket.as_fd(), &Request::Take { card: self.card }, None)?;
        let mut kept = Vec::new();
        loop {
            let limit = Timespec::try_from(LIMIT).ok();
            if poll(&mut [PollFd::new(&socket, PollFlags::IN)], limit.as_ref())? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match fd_store::receive(socket.as_fd())? {
                (Answer::Kept(name), Some(descriptor)) => kept.push((name, descriptor)),
                (Answer::Kept(_), None) => return Err(io::ErrorKind::InvalidData.into()),
                (Answer::End, _) => return Ok(kept),
            }
        }
    }

    /// It is said and not waited for, like everything that systemd is told.
    fn tell(&mut self, request: &Request, descriptor: Option<BorrowedFd<'_>>) {
        let told = fd_store::dial(&self.socket)
            .and_then(|socket| fd_store::send(socket.as_fd(), request, descriptor));
        if let Err(error) = told {
            // All of it again, once one is there that listens.
            self.told = None;
            if !is_away(&error) {
                log::error!(error:%; "the supervisor cannot be told: sockets may end with this process");
            }
        }
    }
}

fn notify(states: &[NotifyState<'_>], fds: &[BorrowedFd<'_>]) {
    let told: io::Result<()> = if fds.is_empty() {
        sd_notify::notify(states)
    } else {
        sd_notify::notify_with_fds(states, fds)
    };
    if let Err(error) = told {
        log::error!(error:%; "systemd cannot be told: sockets may end with this process");
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
