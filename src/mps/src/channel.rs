//! The control channel: one front-end process per command, one command at a time, each with a time
//! limit. The socket's own protocol is unpublished, and mpsgate does not use it.
//!
//! Serialised by a mutex here and by `flock` between processes: of two concurrent front-ends 7 %
//! fail, of eight 72 % (measured). An operator's front-end cannot be locked out; its collisions
//! show as [`MpsError::ChannelBroken`] or [`MpsError::EmptyAnswer`] after one retry.

use std::fs::File;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::error::MpsError;
use crate::file_lock;
use crate::layout::MpsDirectories;
use crate::mps_process::POLL;
use crate::protocol::{
    Answer, Command, Rejection, SENTINEL, ServerStatus, limit_matches, split_sentinel,
};
use crate::subprocess::{Failure, OUTPUT_CAP, run};

/// The time after which a control daemon counts as wedged; it answers within 5 ms (measured).
const TIMEOUT: Duration = Duration::from_secs(3);

/// The place of a daemon's sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In its own mount namespace.
    Private,
    /// In this process's mount namespace.
    PlainSight,
}

/// The control channel of one card.
#[derive(Debug)]
pub struct Channel {
    binary: PathBuf,
    dirs: MpsDirectories,
    place: Place,
    timeout: Duration,
    turn: Mutex<()>,
}

impl Channel {
    /// The channel of `dirs`, with `binary` as front-end.
    #[must_use]
    pub fn new(binary: &Path, dirs: &MpsDirectories) -> Self {
        Self {
            binary: binary.into(),
            dirs: dirs.clone(),
            place: Place::Private,
            timeout: TIMEOUT,
            turn: Mutex::new(()),
        }
    }

    /// For a daemon that no launcher started: its directory is the visible one.
    pub(crate) fn in_plain_sight(mut self) -> Self {
        self.place = Place::PlainSight;
        self
    }

    /// Changes the time limit from its 3 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The time limit of one command.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The error for a command without an answer.
    pub(crate) fn wedged(&self) -> MpsError {
        MpsError::Wedged {
            pipe_dir: self.dirs.pipe_dir(),
            command: Command::GetServerList.to_string(),
            after_ms: self.timeout.as_millis(),
        }
    }

    /// Sends one command and reads its answer. A glitch is tried once more if that is harmless.
    ///
    /// # Errors
    /// [`MpsError::NotRunning`], [`MpsError::Wedged`], [`MpsError::ChannelBusy`], and one variant
    /// for each way in which the control daemon can refuse.
    pub fn ask(&self, command: &Command) -> Result<Answer, MpsError> {
        answer_of(command, &self.ask_for_text(command)?)
    }

    /// The same, but returns the answer as NVIDIA's program prints it.
    ///
    /// # Errors
    /// As [`Self::ask`], except for refusals in the answer.
    pub fn ask_for_text(&self, command: &Command) -> Result<String, MpsError> {
        let (_turn, _lock) = self.take_turn()?;
        match self.text_of(command, self.timeout) {
            Err(MpsError::EmptyAnswer { .. } | MpsError::ChannelBroken { .. })
                if command.is_repeatable() =>
            {
                self.text_of(command, self.timeout)
            }
            other => other,
        }
    }

    /// As [`Self::ask`], but ends at `deadline`, including the wait for a turn, and never tries
    /// again: for callers that prefer no answer to a late one. It kills a front-end that is still
    /// waiting then.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ask_until(&self, command: &Command, deadline: Instant) -> Result<Answer, MpsError> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let (_turn, _lock) = self.take_turn_within(left())?;
        answer_of(command, &self.text_of(command, left())?)
    }

    /// Pids of the card's servers; MPS runs at most one.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn server_list(&self) -> Result<Vec<i32>, MpsError> {
        match self.ask(&Command::GetServerList)? {
            Answer::Pids(pids) => Ok(pids),
            other => Err(surprise(&Command::GetServerList, &other)),
        }
    }

    /// Pids of a server's clients, in the host's pid namespace.
    ///
    /// # Errors
    /// As [`Self::ask`]; [`MpsError::ServerNotFound`].
    pub fn client_list(&self, server: i32) -> Result<Vec<i32>, MpsError> {
        let command = Command::GetClientList(server);
        match self.ask(&command)? {
            Answer::Pids(pids) => Ok(pids),
            other => Err(surprise(&command, &other)),
        }
    }

    /// A server's state; [`ServerStatus::Unreported`] where the daemon cannot tell (535).
    ///
    /// # Errors
    /// As [`Self::ask`]; [`MpsError::ServerNotFound`].
    pub fn server_status(&self, server: i32) -> Result<ServerStatus, MpsError> {
        let command = Command::GetServerStatus(server);
        match self.ask(&command) {
            Ok(Answer::Status(status)) => Ok(status),
            Ok(other) => Err(surprise(&command, &other)),
            Err(MpsError::UnknownCommand { .. }) => Ok(ServerStatus::Unreported),
            Err(error) => Err(error),
        }
    }

    /// The default limit as printed (`6G`), `None` where none is set.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn default_limit(&self) -> Result<Option<String>, MpsError> {
        let command = Command::GetDefaultPinnedMemLimit { device: 0 };
        match self.ask(&command)? {
            Answer::Limit(limit) => Ok(limit),
            other => Err(surprise(&command, &other)),
        }
    }

    /// Sets the memory limit of the next server's clients, reads it back and compares.
    ///
    /// # Errors
    /// As [`Self::ask`]; [`MpsError::LimitNotApplied`].
    pub fn set_default_limit(&self, mib: NonZeroU32) -> Result<(), MpsError> {
        self.ask(&Command::SetDefaultPinnedMemLimit { device: 0, mib })?;
        let answer = self.default_limit()?;
        if answer.as_deref().is_some_and(|answer| limit_matches(mib, answer)) {
            return Ok(());
        }
        Err(MpsError::LimitNotApplied { limit_mib: mib.get(), answer })
    }

    /// Sets the memory limit of a running server's future clients, reads it back and compares.
    ///
    /// # Errors
    /// As [`Self::ask`]; [`MpsError::LimitNotApplied`], [`MpsError::ServerNotFound`].
    pub fn set_server_limit(&self, server: i32, mib: NonZeroU32) -> Result<(), MpsError> {
        self.ask(&Command::SetPinnedMemLimit { server, device: 0, mib })?;
        let command = Command::GetPinnedMemLimit { server, device: 0 };
        let answer = match self.ask(&command)? {
            Answer::Limit(answer) => answer,
            other => return Err(surprise(&command, &other)),
        };
        if answer.as_deref().is_some_and(|answer| limit_matches(mib, answer)) {
            return Ok(());
        }
        Err(MpsError::LimitNotApplied { limit_mib: mib.get(), answer })
    }

    /// Asks the daemon to end; clients get `grace`. The caller has to watch for the end of its
    /// process: the exit status of the front-end is not reliable (measured: 0 and 1 for the same
    /// end).
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn quit(&self, grace: Duration) -> Result<(), MpsError> {
        let timeout_s = u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
        let (_turn, _lock) = self.take_turn()?;
        match self.text_of(&Command::Quit { timeout_s }, self.timeout.saturating_add(grace)) {
            // It closed the connection and ended, as requested.
            Ok(_) | Err(MpsError::ChannelBroken { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn text_of(&self, command: &Command, timeout: Duration) -> Result<String, MpsError> {
        let with_sentinel = !matches!(command, Command::Quit { .. });
        let stdin =
            if with_sentinel { format!("{command}\n{SENTINEL}\n") } else { format!("{command}\n") };
        let pipe_dir = self.dirs.pipe_dir();
        let not_running = || MpsError::NotRunning { pipe_dir: pipe_dir.clone() };
        // Kept open until the front-end has ended, which reaches it through this process's /proc: a
        // pid would be another process's once the daemon has ended.
        let pipe = match self.place {
            Place::Private => Some(self.dirs.open_pipe()?.ok_or_else(not_running)?),
            Place::PlainSight => None,
        };
        let reached = pipe.as_ref().map_or_else(
            || pipe_dir.clone(),
            |pipe| PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), pipe.as_raw_fd())),
        );
        let log_dir = self.dirs.log_dir();
        let environment = [
            ("CUDA_MPS_PIPE_DIRECTORY", reached.as_path()),
            ("CUDA_MPS_LOG_DIRECTORY", log_dir.as_path()),
        ];
        let named = || command.to_string();
        let finished = run(&self.binary, &[], &environment, &stdin, timeout).map_err(
            |failure| match failure {
                Failure::Io(source) => MpsError::Run { program: self.binary.clone(), source },
                Failure::TimedOut => MpsError::Wedged {
                    pipe_dir: pipe_dir.clone(),
                    command: named(),
                    after_ms: timeout.as_millis(),
                },
                Failure::TooLong => MpsError::AnswerTooLong { command: named(), limit: OUTPUT_CAP },
            },
        )?;
        if finished.stderr.contains("Cannot find MPS control daemon process") {
            return Err(not_running());
        }
        if !finished.status.success() {
            return Err(MpsError::ChannelBroken { command: named(), detail: finished.detail() });
        }
        if !with_sentinel {
            return Ok(finished.stdout);
        }
        let printed = split_sentinel(&finished.stdout);
        printed.map(str::to_owned).ok_or_else(|| MpsError::EmptyAnswer { command: named() })
    }

    /// Waits for a turn in this process, then among all processes; at most twice the time of one
    /// command.
    pub(crate) fn take_turn(
        &self,
    ) -> Result<(std::sync::MutexGuard<'_, ()>, Flock<File>), MpsError> {
        self.take_turn_within(self.timeout.saturating_mul(2))
    }

    fn take_turn_within(
        &self,
        patience: Duration,
    ) -> Result<(std::sync::MutexGuard<'_, ()>, Flock<File>), MpsError> {
        let deadline = Instant::now() + patience;
        let path = self.dirs.lock_path();
        let busy = || MpsError::ChannelBusy { lock: path.clone(), after_ms: patience.as_millis() };
        let turn = loop {
            match self.turn.try_lock() {
                Ok(turn) => break turn,
                // The mutex guards no data, so a panic elsewhere has broken nothing.
                Err(TryLockError::Poisoned(turn)) => break turn.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Err(busy()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(POLL),
            }
        };
        loop {
            let file = file_lock::open(&path).map_err(|source| self.no_lock_file(source))?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                // A stop removed it during the wait: a lock on it excludes nobody.
                Ok(held) if is_at(&held, &path) => return Ok((turn, held)),
                Ok(_) | Err((_, nix::errno::Errno::EWOULDBLOCK | nix::errno::Errno::EINTR)) => {}
                Err((_, errno)) => return Err(MpsError::fs("lock", &path, errno)),
            }
            if Instant::now() >= deadline {
                return Err(busy());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Without the card's directory there is no daemon either.
    fn no_lock_file(&self, source: std::io::Error) -> MpsError {
        if source.kind() == std::io::ErrorKind::NotFound {
            return MpsError::NotRunning { pipe_dir: self.dirs.pipe_dir() };
        }
        MpsError::fs("open lock", self.dirs.lock_path(), source)
    }
}

fn answer_of(command: &Command, printed: &str) -> Result<Answer, MpsError> {
    let named = || command.to_string();
    Answer::parse(command, printed).map_err(|rejection| match rejection {
        Rejection::UnknownCommand => MpsError::UnknownCommand { command: named() },
        Rejection::ServerNotFound => MpsError::ServerNotFound { server: server_of(command) },
        Rejection::NotPermitted(answer) => MpsError::NotPermitted { command: named(), answer },
        Rejection::Unparsable(answer) => MpsError::Unparsable { command: named(), answer },
    })
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(held), Ok(named)) = (file.metadata(), path.symlink_metadata()) else { return false };
    (held.dev(), held.ino()) == (named.dev(), named.ino())
}

fn server_of(command: &Command) -> i32 {
    match command {
        Command::GetServerStatus(server)
        | Command::GetClientList(server)
        | Command::ShutdownServer { server, .. }
        | Command::SetPinnedMemLimit { server, .. }
        | Command::GetPinnedMemLimit { server, .. }
        | Command::TerminateClient { server, .. } => *server,
        _ => 0,
    }
}

/// [`Answer::parse`] never returns another command's type of answer.
fn surprise(command: &Command, answer: &Answer) -> MpsError {
    MpsError::Unparsable { command: command.to_string(), answer: format!("{answer:?}") }
}
