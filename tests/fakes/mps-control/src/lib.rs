//! A double of `nvidia-cuda-mps-control` for tests on machines without a GPU.
//!
//! What the real program shows without a GPU it shows too (measured on 535.261.03 and 550.163.01,
//! checked against both by the contract tests of `mpsgate-mps`): argv, files and their modes,
//! answers, privileges, lenient values, the wedge by one idle connection, what quit and SIGTERM
//! leave behind. `FAKE_MPS_VERSION=535|550|580`, or that number in a file `fake-mps-version`
//! beside the program, picks the differences.
//!
//! It differs in one thing: while a front-end stays, the real one turns others away, and this one
//! makes them wait.
//!
//! Servers and clients are **unverified**: built from NVIDIA's documentation, checked on a real
//! card by `tests/gpu`. The wire between its own front-end, client and daemon is its own. Files in
//! the log directory steer servers: `fake-server-dies` (at once), `fake-server-slow`
//! (INITIALIZING), `fake-fault` (FAULT; what it holds is the pid of the client to blame). `CONTROL client
//! [--alloc MIB]` is a CUDA client, `CONTROL hold N` opens N connections to `control` and says nothing.

mod client;
mod daemon;
mod front_end;
mod state;
mod value;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket,
};
use std::os::fd::AsRawFd;

/// Longest message on the fake's own wire.
const MESSAGE_MAX: usize = 16 * 1024;

/// Runs the program and gives its exit status.
pub fn main() -> u8 {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["-f"] => daemon::run(false),
        ["-d"] => daemon::run_in_background(),
        ["-f", "-multiuser-server"] if version() >= 580 => daemon::run(true),
        ["client", rest @ ..] => client::run(rest),
        ["hold", count] => client::hold(count.parse().unwrap_or(1)),
        // Everything else falls through to the front-end, whatever it says (measured).
        _ => front_end::run(),
    }
}

/// The version whose behaviour is shown: from the environment, or else from the file
/// `fake-mps-version` beside the program, because who runs it properly clears its environment.
fn version() -> u32 {
    let beside = || {
        let program = std::env::current_exe().ok()?;
        std::fs::read_to_string(program.with_file_name("fake-mps-version")).ok()
    };
    let text = std::env::var("FAKE_MPS_VERSION").ok().or_else(beside);
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(550)
}

fn pipe_dir() -> PathBuf {
    std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")
        .map_or_else(|| "/tmp/nvidia-mps".into(), PathBuf::from)
}

fn log_dir() -> PathBuf {
    std::env::var_os("CUDA_MPS_LOG_DIRECTORY")
        .map_or_else(|| "/var/log/nvidia-mps".into(), PathBuf::from)
}

fn seqpacket() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
}

fn connect_to(path: &Path) -> nix::Result<OwnedFd> {
    let fd = seqpacket()?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd)
}

fn send_text(fd: &OwnedFd, text: &str) -> nix::Result<()> {
    // A marker byte: an empty packet would read as the end of the stream.
    let packet = [b"+", text.as_bytes()].concat();
    send(fd.as_raw_fd(), &packet, MsgFlags::MSG_NOSIGNAL).map(drop)
}

/// `None` at the end of the stream.
fn receive_text(fd: &OwnedFd) -> Option<String> {
    let mut buffer = vec![0; MESSAGE_MAX];
    let count = recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()).ok()?;
    let text = buffer.get(1..count)?;
    Some(String::from_utf8_lossy(text).into_owned())
}
