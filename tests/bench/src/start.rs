//! How long mpsgated takes from its exec to READY=1 on systemd's socket.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::node::{self, CARDS};
use crate::{Failure, Workplace};

/// Starts of each kind beside the first.
const STARTS: usize = 20;
/// For READY=1, and for an end.
const LIMIT: Duration = Duration::from_secs(60);

/// The first argument of the floor: a program of this kind (dynamic, Rust) that says READY=1 and
/// ends.
pub(crate) const FLOOR: &str = "--ready-at-once";

/// Starts on a node of so many cards, on which nothing runs.
pub(crate) struct Start {
    pub(crate) cards: usize,
    /// The first one, which starts the cards' control daemons.
    pub(crate) first: Duration,
    /// Later ones, which find them alive. Sorted, as is `floor`.
    pub(crate) again: Vec<Duration>,
    pub(crate) floor: Vec<Duration>,
}

/// The middle of sorted times.
pub(crate) fn median(times: &[Duration]) -> Duration {
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The floor's whole work.
pub(crate) fn ready_at_once() -> Result<(), Failure> {
    let path = std::env::var("NOTIFY_SOCKET")?;
    UnixDatagram::unbound()?.send_to(b"READY=1\n", path)?;
    Ok(())
}

/// Starts on nodes of no card, one, and all. The control daemons of the last one go on.
pub(crate) fn measure(at: &Workplace) -> Result<Vec<Start>, Failure> {
    eprintln!("measuring: starts of mpsgated");
    let path = at.scratch.join("notify");
    let socket = UnixDatagram::bind(&path)?;
    socket.set_read_timeout(Some(LIMIT))?;
    [0, 1, CARDS].into_iter().map(|cards| starts(at, &socket, &path, cards)).collect()
}

fn starts(
    at: &Workplace,
    socket: &UnixDatagram,
    path: &Path,
    cards: usize,
) -> Result<Start, Failure> {
    node::prepare(at, cards)?;
    let one = || -> Result<Duration, Failure> {
        let mut daemon = node::command(at)?;
        daemon.env("NOTIFY_SOCKET", path);
        let (took, daemon) = until_ready(daemon, socket)?;
        stop(daemon, socket)?;
        Ok(took)
    };
    let first = one()?;
    let (mut again, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let mut program = Command::new(std::env::current_exe()?);
        program.arg(FLOOR).env("NOTIFY_SOCKET", path);
        let (took, mut ended) = until_ready(program, socket)?;
        ended.wait()?;
        floor.push(took);
        again.push(one()?);
    }
    again.sort();
    floor.sort();
    Ok(Start { cards, first, again, floor })
}

fn until_ready(mut program: Command, socket: &UnixDatagram) -> Result<(Duration, Child), Failure> {
    let start = Instant::now();
    let mut child = program.spawn()?;
    let mut message = [0; 1024];
    loop {
        let length = socket.recv(&mut message).map_err(|error| {
            let _ = child.kill();
            let _ = child.wait();
            format!("{:?} was not ready: {error}", program.get_program())
        })?;
        let took = start.elapsed();
        if message.get(..length).is_some_and(|said| said.starts_with(b"READY=1")) {
            return Ok((took, child));
        }
    }
}

/// Ends the daemon as systemd does, and forgets what it said.
fn stop(mut daemon: Child, socket: &UnixDatagram) -> Result<(), Failure> {
    kill(Pid::from_raw(daemon.id().try_into()?), Signal::SIGTERM)?;
    let status = daemon.wait()?;
    if !status.success() {
        return Err(format!("mpsgated ended with {status}").into());
    }
    socket.set_nonblocking(true)?;
    while socket.recv(&mut [0; 1024]).is_ok() {}
    Ok(socket.set_nonblocking(false)?)
}
