//! The program: socket, children, end.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use caps::{CapSet, Capability};
use mpsgate_host::crash::Steps;
use mpsgate_host::{crash_point, fd_store, file};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, geteuid};

use super::socket_store::Store;
use super::{Answer, HoldError, MAX_BYTES, Request, Start, decode, encode, rules, socket};
use crate::file_lock;
use crate::mps_process::seen_by;
use crate::root::Root;
use crate::sys;

/// NVIDIA's documentation asks for this many descriptors.
const NOFILE: u64 = 16_384;
/// Capabilities that no control daemon needs: its unit leaves them out, too. A privileged pod has
/// them all.
const UNNEEDED: [Capability; 13] = [
    Capability::CAP_AUDIT_CONTROL,
    Capability::CAP_AUDIT_READ,
    Capability::CAP_AUDIT_WRITE,
    Capability::CAP_BLOCK_SUSPEND,
    Capability::CAP_LINUX_IMMUTABLE,
    Capability::CAP_MAC_ADMIN,
    Capability::CAP_MAC_OVERRIDE,
    Capability::CAP_SYSLOG,
    Capability::CAP_SYS_BOOT,
    Capability::CAP_SYS_PACCT,
    Capability::CAP_SYS_TIME,
    Capability::CAP_SYS_TTY_CONFIG,
    Capability::CAP_WAKE_ALARM,
];
/// The time for a whole question. Only root can ask, and it asks at once.
const QUESTION: Duration = Duration::from_secs(2);
/// After `quit`, after SIGTERM and after SIGKILL: together less than a pod's 30 s.
const STEPS: [Duration; 3] =
    [Duration::from_secs(6), Duration::from_secs(3), Duration::from_secs(3)];
/// The time that `quit` gives clients before it ends their server: mpsgated's own.
const QUIT: &str = "quit -t 1\n";
const POLL: Duration = Duration::from_millis(10);

/// The paths of a holder and of its programs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its own directory, for socket and lock.
    pub dir: PathBuf,
    /// The cards' directories.
    pub mps: PathBuf,
    /// The only control program that it starts; with a gate, it starts any that a request names.
    pub control: PathBuf,
    /// The gates' program; `None` if another process starts gates, as a container of the pod.
    pub gate: Option<PathBuf>,
    /// The program that becomes a control daemon: `mpsgated`, whose `launch` is [`crate::launch`].
    pub launcher: PathBuf,
}

/// Holds control daemons until SIGTERM or SIGINT, and ends them then. The calling thread must be
/// the process's only one.
///
/// # Errors
/// If it cannot begin: [`HoldError::Locked`], [`HoldError::Unsafe`], [`HoldError::Fs`],
/// [`HoldError::System`].
pub fn serve(options: &Options) -> Result<(), HoldError> {
    sys::hand_on_no_descriptors();
    let system = |action| move |errno: Errno| HoldError::System { action, source: errno.into() };
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD] {
        signals.add(signal);
    }
    signals.thread_block().map_err(system("block signals"))?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(system("receive signals"))?;
    // A server outlives a control daemon that is killed, and would stay a zombie.
    set_child_subreaper(true).map_err(system("become a subreaper"))?;
    raise_nofile().map_err(system("look at the limit of descriptors"))?;
    bound_capabilities();
    let mut holder = Holder::bind(options)?;
    say(&format!("ready at {}, for {}", holder.socket.display(), options.control.display()));
    serve_until(&mut holder, &signals, |signals| {
        let mut stop = false;
        while let Ok(Some(info)) = signals.read_signal() {
            stop |= i32::try_from(info.ssi_signo).is_ok_and(|number| number != libc::SIGCHLD);
        }
        stop
    })?;
    holder.stop();
    Ok(())
}

/// Serves until `ended` returns true, which is asked when `signals` can be read.
fn serve_until<F: AsFd>(
    holder: &mut Holder,
    signals: &F,
    mut ended: impl FnMut(&F) -> bool,
) -> Result<(), HoldError> {
    loop {
        let mut fds = [
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(holder.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(holder.store.listener(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(HoldError::System { action: "wait", source: errno.into() }),
        }
        if ended(signals) {
            return Ok(());
        }
        // Before the next question, which may be for the card whose daemon has just ended.
        holder.reap();
        match holder.listener.accept() {
            Ok((stream, _)) => holder.answer(stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                say(&format!("connection not accepted: {error}"));
                std::thread::sleep(POLL);
            }
        }
        if let Err(error) = holder.store.answer() {
            say(&format!("a gate is not answered: {error}"));
            std::thread::sleep(POLL);
        }
    }
}

/// Raises the limit, which children inherit. Raising the hard limit takes CAP_SYS_RESOURCE; without
/// it the result is the most that this process may have.
pub(super) fn raise_nofile() -> nix::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.max(NOFILE);
    setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted)
        .or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, hard, hard))
}

/// Drops capabilities for all programs that are started from now on. If the kernel forbids that,
/// this process has none to pass on.
fn bound_capabilities() {
    for capability in UNNEEDED {
        if let Err(error) = caps::drop(None, CapSet::Bounding, capability) {
            return say(&format!("control daemons keep {capability}: {error}"));
        }
    }
}

fn say(line: &str) {
    // The control daemons must be held even if nobody reads this output any more.
    let _ = writeln!(io::stderr(), "hold: {line}");
}

/// The state of the holder.
#[derive(Debug)]
struct Holder {
    options: Options,
    socket: PathBuf,
    listener: UnixListener,
    /// Locked for as long as this process lives.
    _lock: File,
    /// Control daemons by their card.
    held: BTreeMap<u32, Pid>,
    /// The program of each daemon: its front-end is the same program. On a host the settings may
    /// name another one by now.
    programs: BTreeMap<u32, PathBuf>,
    /// Gates by their card.
    gates: BTreeMap<u32, Pid>,
    store: Store,
}

impl Holder {
    fn bind(options: &Options) -> Result<Self, HoldError> {
        let (dir, mps) = (&options.dir, &options.mps);
        // mpsgated uses the directories above, and the cards', too: containers must reach their
        // directories below them.
        let above = [dir.parent(), mps.parent(), Some(mps.as_path())].into_iter().flatten();
        for (path, mode) in above.map(|path| (path, 0o711)).chain([(dir.as_path(), 0o700)]) {
            file::make_directory(path, mode).map_err(HoldError::fs("create", path))?;
        }
        let found = fs::symlink_metadata(dir).map_err(HoldError::fs("look at", dir))?;
        let (uid, mode) = (found.uid(), found.mode() & 0o7777);
        if !found.is_dir() || uid != geteuid().as_raw() || mode & 0o077 != 0 {
            return Err(HoldError::Unsafe { path: dir.clone(), uid, mode });
        }
        let path = dir.join("lock");
        let lock = file_lock::open(&path).map_err(HoldError::fs("open", &path))?;
        if lock.try_lock().is_err() {
            return Err(HoldError::Locked { path });
        }
        if let Some(Root { dev, ino }) = Root::of(Path::new("/proc/self")) {
            let path = Root::file(dir);
            fs::write(&path, format!("{dev} {ino}\n")).map_err(HoldError::fs("write", path))?;
        }
        let socket = socket(dir);
        let listener = mpsgate_host::bound_socket::bind(&socket, Steps::NONE)
            .map_err(HoldError::fs("bind", &socket))?;
        let store = Store::bind(mps).map_err(HoldError::fs("bind", fd_store::socket(mps)))?;
        let options = options.clone();
        let (held, gates) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self {
            options,
            socket,
            listener,
            _lock: lock,
            held,
            programs: BTreeMap::new(),
            gates,
            store,
        })
    }

    /// A question that cannot be read or answered is logged, and ends.
    fn answer(&mut self, mut stream: UnixStream) {
        let mut answer = match read(&mut stream) {
            Ok(question) => self.decide(&question).unwrap_or_else(|error| {
                let mut why = error.to_string();
                if let Some(source) = std::error::Error::source(&error) {
                    why.push_str(&format!(": {source}"));
                }
                Answer::Refused(why)
            }),
            Err(error) => {
                say(&format!("question not read: {error}"));
                return;
            }
        };
        if let Answer::Refused(why) = &mut answer {
            *why = why.replace(['\n', '\r', '\0'], " ");
            say(&format!("refused: {why}"));
        }
        if let Ok(bytes) = encode(&answer)
            && let Err(error) = stream.write_all(&bytes)
        {
            say(&format!("answer not taken: {error}"));
        }
    }

    fn decide(&mut self, question: &[u8]) -> Result<Answer, HoldError> {
        let start = match decode(question)? {
            Request::Check => return Ok(Answer::Ready(self.held.len())),
            Request::StartGate(card) => return self.start_gate(card),
            Request::Start(start) => start,
        };
        // A pod's manifest names the program; on a host mpsgated's settings do, and change.
        let own = self.options.gate.is_some();
        let control = if own { &start.program } else { &self.options.control };
        if let Some(why) = rules::objection(&start, control, &self.options.mps) {
            return Ok(Answer::Refused(why));
        }
        if let Some(pid) = self.held.get(&start.card) {
            let why = format!("the control daemon of card {} lives, pid {pid}", start.card);
            return Ok(Answer::Refused(why));
        }
        let pid = spawn(self.launcher(&start), &start.log)?;
        crash_point!("hold.control_started");
        say(&format!("card {} ({}): control daemon {pid} started", start.card, start.uuid));
        self.held.insert(start.card, pid);
        self.programs.insert(start.card, start.program);
        Ok(Answer::Started(pid.as_raw()))
    }

    /// The launcher becomes the control daemon and keeps its pid.
    fn launcher(&self, start: &Start) -> Command {
        let mut command = Command::new(&self.options.launcher);
        command.args(["launch", "--card", &start.card.to_string(), "--mps"]);
        command.arg(&self.options.mps).arg("--").arg(&start.program).args(&start.arguments);
        command.env_clear().envs(start.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts a gate. A second gate would end at once, because the first has the lock; so would one
    /// beside an earlier holder's.
    fn start_gate(&mut self, card: u32) -> Result<Answer, HoldError> {
        let Some(program) = &self.options.gate else { return Ok(Answer::GatesByOrder) };
        if let Some(pid) = self.gates.get(&card) {
            return Ok(Answer::Refused(format!("the gate of card {card} lives, pid {pid}")));
        }
        let mut command = Command::new(program);
        command.args(["--card", &card.to_string(), "--mps"]).arg(&self.options.mps).env_clear();
        let log = self.options.mps.join(card.to_string()).join("log/gate.log");
        let pid = spawn(command, &log)?;
        crash_point!("hold.gate_started");
        say(&format!("card {card}: gate {pid} started"));
        self.gates.insert(card, pid);
        Ok(Answer::Started(pid.as_raw()))
    }

    /// Reaps every child that has ended, including servers without their control daemon.
    fn reap(&mut self) {
        loop {
            let status = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return,
                Ok(status) => status,
                Err(Errno::EINTR) => continue,
                Err(errno) => return say(&format!("cannot wait for children: {errno}")),
            };
            let how = match status {
                WaitStatus::Exited(_, code) => format!("exit status {code}"),
                WaitStatus::Signaled(_, signal, _) => format!("{signal}"),
                _ => continue,
            };
            for (what, children) in [("control daemon", &mut self.held), ("gate", &mut self.gates)]
            {
                let card = children.iter().find(|(_, pid)| Some(**pid) == status.pid());
                let Some((card, pid)) = card.map(|(card, pid)| (*card, *pid)) else { continue };
                children.remove(&card);
                say(&format!("card {card}: {what} {pid} ended, {how}"));
            }
        }
    }

    /// Ends all: they would be terminated with the container anyway, and only `quit` leaves no
    /// client in an undefined state.
    fn stop(&mut self) {
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(fd_store::socket(&self.options.mps));
        self.reap();
        say(&format!("ends, and {} control daemons with it", self.held.len()));
        for pid in self.gates.values() {
            let _ = kill(*pid, Signal::SIGTERM);
        }
        let mut quits: Vec<Child> = Vec::new();
        for (card, pid) in &self.held {
            match self.quit(*card, *pid) {
                Ok(child) => quits.push(child),
                Err(error) => say(&format!("card {card}: cannot say quit: {error}")),
            }
        }
        let ways = [None, Some(Signal::SIGTERM), Some(Signal::SIGKILL)];
        for (signal, limit) in ways.into_iter().zip(STEPS) {
            for (card, pid) in &self.held {
                let Some(signal) = signal else { continue };
                say(&format!("card {card}: {signal} to control daemon {pid}"));
                let _ = kill(*pid, signal);
            }
            let until = Instant::now() + limit;
            while !self.held.is_empty() && Instant::now() < until {
                self.reap();
                std::thread::sleep(POLL);
            }
            if self.held.is_empty() {
                break;
            }
        }
        for mut quit in quits {
            // A front-end that hangs at a wedged channel. In most cases it was reaped above, and
            // both fail.
            let _ = quit.kill();
            let _ = quit.wait();
        }
    }

    /// Starts the front-end, which is the same program without arguments. Only the daemon, a child
    /// of the holder, is in its mount namespace with its directory.
    fn quit(&self, card: u32, daemon: Pid) -> io::Result<Child> {
        let base = self.options.mps.join(card.to_string());
        let pipe = seen_by(daemon.as_raw(), &base.join("pipe"));
        let program = self.programs.get(&card).unwrap_or(&self.options.control);
        let mut command = Command::new(program);
        sys::unblock_signals(&mut command);
        let mut child = command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", base.join("log"))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // It fits into the pipe; a front-end that has ended reads nothing.
            let _ = stdin.write_all(QUIT.as_bytes());
        }
        Ok(child)
    }
}

/// Reads the whole question, from root in a visible pid namespace.
fn read(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(QUESTION))?;
    let peer = getsockopt(stream, PeerCredentials)?;
    if peer.uid() != geteuid().as_raw() || peer.pid() <= 0 {
        return Err(io::Error::other(format!("asked by uid {}, pid {}", peer.uid(), peer.pid())));
    }
    let until = Instant::now() + QUESTION;
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Zero would mean no limit.
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if bytes.len() > MAX_BYTES || left.is_zero() {
            return Err(io::Error::other("too long, or too slow"));
        }
    }
}

/// Starts a program in a process group of its own, with no inherited descriptor; `command` has its
/// whole environment. It is reaped with all others.
fn spawn(mut command: Command, log: &Path) -> Result<Pid, HoldError> {
    let errors = open_log(log).map_err(HoldError::fs("open", log))?;
    let out = errors.try_clone().map_err(HoldError::fs("open", log))?;
    sys::unblock_signals(&mut command);
    let program = PathBuf::from(command.get_program());
    let child = command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(HoldError::fs("run", program))?;
    Ok(Pid::from_raw(i32::try_from(child.id()).unwrap_or_default()))
}

/// Opens a log to append: mpsgated trims it.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    let mut open = OpenOptions::new();
    open.append(true).create(true).mode(0o640).custom_flags(libc::O_NOFOLLOW).open(path)
}

#[cfg(test)]
mod tests;
