//! A CUDA client: `mpsgate probe` in a container of its own, or past MPS on the node. It is started
//! here, told what to do, heard, and ended, with all that it has made.
//!
//! ```text
//! run-probe ─► start, without a deadline: its output is ours ─► ended
//! qualify ───► start, or beside: past MPS ─► step, step, … ─► drop
//! probe --steps ─► beside: one more in its container
//! ```

mod container;

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub(crate) use self::container::{Bundle, Container, Runs};
use crate::error::RunProbeError;

/// What each program finds others by.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Between two looks at a signal or a process.
const POLL: Duration = Duration::from_millis(50);
/// For a container to end by itself.
const END: Duration = Duration::from_secs(3);
/// Of what a container says on stderr: bytes from its end.
const SAID: u64 = 400;

/// Set when a signal comes that would end this program.
pub(crate) fn signals() -> Result<Arc<AtomicBool>, RunProbeError> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(RunProbeError::Signals)?;
    }
    Ok(ended)
}

/// What a step came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Which.
    pub(crate) step: String,
    /// What was allocated in all so far.
    pub(crate) allocated_mib: u64,
    /// What a second client of this container has.
    #[serde(default)]
    pub(crate) beside_mib: u64,
    /// How often its kernel ran in this step.
    #[serde(default)]
    pub(crate) launches: u64,
    /// Whether CUDA says that it is a client of an MPS server, where it tells.
    pub(crate) mps_client: Option<bool>,
    /// What CUDA said no with.
    pub(crate) error: Option<String>,
    /// CUDA's number of it.
    pub(crate) code: Option<i32>,
    /// There is no CUDA here, so that it was not CUDA who said no.
    pub(crate) no_library: bool,
}

impl Step {
    /// What its client has, unless it failed.
    pub(crate) fn mib(&self) -> u64 {
        if self.error.is_none() { self.allocated_mib } else { 0 }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            None => write!(f, "{} MiB", self.allocated_mib),
            Some(why) => f.write_str(why),
        }
    }
}

/// Why a step has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Silent {
    /// The client was never there.
    NotStarted(String),
    /// It has no context, without which it is of no use.
    Unattached(String),
    /// It ended while it was asked.
    Ended(String),
    /// A signal ended it while it was asked, or nobody knows what did.
    Killed(String),
    /// It did not answer in time.
    Hung,
    /// A signal ended us.
    Signal,
}

impl Silent {
    /// Whether it says nothing about the card by itself: on a loaded node a client hangs, or is
    /// killed for its memory.
    pub(crate) fn may_be_chance(&self) -> bool {
        matches!(self, Self::Killed(_) | Self::Hung)
    }
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted(why) => write!(f, "no container: {why}"),
            Self::Unattached(why) => write!(f, "its client did not attach: {why}"),
            Self::Ended(why) | Self::Killed(why) => write!(f, "the client ended: {why}"),
            Self::Hung => f.write_str("no answer in time"),
            Self::Signal => f.write_str("it was broken off"),
        }
    }
}

/// Who runs containers, and where it keeps them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runtime<'a> {
    /// mpsgate-runtime.
    pub(crate) program: &'a Path,
    pub(crate) root: &'a str,
    /// A signal has come.
    pub(crate) ended: &'a AtomicBool,
}

impl<'a> Runtime<'a> {
    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.args(["--root", self.root]).env_clear().env("PATH", PATH);
        command
    }

    /// Ends a container and forgets it.
    fn delete(&self, id: &str) {
        let mut command = self.command();
        command.args(["delete", "--force", id]);
        let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = silent.status();
    }

    /// Ends what a run before left that was killed.
    pub(crate) fn remove_leftovers(&self) {
        for entry in std::fs::read_dir(self.root).into_iter().flatten().flatten() {
            if let Some(id) = entry.file_name().to_str() {
                self.delete(id);
            }
        }
    }

    /// Starts a container. Every answer has to come before `deadline`; without one, what it says is
    /// ours.
    pub(crate) fn start(
        &self,
        id: String,
        bundle: Bundle,
        deadline: Option<Instant>,
    ) -> io::Result<Client<'a>> {
        let mut command = self.command();
        command.arg("run").arg("--bundle").arg(bundle.path()).arg(&id);
        let mut client = Client::spawn(command, self.ended, deadline)?;
        client.container = Some((*self, id, bundle));
        Ok(client)
    }
}

/// `probe --steps`, to be told what to do.
pub(crate) fn steps(program: &Path, library: &OsStr) -> Command {
    let mut command = Command::new(program);
    command.args(["probe", "--steps", "--library"]).arg(library);
    command
}

/// A container of ours, or a process.
pub(crate) struct Client<'a> {
    ended: &'a AtomicBool,
    /// Its bundle goes with its container.
    container: Option<(Runtime<'a>, String, Bundle)>,
    /// What runs it.
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<std::fs::File>,
    started: bool,
    /// `None`: nobody asks it.
    deadline: Option<Instant>,
}

impl<'a> Client<'a> {
    /// Starts a process that is where this one is.
    pub(crate) fn beside(
        command: Command,
        ended: &'a AtomicBool,
        deadline: Instant,
    ) -> Result<Self, Silent> {
        Self::spawn(command, ended, Some(deadline))
            .map_err(|error| Silent::NotStarted(format!("a process of the node: {error}")))
    }

    fn spawn(
        mut command: Command,
        ended: &'a AtomicBool,
        deadline: Option<Instant>,
    ) -> io::Result<Self> {
        let stderr = deadline.map(|_| tempfile::tempfile()).transpose()?;
        if let Some(stderr) = &stderr {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr.try_clone()?);
        } else {
            command.stdin(Stdio::null());
        }
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        let (to, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            // Ends with the pipe, which ends with the container.
            std::thread::spawn(move || {
                let stdout = BufReader::new(stdout.take(1 << 20));
                for line in stdout.lines().map_while(Result::ok) {
                    if to.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let (container, started) = (None, false);
        Ok(Self { ended, container, child, stdin, lines, stderr, started, deadline })
    }

    /// Waits until it has ended; `None` where a signal comes first. The signal would not reach it:
    /// as the first of its PID namespace it takes none but SIGKILL.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        while !self.ended.load(Ordering::Relaxed) {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(POLL);
        }
        Ok(None)
    }

    /// Has it do one thing after the other, until one fails; what the last of these came to.
    pub(crate) fn steps(&mut self, steps: &[&str]) -> Result<Step, Silent> {
        let mut done = Step::default();
        for step in steps {
            done = self.step(step)?;
            if done.error.is_some() {
                break;
            }
        }
        Ok(done)
    }

    /// Has it do something, and waits for what comes of it.
    pub(crate) fn step(&mut self, step: &str) -> Result<Step, Silent> {
        self.tell(step)?;
        self.hear()
    }

    /// Has it do something.
    pub(crate) fn tell(&mut self, step: &str) -> Result<(), Silent> {
        if !self.started {
            self.hear()?;
            self.started = true;
        }
        if let Some(stdin) = &mut self.stdin {
            // Where it has ended, hearing tells.
            let _ = stdin.write_all(format!("{step}\n").as_bytes()).and_then(|()| stdin.flush());
        }
        Ok(())
    }

    /// Its next answer. A driver's library may print what it likes beside.
    pub(crate) fn hear(&mut self) -> Result<Step, Silent> {
        loop {
            if let Ok(step) = serde_json::from_str(&self.line()?) {
                return Ok(step);
            }
        }
    }

    /// Its next line.
    fn line(&mut self) -> Result<String, Silent> {
        loop {
            if self.ended.load(Ordering::Relaxed) {
                return Err(Silent::Signal);
            }
            match self.lines.recv_timeout(POLL) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if self.is_late() => return Err(Silent::Hung),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let how = self.wait(END);
                    let why = format!("{}{}", how.map(in_words).unwrap_or_default(), self.said());
                    return Err(match how {
                        _ if !self.started => Silent::NotStarted(why),
                        Some(status) if is_its_own(status) => Silent::Ended(why),
                        _ => Silent::Killed(why),
                    });
                }
            }
        }
    }

    /// Everything that it prints until it has ended.
    pub(crate) fn all(mut self) -> Result<String, Silent> {
        self.stdin = None;
        let mut text = String::new();
        loop {
            match self.line() {
                Ok(line) => text = format!("{text}{line}\n"),
                Err(Silent::Ended(_) | Silent::Killed(_) | Silent::NotStarted(_)) => break,
                Err(silent) => return Err(silent),
            }
        }
        Ok(format!("{text}{}", self.said()))
    }

    /// Its container's id.
    pub(crate) fn id(&self) -> &str {
        self.container.as_ref().map(|(_, id, _)| id.as_str()).unwrap_or_default()
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The end of what it said on stderr.
    fn said(&mut self) -> String {
        let Some(stderr) = &mut self.stderr else { return String::new() };
        let length = stderr.metadata().map(|file| file.len()).unwrap_or_default();
        let from = io::SeekFrom::Start(length.saturating_sub(SAID));
        let mut said = Vec::new();
        let read = stderr.seek(from).and_then(|_| stderr.read_to_end(&mut said));
        match read {
            Ok(_) => String::from_utf8_lossy(&said).trim().replace('\n', " | "),
            Err(error) => error.to_string(),
        }
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => std::thread::sleep(POLL),
                _ => return None,
            }
        }
    }
}

impl Drop for Client<'_> {
    /// Whatever it does, nothing is left of it.
    fn drop(&mut self) {
        self.stdin = None;
        let hung = self.ended.load(Ordering::Relaxed) || self.is_late();
        if !hung && self.wait(END).is_some() {
            return;
        }
        let delete = |client: &Self| {
            if let Some((runtime, id, _)) = &client.container {
                runtime.delete(id);
            }
        };
        delete(self);
        if self.wait(END).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            // It may have come so far only now.
            delete(self);
        }
    }
}

/// Whether no signal ended it. Runtimes exit with 128 and the signal of their container.
fn is_its_own(status: ExitStatus) -> bool {
    status.code().is_some_and(|code| code <= 128)
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => String::new(),
        (Some(code), _) => format!("exit status {code}: "),
        (None, signal) => format!("signal {}: ", signal.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_a_signal_ended_did_not_end_by_itself() {
        // As wait(2) has them: the exit status is the second byte.
        for (raw, is_own) in
            [(0, true), (1 << 8, true), (127 << 8, true), (137 << 8, false), (139 << 8, false)]
        {
            assert_eq!(is_its_own(ExitStatus::from_raw(raw)), is_own, "{raw}");
        }
        assert!(!is_its_own(ExitStatus::from_raw(9)), "the runtime itself");
    }
}
