//! The errors of this crate. The variant names the object; the remedy is apart.

use std::io;
use std::path::PathBuf;

use crate::supervisor::HoldError;

mod hint;

/// An error of an MPS control daemon, its directories or its channel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MpsError {
    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    Fs {
        /// The operation, as a verb: `open`, `create directory`.
        action: &'static str,
        /// What it was applied to.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot run {}", program.display())]
    Run {
        /// The program's path.
        program: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The root of the directories is relative or contains `..`.
    #[error("the MPS directory {} is not an absolute, plain path", path.display())]
    NotPlainPath {
        /// The path as configured.
        path: PathBuf,
    },
    /// A socket path does not fit into `sockaddr_un`; the control daemon would exit without a
    /// message.
    #[error("the socket path {} has {length} bytes, a Unix socket allows 107", path.display())]
    SocketPathTooLong {
        /// The longest socket path of the card.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// Something other than a directory has the name of one of mpsgate's.
    #[error("{} is not a directory but {found}; it was not made by mpsgate", path.display())]
    Planted {
        /// Its path.
        path: PathBuf,
        /// What it is: `a symbolic link`, `a regular file`.
        found: &'static str,
    },
    /// A directory has the wrong owner.
    #[error("{} belongs to uid {found}, expected uid {expected}", path.display())]
    ForeignOwner {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        found: u32,
        /// The expected owner.
        expected: u32,
    },
    /// Others can write a directory, so nothing in it can be trusted.
    #[error("{} has mode {mode:04o}, which lets others write into it", path.display())]
    WritableByOthers {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file that the control daemon made is gone, or replaced.
    #[error("the control daemon's {} is {found}", path.display())]
    Lost {
        /// The file.
        path: PathBuf,
        /// `missing`, or what was found.
        found: &'static str,
    },
    /// Removal left files behind.
    #[error("left behind: {}", paths.join(", "))]
    LeftBehind {
        /// Each path with the reason.
        paths: Vec<String>,
    },

    /// No control daemon answers in this directory.
    #[error("no MPS control daemon runs in {}", pipe_dir.display())]
    NotRunning {
        /// Its pipe directory.
        pipe_dir: PathBuf,
    },
    /// The control daemon is there and did not answer in time.
    #[error("the MPS control daemon in {} did not answer `{command}` within {after_ms} ms", pipe_dir.display())]
    Wedged {
        /// Its pipe directory.
        pipe_dir: PathBuf,
        /// The command that got no answer.
        command: String,
        /// How long mpsgate waited, in milliseconds.
        after_ms: u128,
    },
    /// Another process of mpsgate kept the channel for too long.
    #[error("the MPS channel is in use, {} stayed locked for {after_ms} ms", lock.display())]
    ChannelBusy {
        /// The lock file.
        lock: PathBuf,
        /// How long mpsgate waited, in milliseconds.
        after_ms: u128,
    },
    /// The front-end failed in the middle of a command.
    #[error("the MPS channel broke during `{command}`: {detail}")]
    ChannelBroken {
        /// The command.
        command: String,
        /// The front-end's output, or its exit status.
        detail: String,
    },
    /// The front-end reported success and printed nothing, twice (measured when front-ends
    /// collide).
    #[error("the MPS control daemon gave no answer to `{command}`")]
    EmptyAnswer {
        /// The command.
        command: String,
    },
    /// The answer is longer than any real one.
    #[error("the answer to `{command}` is longer than {limit} bytes")]
    AnswerTooLong {
        /// The command.
        command: String,
        /// The cap in bytes.
        limit: usize,
    },
    /// This version of the control daemon does not know the command.
    #[error("this MPS control daemon does not know `{command}`")]
    UnknownCommand {
        /// The command.
        command: String,
    },
    /// There is no server with that pid.
    #[error("the MPS control daemon has no server {server}")]
    ServerNotFound {
        /// The pid that was asked for.
        server: i32,
    },
    /// The control daemon refused the command.
    #[error("the MPS control daemon refused `{command}`: {answer}")]
    NotPermitted {
        /// The command.
        command: String,
        /// The answer.
        answer: String,
    },
    /// The answer has no known form.
    #[error("cannot understand the answer to `{command}`: {answer:?}")]
    Unparsable {
        /// The command.
        command: String,
        /// The printed text.
        answer: String,
    },
    /// The limit that was read back is not the one that was set.
    #[error("the memory limit of {limit_mib} MiB was not applied, the control daemon reports {}", answer.as_deref().unwrap_or("none"))]
    LimitNotApplied {
        /// The limit that was sent.
        limit_mib: u32,
        /// The limit that was read back.
        answer: Option<String>,
    },

    /// The control daemon did not come up.
    #[error("the MPS control daemon of card {card} did not start: {reason}{}", tail_text(tail))]
    StartFailed {
        /// The card's number.
        card: u32,
        /// What mpsgate saw.
        reason: String,
        /// The end of its log.
        tail: String,
    },
    /// Servers outlived their control daemon and hold the card.
    #[error(
        "what a dead MPS control daemon left still holds the card: server {}",
        list(pids, ", ")
    )]
    Orphans {
        /// The card's number.
        card: u32,
        /// The servers.
        pids: Vec<i32>,
    },
    /// Another process holds the lock of the control daemon.
    #[error("{} is locked by pid {pid}, which is not our control daemon: {why}", lock.display())]
    Stranger {
        /// The lock file.
        lock: PathBuf,
        /// Its pid.
        pid: i32,
        /// The check that failed.
        why: String,
    },
    /// A control daemon of the card runs that no launcher started, or that has lost its lock.
    #[error(
        "pid {pid} is a control daemon of card {card} without its lock: an older mpsgate started it"
    )]
    Unlocked {
        /// The card's number.
        card: u32,
        /// Its UUID; empty where that is not known.
        uuid: String,
        /// The control daemon.
        pid: i32,
    },
    /// The process survived SIGKILL for as long as mpsgate waited.
    #[error("pid {pid} is still there after SIGKILL")]
    StillRunning {
        /// The process.
        pid: i32,
    },
    /// The holder of control daemons did not start one.
    #[error("the holder did not start the control daemon")]
    Hold(#[source] HoldError),
    /// `systemctl` failed.
    #[error("`systemctl {arguments}` failed: {detail}")]
    Systemctl {
        /// Its arguments.
        arguments: String,
        /// Its output or exit status.
        detail: String,
    },

    /// The card's server runs for another uid; MPS serves one uid at a time.
    #[error("the MPS server {server} of card {card} serves uid {serves}, not uid {wanted}")]
    ServerOfOtherUid {
        /// The card's number.
        card: u32,
        /// The server's pid.
        server: i32,
        /// The uid that it serves.
        serves: u32,
        /// The uid that was asked for.
        wanted: u32,
    },
    /// The server ended right after its start.
    #[error("the MPS server of card {card} for uid {uid} ended at once{}", tail_text(tail))]
    ServerDied {
        /// The card's number.
        card: u32,
        /// The uid that it was to serve.
        uid: u32,
        /// The end of the log.
        tail: String,
    },
    /// The server did not become ready in time.
    #[error(
        "the MPS server of card {card} for uid {uid} is not ready: {status}{}",
        tail_text(tail)
    )]
    ServerNotReady {
        /// The card's number.
        card: u32,
        /// The uid that it was to serve.
        uid: u32,
        /// The last status seen.
        status: String,
        /// The end of the log.
        tail: String,
    },

    /// The GPU's UUID cannot be a file name.
    #[error("{uuid:?} is not a GPU UUID")]
    BadUuid {
        /// The text as given.
        uuid: String,
    },
    /// A lease file cannot be read; it is left unchanged.
    #[error("the compute-mode lease {} cannot be read: {reason}", path.display())]
    LeaseCorrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A lease file has another version's format; it is left unchanged.
    #[error("the compute-mode lease {} has format {found}, this version knows {known}", path.display())]
    LeaseNewer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format of this version.
        known: u32,
    },
}

fn list(pids: &[i32], between: &str) -> String {
    pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

fn tail_text(tail: &str) -> String {
    if tail.is_empty() { String::new() } else { format!("\n{tail}") }
}

impl MpsError {
    /// Wraps a failed file operation.
    pub(crate) fn fs(
        action: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Fs { action, path: path.into(), source: source.into() }
    }

    /// Whether a file or directory is missing.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Fs { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}
