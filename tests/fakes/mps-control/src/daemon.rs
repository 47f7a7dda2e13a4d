//! The control daemon's files, sockets and loop. It serves one front-end at a time and waits for
//! each without a limit, which is the real one's weakness.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::socket::{
    Backlog, SockFlag, UnixAddr, accept4, bind, getsockopt, listen, setsockopt, sockopt,
};

use crate::state::{Peer, Reply, State};
use crate::wire::{self, connect_to, receive_text, say_text, seqpacket, word};
use crate::{log_dir, pipe_dir, version};

const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
const SUN_PATH_MAX: usize = 107;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: u8 = 100;
/// Set for the process that `-d` leaves behind: it logs to files.
const BACKGROUND: &str = "FAKE_MPS_BACKGROUND";

/// `-d`: starts the daemon and returns once it listens.
pub(crate) fn run_in_background() -> u8 {
    let privileged = pipe_dir().join("control_privileged");
    let child = Command::new("/proc/self/exe")
        .arg("-f")
        .env(BACKGROUND, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn();
    let Ok(mut child) = child else { return 1 };
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return u8::try_from(status.code().unwrap_or(1)).unwrap_or(1);
        }
        // Another daemon's socket does not count.
        let listener =
            connect_to(&privileged).and_then(|fd| getsockopt(&fd, sockopt::PeerCredentials));
        if listener.is_ok_and(|listener| listener.pid().cast_unsigned() == child.id()) {
            return 0;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `-f`.
pub(crate) fn run(multiuser: bool) -> u8 {
    // It looks at the cards first, and without any its words are those for an unknown option
    // (measured on 580.159.04, on an H200).
    if version() >= 580 && std::env::var_os("CUDA_VISIBLE_DEVICES").is_some_and(|of| of.is_empty())
    {
        eprintln!("Cannot find MPS control daemon process");
        return NO_DEVICE;
    }
    let (pipe, logs) = (pipe_dir(), log_dir());
    if !pipe.is_dir() && !make_dir(&pipe, 0o777) {
        eprintln!("Cannot access CUDA_MPS_PIPE_DIRECTORY={}", pipe.display());
        return 1;
    }
    let Some(_lock) = take_lock(&pipe.join("control_lock")) else {
        eprintln!("An instance of this daemon is already running");
        return 1;
    };
    if !logs.is_dir() {
        make_dir(&logs, 0o700);
    }
    let log: File = if std::env::var_os(BACKGROUND).is_some() {
        let _ = File::create(logs.join("server.log"));
        match OpenOptions::new().append(true).create(true).open(logs.join("control.log")) {
            Ok(file) => file,
            Err(_) => return 1,
        }
    } else {
        match std::io::stdout().as_fd().try_clone_to_owned() {
            Ok(stdout) => File::from(stdout),
            Err(_) => return 1,
        }
    };
    let mut state = State::new(log, multiuser);
    state.log(
        "Control",
        std::process::id(),
        &format!("Starting control daemon using socket {}", pipe.join("control").display()),
    );
    state.log(
        "Control",
        std::process::id(),
        &format!(
            "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={}",
            pipe.display()
        ),
    );
    // Too long for sockaddr_un: exits without a word (measured).
    if pipe.join("control_privileged").as_os_str().len() > SUN_PATH_MAX {
        return 1;
    }
    ignore_sigpipe();
    let sockets = (
        make_socket(&pipe.join("control_privileged"), 0o755),
        make_socket(&pipe.join("control"), 0o666),
    );
    let (Some(privileged), Some(control)) = sockets else { return 1 };
    make_fifo(&pipe.join("log"));
    state.read_records(&pipe.join("log"));
    if version() > 535 {
        let path = pipe.join(PID_FILE);
        let _ = fs::write(&path, format!("{}\n", std::process::id()));
        let _ = fs::set_permissions(&path, Permissions::from_mode(0o666));
    }
    let status = serve(&mut state, &privileged, &control);
    let _ = fs::remove_file(pipe.join("log"));
    let _ = fs::remove_file(pipe.join(PID_FILE));
    status
}

fn make_dir(path: &Path, mode: u32) -> bool {
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .is_ok()
}

/// A POSIX write lock on the whole file, held until we end.
fn take_lock(path: &Path) -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o666)
        .open(path)
        .ok()?;
    let _ = fs::set_permissions(path, Permissions::from_mode(0o666));
    let lock = libc::flock {
        l_type: libc::c_short::try_from(libc::F_WRLCK).ok()?,
        l_whence: libc::c_short::try_from(libc::SEEK_SET).ok()?,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_SETLK(&lock)).ok()?;
    Some(file)
}

fn make_socket(path: &Path, mode: u32) -> Option<OwnedFd> {
    let _ = fs::remove_file(path);
    let fd = seqpacket().ok()?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path).ok()?).ok()?;
    fs::set_permissions(path, Permissions::from_mode(mode)).ok()?;
    // As the real one's (measured: the 130th of idle connections finds it full).
    listen(&fd, Backlog::new(128).ok()?).ok()?;
    Some(fd)
}

fn make_fifo(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = nix::unistd::mkfifo(path, nix::sys::stat::Mode::from_bits_truncate(0o777));
    let _ = fs::set_permissions(path, Permissions::from_mode(0o777));
}

fn ignore_sigpipe() {
    #[allow(unsafe_code, reason = "JUSTIFICATION: a daemon must outlive a reader of its stdout")]
    // SAFETY: ignoring a signal installs no handler.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
}

fn serve(state: &mut State, privileged: &OwnedFd, control: &OwnedFd) -> u8 {
    loop {
        state.tick();
        let ready = {
            let mut fds =
                [privileged, control].map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
            let _ = poll(&mut fds, 10u16);
            [0, 1].map(|index| fds[index].any().unwrap_or(false))
        };
        for (listener, ready) in [(privileged, ready[0]), (control, ready[1])] {
            if ready
                && let Some(status) =
                    serve_one(state, listener, listener.as_raw_fd() == privileged.as_raw_fd())
            {
                return status;
            }
        }
    }
}

/// Serves one connection to its end; `Some` when the daemon is to quit.
fn serve_one(state: &mut State, listener: &OwnedFd, privileged: bool) -> Option<u8> {
    let fd = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC).ok()?;
    #[allow(unsafe_code, reason = "JUSTIFICATION: nix's accept4 returns a raw descriptor")]
    // SAFETY: accept4 has just made it for us alone.
    let connection = unsafe { OwnedFd::from_raw_fd(fd) };
    state.log("Control", std::process::id(), "Accepting connection...");
    let _ = setsockopt(&connection, sockopt::PassCred, &true);
    // Whoever asks whether we are there closes before it says who it is, as libcuda does
    // (measured).
    let _ = wire::say(connection.as_fd(), wire::HELLO);
    // Waits for whoever says nothing, for ever: one idle connection wedges everybody.
    let who = wire::receive(connection.as_fd())
        .filter(|message| message.bytes == wire::WHO)
        .and_then(|message| message.sender);
    let Some(who) = who else {
        state.log("Control", std::process::id(), "User did not send valid credentials");
        return None;
    };
    let peer = Peer { pid: who.pid(), uid: who.uid(), privileged };
    match wire::receive(connection.as_fd())?.int() {
        Some(word::FRONT_END) => serve_front_end(state, &connection, &peer),
        Some(word::CLIENT) => {
            state.attach(connection, peer);
            None
        }
        Some(word::SERVER) => {
            state.take_server(connection, &peer);
            None
        }
        // As the real one: the descriptor is lost for ever (measured on 535 and 550).
        _ => {
            state.log("Control", std::process::id(), "Unknown type of connection");
            state.lose(connection);
            None
        }
    }
}

fn serve_front_end(state: &mut State, connection: &OwnedFd, peer: &Peer) -> Option<u8> {
    let connection = connection.as_fd();
    state.log("Control", std::process::id(), "NEW UI");
    while let Some(line) = receive_text(connection) {
        state.log("Control", std::process::id(), &format!("Cmd:{line}"));
        match state.execute(&line, peer) {
            Reply::Text(text) => {
                for line in text.lines() {
                    state.log("Control", std::process::id(), line);
                }
                let _ = say_text(connection, &text);
            }
            Reply::Quit(grace) => {
                let status = quit(state, grace);
                state.log("Control", std::process::id(), &format!("Exit with status {status}"));
                let _ = say_text(connection, &format!("\u{0}quit {status}"));
                return Some(status);
            }
        }
    }
    state.log("Control", std::process::id(), "UI closed");
    None
}

/// Waits for the clients, then ends the servers. Without a time it waits for ever.
fn quit(state: &mut State, grace: Option<Duration>) -> u8 {
    let deadline = grace.map(|grace| Instant::now() + grace);
    let mut waiting = VecDeque::from([()]);
    while waiting.pop_front().is_some() {
        state.tick();
        if state.has_clients() && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            std::thread::sleep(Duration::from_millis(10));
            waiting.push_back(());
        }
    }
    state.end_servers()
}
