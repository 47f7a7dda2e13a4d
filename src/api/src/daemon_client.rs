//! A blocking client with a deadline on every step, for shim, hook and CLI.

use std::io::{self, IoSlice, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mpsgate_model::{Code, Refusal};
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, getsockopt,
    sendmsg, socket,
};
use serde::de::DeserializeOwned;

use crate::{Call, Envelope, FrameError, Reply, VERSION, decode_length, encode};

/// How long a caller waits for the first byte of an answer, and for each byte after it.
pub const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause between two attempts to reach a daemon that is away.
const AWAY_PAUSE: Duration = Duration::from_millis(20);

/// Why the daemon did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// No process listens.
    #[error("mpsgated is not running: no socket answers at {path}")]
    Away {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// No process listens, and none began to in the time that a restart takes.
    #[error("mpsgated is down or restarting: no socket answered at {path} for {} s", FIRST_BYTE_TIMEOUT.as_secs())]
    StillAway {
        /// The socket.
        path: PathBuf,
        /// The kernel's last error.
        #[source]
        source: io::Error,
    },
    /// Something else has the socket's name.
    #[error("{path} is not a socket")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The process that listens is not root's.
    #[error("{path} belongs to a process of uid {uid}, not to mpsgated")]
    NotRoot {
        /// The socket.
        path: PathBuf,
        /// The listener's uid.
        uid: u32,
    },
    /// No answer in time.
    #[error("mpsgated did not answer within {seconds} s{}", doing.as_ref().map(|d| format!(" (last: {d})")).unwrap_or_default())]
    Silent {
        /// How long the client waited.
        seconds: u64,
        /// The last progress that it reported.
        doing: Option<String>,
    },
    /// The connection broke.
    #[error("mpsgated closed the connection")]
    Broken(#[source] io::Error),
    /// The answer is not a message.
    #[error("mpsgated answered what is no message of mpsgate")]
    Garbage(#[source] FrameError),
    /// The daemon's version is not a neighbour of this one.
    #[error("mpsgated speaks version {daemon} of the socket's protocol, this program {VERSION}")]
    Version {
        /// The daemon's version.
        daemon: u16,
    },
    /// The daemon answered a question that was not asked.
    #[error("mpsgated answered another question")]
    Unexpected,
}

impl ApiError {
    /// The remedy.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Away { .. } => "systemctl start mpsgated; journalctl -u mpsgated -n 50",
            Self::NotASocket { .. } | Self::NotRoot { .. } => {
                "remove the file and run: systemctl restart mpsgated"
            }
            Self::StillAway { .. } | Self::Silent { .. } | Self::Broken(_) | Self::Unexpected => {
                "systemctl status mpsgated; journalctl -u mpsgated -n 50"
            }
            Self::Garbage(_) | Self::Version { .. } => {
                "mpsgate's programs are of different versions: reinstall the package and run: \
                 systemctl restart mpsgated"
            }
        }
    }

    /// The refusal of a container that needs the daemon for its decision.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        let code = match self {
            Self::Away { .. }
            | Self::StillAway { .. }
            | Self::NotASocket { .. }
            | Self::NotRoot { .. }
            | Self::Broken(_) => Code::DaemonAway,
            Self::Silent { .. } => Code::DaemonSilent,
            Self::Garbage(_) | Self::Version { .. } | Self::Unexpected => Code::DaemonVersion,
        };
        Refusal::new(code, format!("it asks for GPU memory, but {self}"), self.hint())
    }
}

/// A connection to the daemon, good for one call.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects to the daemon's socket and checks that root listens there. A daemon with a full
    /// backlog counts as silent after [`FIRST_BYTE_TIMEOUT`].
    ///
    /// # Errors
    /// If no process listens, or one that is not root's.
    pub fn connect(path: &Path) -> Result<Self, ApiError> {
        Self::connect_within(path, FIRST_BYTE_TIMEOUT)
    }

    fn connect_within(path: &Path, limit: Duration) -> Result<Self, ApiError> {
        let silent = || ApiError::Silent { seconds: limit.as_secs(), doing: None };
        let socket = unix_socket(SockFlag::SOCK_CLOEXEC).map_err(|e| away(path, e))?;
        // connect(2) on a UNIX socket waits for room in the backlog as long as a send would.
        let stream = UnixStream::from(socket);
        stream.set_write_timeout(Some(limit)).map_err(ApiError::Broken)?;
        let address = UnixAddr::new(path).map_err(|e| away(path, e))?;
        match connect(stream.as_raw_fd(), &address) {
            Ok(()) => {}
            Err(Errno::EAGAIN | Errno::EINPROGRESS) => return Err(silent()),
            Err(error) => return Err(away(path, error)),
        }
        let peer = getsockopt(&stream, PeerCredentials).map_err(|e| away(path, e))?;
        // Root, or the user of this program: a test has a daemon of its own.
        if peer.uid() != 0 && peer.uid() != nix::unistd::geteuid().as_raw() {
            return Err(ApiError::NotRoot { path: path.to_owned(), uid: peer.uid() });
        }
        Ok(Self { stream })
    }

    /// Sends a call without waiting: what does not fit into the socket at once is lost. For reports
    /// that must never delay a container.
    pub fn notify(path: &Path, call: Call) {
        let sent = || -> Option<()> {
            let socket = unix_socket(SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK).ok()?;
            connect(socket.as_raw_fd(), &UnixAddr::new(path).ok()?).ok()?;
            let bytes = encode(&Envelope { version: VERSION, call }).ok()?;
            nix::sys::socket::send(socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL).ok()?;
            Some(())
        };
        let _ = sent();
    }

    /// Sends a call and returns its reply, all within `limit`: connecting, sending and waiting
    /// together. If the daemon reports progress, the limit is `busy` from the beginning.
    ///
    /// # Errors
    /// If no answer comes in time, or one that is not a message.
    pub fn ask_within<S: DeserializeOwned>(
        path: &Path,
        call: Call,
        limit: Duration,
        busy: Duration,
    ) -> Result<Reply<S>, ApiError> {
        let started = Instant::now();
        let mut deadline = started + limit;
        let bytes = encode(&Envelope { version: VERSION, call }).map_err(ApiError::Garbage)?;
        let mut client = Self::connect_within(path, limit)?;
        // The socket accepts no zero as a limit; a limit that has passed shows at the first read.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        client.stream.set_write_timeout(Some(left)).map_err(ApiError::Broken)?;
        client.send(&bytes, None)?;
        let mut doing = None;
        loop {
            match client.receive(deadline, started, &doing)? {
                Reply::Progress { doing: now } => {
                    doing = Some(now);
                    deadline = started + busy.max(limit);
                }
                Reply::Version { daemon } => return Err(ApiError::Version { daemon }),
                reply => return Ok(reply),
            }
        }
    }

    /// Sends a call that may be sent twice, and returns its final reply. The client waits for a
    /// daemon that is away, or that ends before it has answered, as long as for its first byte: a
    /// restarted daemon is back by then, so no container is refused because of it. A silent daemon
    /// is asked a second time, because a daemon that ends leaves its last callers without an
    /// answer.
    ///
    /// # Errors
    /// As [`Self::connect`] and [`Self::call`].
    pub fn ask<S: DeserializeOwned>(
        path: &Path,
        call: &Call,
        fd: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> Result<Reply<S>, ApiError> {
        let started = Instant::now();
        let mut away_since = started;
        let mut was_silent = false;
        loop {
            let tried = Instant::now();
            let asked = Self::connect(path)
                .and_then(|client| client.call_since(tried, call.clone(), fd, limit));
            let error = match asked {
                Err(error @ (ApiError::Away { .. } | ApiError::Broken(_))) => error,
                Err(ApiError::Silent { doing: None, .. })
                    if !std::mem::replace(&mut was_silent, true) =>
                {
                    away_since = Instant::now();
                    continue;
                }
                other => return other,
            };
            // It had reported progress: this is another absence.
            if tried.elapsed() >= FIRST_BYTE_TIMEOUT && started.elapsed() < limit {
                away_since = Instant::now();
            }
            if away_since.elapsed() >= FIRST_BYTE_TIMEOUT {
                return Err(match error {
                    ApiError::Away { path, source } => ApiError::StillAway { path, source },
                    other => other,
                });
            }
            std::thread::sleep(AWAY_PAUSE);
        }
    }

    /// Sends a call and returns its final reply. Waits [`FIRST_BYTE_TIMEOUT`] for the first frame;
    /// a progress frame extends the wait, up to `limit` in all.
    ///
    /// # Errors
    /// If no answer comes in time, or one that is not a message.
    pub fn call<S: DeserializeOwned>(
        self,
        call: Call,
        fd: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> Result<Reply<S>, ApiError> {
        self.call_since(Instant::now(), call, fd, limit)
    }

    fn call_since<S: DeserializeOwned>(
        mut self,
        started: Instant,
        call: Call,
        fd: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> Result<Reply<S>, ApiError> {
        let bytes = encode(&Envelope { version: VERSION, call }).map_err(ApiError::Garbage)?;
        self.send(&bytes, fd)?;
        let mut doing = None;
        let mut deadline = started + FIRST_BYTE_TIMEOUT;
        loop {
            match self.receive(deadline, started, &doing)? {
                Reply::Progress { doing: now } => {
                    doing = Some(now);
                    deadline = started + limit.max(FIRST_BYTE_TIMEOUT);
                }
                Reply::Version { daemon } => return Err(ApiError::Version { daemon }),
                reply => return Ok(reply),
            }
        }
    }

    fn send(&mut self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), ApiError> {
        let fds: Vec<_> = fd.iter().map(AsRawFd::as_raw_fd).collect();
        let mut rights: &[_] = &[ControlMessage::ScmRights(&fds)];
        if fds.is_empty() {
            rights = &[];
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let part = [IoSlice::new(rest)];
            match sendmsg::<()>(
                self.stream.as_raw_fd(),
                &part,
                rights,
                MsgFlags::MSG_NOSIGNAL,
                None,
            ) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(Errno::EINTR) => continue,
                // The daemon may refuse before it has read everything; its answer can still be
                // read.
                Err(Errno::EPIPE) => return Ok(()),
                Err(error) => return Err(lost(error.into(), Instant::now(), &None)),
            }
            rights = &[];
        }
        Ok(())
    }

    fn receive<S: DeserializeOwned>(
        &mut self,
        deadline: Instant,
        started: Instant,
        doing: &Option<String>,
    ) -> Result<Reply<S>, ApiError> {
        let mut prefix = [0; 4];
        self.read_exact(&mut prefix, deadline, started, doing)?;
        let length = decode_length(prefix).map_err(ApiError::Garbage)?;
        let mut content = vec![0; length];
        self.read_exact(&mut content, deadline, started, doing)?;
        serde_json::from_slice(&content).map_err(|e| ApiError::Garbage(FrameError::Content(e)))
    }

    fn read_exact(
        &mut self,
        mut buffer: &mut [u8],
        deadline: Instant,
        started: Instant,
        doing: &Option<String>,
    ) -> Result<(), ApiError> {
        while !buffer.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(silent(started, doing));
            }
            self.stream.set_read_timeout(Some(left)).map_err(ApiError::Broken)?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(ApiError::Broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => buffer = buffer.get_mut(n..).unwrap_or_default(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(lost(e, started, doing)),
            }
        }
        Ok(())
    }
}

fn unix_socket(flags: SockFlag) -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

fn away(path: &Path, error: Errno) -> ApiError {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => ApiError::NotASocket { path: path.to_owned() },
        _ => ApiError::Away { path: path.to_owned(), source: error.into() },
    }
}

fn lost(error: io::Error, started: Instant, doing: &Option<String>) -> ApiError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => silent(started, doing),
        _ => ApiError::Broken(error),
    }
}

fn silent(started: Instant, doing: &Option<String>) -> ApiError {
    // A wait of 1.9996 s is reported as 2 s.
    let seconds = (started.elapsed() + Duration::from_millis(100)).as_secs();
    ApiError::Silent { seconds, doing: doing.clone() }
}

#[cfg(test)]
mod tests;
