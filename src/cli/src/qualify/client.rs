//! A CUDA client in a container of its own, or past MPS on the node: what it is told to do, and
//! what it answers.

use std::io::{BufRead, BufReader, Read as _, Seek as _, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::container::{Bundle, Container};
use crate::probe::Step;

/// Where the containers of `qualify` are kept: nobody else's, so that what is found there at the
/// beginning is left over, and that mpsgated knows them by it.
pub(super) const ROOT: &str = mpsgate_config::paths::QUALIFY_ROOT;
/// Between two looks at a signal or a process.
const POLL: Duration = Duration::from_millis(50);
/// For a container to end by itself.
const END: Duration = Duration::from_secs(3);
/// Of what a container says on stderr: bytes from its end.
const SAID: u64 = 400;

/// Why a step has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Silent {
    /// The client was never there.
    NotStarted(String),
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
    pub(super) fn may_be_chance(&self) -> bool {
        matches!(self, Self::Killed(_) | Self::Hung)
    }
}

/// What all clients have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node<'a> {
    /// mpsgate-runtime.
    pub(super) runtime: &'a Path,
    /// A signal has come.
    pub(super) ended: &'a AtomicBool,
}

/// A container of ours, or a process.
pub(super) struct Client<'a> {
    node: Node<'a>,
    /// Of the container.
    id: Option<String>,
    /// What runs it.
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: std::fs::File,
    started: bool,
    deadline: Instant,
    /// Goes with its container.
    bundle: Option<Bundle>,
}

impl<'a> Client<'a> {
    /// Starts a container; every answer has to come before `deadline`.
    pub(super) fn start(
        node: Node<'a>,
        id: String,
        container: &Container<'_>,
        deadline: Instant,
    ) -> Result<Self, Silent> {
        let failed = |what: &str, error: std::io::Error| {
            Silent::NotStarted(format!("{what} failed: {error}"))
        };
        let bundle = Bundle::write(container).map_err(|e| failed("a bundle in /run", e))?;
        let mut command = runtime(node.runtime);
        command.arg("run").arg("--bundle").arg(bundle.path()).arg(&id);
        let what = node.runtime.display().to_string();
        let mut client = Self::spawn(node, command, deadline).map_err(|e| failed(&what, e))?;
        client.id = Some(id);
        client.bundle = Some(bundle);
        Ok(client)
    }

    /// Starts a process of the node.
    pub(super) fn beside(
        node: Node<'a>,
        command: Command,
        deadline: Instant,
    ) -> Result<Self, Silent> {
        Self::spawn(node, command, deadline)
            .map_err(|error| Silent::NotStarted(format!("a process of the node: {error}")))
    }

    fn spawn(node: Node<'a>, mut command: Command, deadline: Instant) -> std::io::Result<Self> {
        let stderr = tempfile::tempfile()?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr.try_clone()?);
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
        let (id, started, bundle) = (None, false, None);
        Ok(Self { node, id, child, stdin, lines, stderr, started, deadline, bundle })
    }

    /// Has it do something, and waits for what comes of it.
    pub(super) fn step(&mut self, step: &str) -> Result<Step, Silent> {
        self.tell(step)?;
        self.hear()
    }

    /// Has it do something.
    pub(super) fn tell(&mut self, step: &str) -> Result<(), Silent> {
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
    pub(super) fn hear(&mut self) -> Result<Step, Silent> {
        loop {
            if let Ok(step) = serde_json::from_str(&self.line()?) {
                return Ok(step);
            }
        }
    }

    /// Its next line.
    fn line(&mut self) -> Result<String, Silent> {
        loop {
            if self.node.ended.load(Ordering::Relaxed) {
                return Err(Silent::Signal);
            }
            match self.lines.recv_timeout(POLL) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= self.deadline => {
                    return Err(Silent::Hung);
                }
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
    pub(super) fn all(mut self) -> Result<String, Silent> {
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
    pub(super) fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    /// The end of what it said on stderr.
    fn said(&mut self) -> String {
        let length = self.stderr.metadata().map(|file| file.len()).unwrap_or_default();
        let from = std::io::SeekFrom::Start(length.saturating_sub(SAID));
        let mut said = Vec::new();
        let read = self.stderr.seek(from).and_then(|_| self.stderr.read_to_end(&mut said));
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
        let signalled = self.node.ended.load(Ordering::Relaxed);
        let hung = signalled || Instant::now() >= self.deadline;
        if !hung && self.wait(END).is_some() {
            return;
        }
        if let Some(id) = &self.id {
            delete(self.node.runtime, id);
        }
        if self.wait(END).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            // It may have come so far only now.
            if let Some(id) = &self.id {
                delete(self.node.runtime, id);
            }
        }
        self.bundle = None;
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

fn runtime(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--root", ROOT]).env_clear();
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// Ends a container and forgets it.
fn delete(program: &Path, id: &str) {
    let mut command = runtime(program);
    command.args(["delete", "--force", id]);
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _ = silent.status();
}

/// Ends what a run before left that was killed.
pub(super) fn remove_leftovers(program: &Path) {
    for entry in std::fs::read_dir(ROOT).into_iter().flatten().flatten() {
        if let Some(id) = entry.file_name().to_str() {
            delete(program, id);
        }
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
