//! The state of one card's MPS.
//!
//! ```text
//!  Dead ──ensure_running──► Running ◄──contexts made again── Fault
//!   ▲                         │  ▲                             ▲
//!   └── process ended ────────┤  └── holder gone ── Wedged     │
//!                             └──────── fatal GPU error ───────┘
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use crate::error::MpsError;
use crate::instance::{ControlDaemon, MpsInstance};
use crate::mps_process::Process;
use crate::protocol::ServerStatus;
use crate::wedge_cause::WedgeCause;

/// The pause between two attempts on a channel with a glitch.
const GLITCH: Duration = Duration::from_millis(50);

/// An MPS server as its control daemon describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its pid.
    pub pid: i32,
    /// The uid that it serves (root serves all uids in multi-user mode); `None` if it is just
    /// ending.
    pub uid: Option<u32>,
    /// Its state.
    pub status: ServerStatus,
}

/// The present state of a card's MPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MpsState {
    /// The daemon answers; no server is at fault.
    Running {
        /// The control daemon.
        pid: i32,
        /// Its servers.
        servers: Vec<Server>,
    },
    /// No daemon runs.
    Dead {
        /// Servers that outlived it and still hold the card.
        orphans: Vec<i32>,
    },
    /// The daemon lives, but does not answer.
    Wedged {
        /// The control daemon.
        pid: i32,
        /// The cause, as far as it can be seen.
        cause: WedgeCause,
    },
    /// A server had a fatal GPU error and refuses clients.
    Fault {
        /// The control daemon.
        pid: i32,
        /// Its servers, at least one of them at fault.
        servers: Vec<Server>,
    },
}

impl MpsInstance {
    /// Reads the state. Costs one command for each server and one for the list; up to the channel's
    /// time limit if wedged.
    ///
    /// # Errors
    /// Errors of [`Self::find_running`] and the channel, except those that are states.
    pub fn state(&self) -> Result<MpsState, MpsError> {
        let daemon = match self.find_running() {
            Ok(Some(daemon)) => daemon,
            Ok(None) => return Ok(self.dead()),
            Err(error) => return Err(error),
        };
        let pid = daemon.process.pid();
        match self.servers_for_sure(&daemon) {
            Ok(servers) if servers.iter().any(|server| server.status == ServerStatus::Fault) => {
                Ok(MpsState::Fault { pid, servers })
            }
            Ok(servers) => Ok(MpsState::Running { pid, servers }),
            Err(MpsError::Wedged { .. }) => {
                Ok(MpsState::Wedged { pid, cause: self.wedge_cause(&daemon) })
            }
            Err(_) if !daemon.process.is_alive() => Ok(self.dead()),
            Err(error) => Err(error),
        }
    }

    /// Asks a channel with a glitch again for as long as an answer may take: in a flood of
    /// connections a front-end hangs or is turned away (measured), and both are a wedge.
    fn servers_for_sure(&self, daemon: &ControlDaemon) -> Result<Vec<Server>, MpsError> {
        let deadline = Instant::now() + self.channel().timeout();
        loop {
            let error = match self.servers() {
                Err(
                    error @ (MpsError::NotRunning { .. }
                    | MpsError::ChannelBroken { .. }
                    | MpsError::EmptyAnswer { .. }),
                ) => error,
                other => return other,
            };
            if !daemon.process.is_alive() {
                return Err(error);
            }
            if Instant::now() >= deadline {
                return Err(self.channel().wedged());
            }
            std::thread::sleep(GLITCH);
        }
    }

    fn dead(&self) -> MpsState {
        MpsState::Dead { orphans: self.servers_alive().iter().map(Process::pid).collect() }
    }

    /// The daemon's servers with uid and status.
    ///
    /// # Errors
    /// Errors of the channel.
    pub fn servers(&self) -> Result<Vec<Server>, MpsError> {
        let mut servers = Vec::new();
        for pid in self.channel().server_list()? {
            let status = match self.channel().server_status(pid) {
                // 535 cannot be asked, and its log proves nothing: containers can write there.
                Ok(status) => status,
                // The server ended between the two questions.
                Err(MpsError::ServerNotFound { .. }) => continue,
                Err(error) => return Err(error),
            };
            let uid = Process::open(pid).and_then(|server| server.uid());
            servers.push(Server { pid, uid, status });
        }
        Ok(servers)
    }

    /// Empties the daemon's log FIFO, which frees a daemon that is [`WedgeCause::LogBlocked`]. It
    /// blocks again about 500 lines later: restart it when its clients are gone.
    ///
    /// # Errors
    /// [`MpsError::Fs`].
    pub fn drain_log(&self) -> Result<(), MpsError> {
        let path = self.dirs().log_fifo();
        let pipe = self
            .dirs()
            .open_pipe()?
            .ok_or_else(|| MpsError::NotRunning { pipe_dir: self.dirs().pipe_dir() })?;
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fifo = openat(pipe, "log", flags, Mode::empty())
            .map_err(|errno| MpsError::fs("open", &path, errno))?;
        let mut fifo = File::from(fifo);
        let mut chunk = [0; 4096];
        loop {
            match fifo.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Ok(_) => {}
                Err(source) => return Err(MpsError::fs("read", path, source)),
            }
        }
    }
}
