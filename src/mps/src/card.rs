//! One card's control daemon: find it, adopt or start it, say how it is.
//!
//! ```text
//!  Dead ──ensure_running──► Running ◄──contexts made again── Fault
//!   ▲                         │  ▲                             ▲
//!   └── process ended ────────┤  └── holder gone ── Wedged     │
//!                             └──────── fatal GPU error ───────┘
//! ```
//!
//! How a running daemon is recognised: `find.rs`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::libc;

use crate::channel::Channel;
use crate::error::MpsError;
use crate::holder::{Connections, WedgeCause};
use crate::layout::CardDirs;
use crate::process::{POLL, Process};
use crate::protocol::ServerStatus;
use crate::spawner::{Spawner, Started};
use crate::supervisor::Root;
use mpsgate_host::crash_point;

/// Between two attempts on a channel that glitches.
const GLITCH: Duration = Duration::from_millis(50);
/// What a control daemon says that ends because of another (535 and 550).
const ALREADY_RUNNING: &str = "An instance of this daemon is already running";
/// Two that start in the same moment may both end because of the other (550, seen under load).
const TRIES: usize = 3;
/// How long one that ended because another was quicker is given until that one can be seen: 535
/// refuses a second daemon before the first has its lock (seen once on a busy machine).
const QUICKER: Duration = Duration::from_millis(500);

/// The control daemon of one card, running or not.
#[derive(Debug)]
pub struct CardMps {
    card: u32,
    uuid: String,
    binary: PathBuf,
    multiuser: bool,
    hold_dir: Option<PathBuf>,
    dirs: CardDirs,
    channel: Channel,
}

/// A control daemon whose program, owner and directory were checked.
#[derive(Debug)]
pub struct ControlDaemon {
    /// The daemon's process.
    pub process: Process,
    /// Its program was replaced on disk since it was started, as an upgrade of the driver does. It
    /// is ours all the same, with all its clients.
    pub replaced: bool,
}

/// Where a running daemon came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It ran already, with its servers and clients.
    Adopted,
    /// We started it: limits and server are still to be set.
    Started,
}

/// An MPS server as its control daemon describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its pid.
    pub pid: i32,
    /// Whom it serves (root serves everybody in multi-user mode); `None` when it is just ending.
    pub uid: Option<u32>,
    /// Its state.
    pub status: ServerStatus,
}

/// How a card's MPS is right now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MpsState {
    /// The daemon answers; no server is at fault.
    Running {
        /// The control daemon.
        pid: i32,
        /// Its servers.
        servers: Vec<Server>,
    },
    /// No daemon.
    Dead {
        /// Servers that outlived it and still hold the card.
        orphans: Vec<i32>,
    },
    /// The daemon lives and does not answer.
    Wedged {
        /// The control daemon.
        pid: i32,
        /// Why, as far as can be seen.
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

impl CardMps {
    /// Describes the daemon of card number `card`, run from `binary`. Touches nothing.
    #[must_use]
    pub fn new(
        card: u32,
        uuid: impl Into<String>,
        binary: impl Into<PathBuf>,
        dirs: CardDirs,
    ) -> Self {
        let binary = binary.into();
        let channel = Channel::new(&binary, &dirs);
        Self { card, uuid: uuid.into(), binary, multiuser: false, hold_dir: None, dirs, channel }
    }

    /// Starts it with one root server for all uids; only where [`crate::Capabilities`] says so.
    #[must_use]
    pub fn with_multiuser(mut self, multiuser: bool) -> Self {
        self.multiuser = multiuser;
        self
    }

    /// Knows what a holder with that directory started, whose `/` is not ours.
    #[must_use]
    pub fn with_holder(mut self, dir: PathBuf) -> Self {
        self.hold_dir = Some(dir);
        self
    }

    /// Whose `/` a control daemon or server of ours can have: ours, or the holder's.
    pub(crate) fn trusted_roots(&self) -> Vec<Root> {
        let holders = self.hold_dir.as_deref().and_then(Root::of_holder);
        Root::of("self").into_iter().chain(holders).collect()
    }

    /// Changes the channel's time limit from its 3 s.
    #[must_use]
    pub fn with_channel_timeout(mut self, timeout: Duration) -> Self {
        self.channel = self.channel.with_timeout(timeout);
        self
    }

    /// The card's number on this node: names directory and unit.
    #[must_use]
    pub fn card(&self) -> u32 {
        self.card
    }

    /// The card's UUID: becomes `CUDA_VISIBLE_DEVICES`, so the card is device 0.
    #[must_use]
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// The control program.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Whether one server serves all uids.
    #[must_use]
    pub fn is_multiuser(&self) -> bool {
        self.multiuser
    }

    /// The card's directories.
    #[must_use]
    pub fn dirs(&self) -> &CardDirs {
        &self.dirs
    }

    /// The card's control channel.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// What the daemon is started with.
    pub(crate) fn arguments(&self) -> &'static [&'static str] {
        if self.multiuser { &["-f", "-multiuser-server"] } else { &["-f"] }
    }

    /// What the daemon finds in its environment. The server program is searched in PATH, not
    /// beside the daemon (measured), so its directory comes first.
    pub(crate) fn environment(&self) -> [(&'static str, std::ffi::OsString); 4] {
        let mut path =
            self.binary.parent().unwrap_or_else(|| Path::new("/usr/bin")).as_os_str().to_owned();
        path.push(":");
        path.push(crate::run::FIXED_PATH);
        [
            ("PATH", path),
            ("CUDA_VISIBLE_DEVICES", self.uuid.clone().into()),
            ("CUDA_MPS_PIPE_DIRECTORY", self.dirs.pipe_dir().into()),
            ("CUDA_MPS_LOG_DIRECTORY", self.dirs.log_dir().into()),
        ]
    }

    /// Adopts the running daemon or starts one, and waits until it answers. Containers cannot reach
    /// a new one before [`CardDirs::renew_links`].
    ///
    /// # Errors
    /// [`MpsError::Wedged`] when one runs and does not answer: a second one is never started.
    /// [`MpsError::Orphans`] while servers of a dead one live.
    /// [`MpsError::StartFailed`] with the end of the log, and what directories and spawner say.
    pub fn ensure_running(
        &self,
        spawner: &dyn Spawner,
        limit: Duration,
    ) -> Result<(ControlDaemon, Origin), MpsError> {
        self.dirs.create()?;
        crash_point!("mps.directories_made");
        match self.find_running() {
            Ok(Some(daemon)) => {
                self.channel.server_list()?;
                return Ok((daemon, Origin::Adopted));
            }
            Ok(None) => self.refuse_orphans()?,
            Err(error @ MpsError::PidFileRefused { .. }) => {
                self.refuse_orphans()?;
                log::warn!(card = self.card, error:% = error; "stale or forged pid file removed");
                let path = self.dirs.pid_file();
                std::fs::remove_file(&path)
                    .map_err(|source| MpsError::fs("remove", path, source))?;
            }
            Err(error) => return Err(error),
        }
        let deadline = Instant::now() + limit;
        let mut tries = TRIES;
        loop {
            let mark = self.dirs.log_file().mark();
            let started = spawner.start(self)?;
            crash_point!("mps.spawned");
            let failed = match self.wait_until_it_answers(spawner, &started, deadline) {
                Ok(daemon) => {
                    if started.is(daemon.process.pid()) {
                        return Ok((daemon, Origin::Started));
                    }
                    // Somebody was quicker. Ours may not have noticed yet, and would take the lock
                    // the moment that the other one ends, without limits.
                    spawner.abort(self, &started)?;
                    return Ok((daemon, Origin::Adopted));
                }
                Err(reason) => reason,
            };
            if let Err(error) = spawner.abort(self, &started) {
                log::warn!(card = self.card, error:% = error; "cannot end the daemon that failed to start");
            }
            let tail = self.dirs.log_file().tail(mark);
            tries -= 1;
            if tries == 0 || Instant::now() >= deadline || !tail.contains(ALREADY_RUNNING) {
                return Err(MpsError::StartFailed { card: self.card, reason: failed, tail });
            }
        }
    }

    /// Servers without a control daemon hold the card: another daemon's could not have it.
    fn refuse_orphans(&self) -> Result<(), MpsError> {
        let pids: Vec<i32> = self.servers_alive().iter().map(Process::pid).collect();
        if pids.is_empty() { Ok(()) } else { Err(MpsError::Orphans { card: self.card, pids }) }
    }

    fn wait_until_it_answers(
        &self,
        spawner: &dyn Spawner,
        started: &Started,
        deadline: Instant,
    ) -> Result<ControlDaemon, String> {
        let begin = Instant::now();
        let mut given_up = None;
        loop {
            let ended = spawner.has_ended(self, started).map_err(|error| error.to_string())?;
            // Asked after that: an end of ours because another was quicker is no failure.
            let running = match self.find_locked() {
                // It has written its pid file, and takes the lock next.
                Err(MpsError::PidFileRefused { .. }) => None,
                other => other.map_err(|error| error.to_string())?,
            };
            if let Some(daemon) = running {
                match self.channel.server_list() {
                    Ok(_) => return Ok(daemon),
                    Err(error) if Instant::now() >= deadline => return Err(error.to_string()),
                    Err(_) => {}
                }
            } else if ended
                && *given_up.get_or_insert_with(|| Instant::now() + QUICKER) <= Instant::now()
            {
                return Err("it ended at once".into());
            } else if Instant::now() >= deadline {
                return Err(format!("it does not answer after {} ms", begin.elapsed().as_millis()));
            }
            std::thread::sleep(POLL);
        }
    }

    /// How it is now. Costs one command for each server and one for the list; up to the channel's
    /// time limit when wedged.
    ///
    /// # Errors
    /// What [`Self::find_running`] and the channel say, other than the states themselves.
    pub fn state(&self) -> Result<MpsState, MpsError> {
        let daemon = match self.find_running() {
            Ok(Some(daemon)) => daemon,
            Ok(None) | Err(MpsError::PidFileRefused { .. }) => return Ok(self.dead()),
            Err(error) => return Err(error),
        };
        let pid = daemon.process.pid();
        match self.servers_for_sure(&daemon) {
            Ok(servers) if servers.iter().any(|server| server.status == ServerStatus::Fault) => {
                Ok(MpsState::Fault { pid, servers })
            }
            Ok(servers) => Ok(MpsState::Running { pid, servers }),
            Err(MpsError::Wedged { .. }) => {
                // With our turn taken, no front-end of ours can be mistaken for the holder.
                let turn = self.channel.take_turn();
                let cause = turn.map_or(WedgeCause::Unknown, |_turn| {
                    self.wedge_cause(&daemon, &Connections::default())
                });
                Ok(MpsState::Wedged { pid, cause })
            }
            Err(_) if !daemon.process.is_alive() => Ok(self.dead()),
            Err(error) => Err(error),
        }
    }

    /// The turn on the channel, until it is dropped: no front-end of ours speaks meanwhile. `None`
    /// where it cannot be had.
    #[must_use]
    pub fn turn(&self) -> Option<impl Sized> {
        self.channel.take_turn().ok()
    }

    /// A channel that glitches is asked again for as long as an answer may take: with a flood of
    /// connections a front-end hangs or is turned away (measured), and both are a wedge.
    fn servers_for_sure(&self, daemon: &ControlDaemon) -> Result<Vec<Server>, MpsError> {
        let deadline = Instant::now() + self.channel.timeout();
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
                return Err(self.channel.wedged());
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
    /// What the channel says.
    pub fn servers(&self) -> Result<Vec<Server>, MpsError> {
        let mut servers = Vec::new();
        for pid in self.channel.server_list()? {
            let status = match self.channel.server_status(pid) {
                // 535 cannot be asked, and its log proves nothing: containers can write there.
                Ok(status) => status,
                // Ended between the two questions.
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
        use std::os::unix::fs::OpenOptionsExt;
        let path = self.dirs.log_fifo();
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let mut fifo = File::options()
            .read(true)
            .custom_flags(flags)
            .open(&path)
            .map_err(|source| MpsError::fs("open", &path, source))?;
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
