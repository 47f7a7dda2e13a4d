//! The client of a holder: one connection, one question, one answer, within a few seconds.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use super::{Answer, HoldError, MAX_BYTES, Request, decode, encode, socket};

/// A start is a fork and an exec; the rest is a look at a list.
const LIMIT: Duration = Duration::from_secs(5);

/// Asks the holder in `dir`. Blocking, some 5 s at most.
///
/// # Errors
/// [`HoldError::Away`] if none answers; [`HoldError::Stranger`] if the process that answers has
/// another user, pid namespace or IPC namespace; [`HoldError::Message`]; [`HoldError::Refused`].
pub fn ask(dir: &Path, request: &Request) -> Result<Answer, HoldError> {
    let socket = socket(dir);
    let question = encode(request)?;
    let away = |source| HoldError::Away { socket: socket.clone(), source };
    let mut stream = UnixStream::connect(&socket).map_err(away)?;
    check_peer(&socket, &stream)?;
    stream.set_read_timeout(Some(LIMIT)).map_err(away)?;
    stream.set_write_timeout(Some(LIMIT)).map_err(away)?;
    stream.write_all(&question).map_err(away)?;
    stream.shutdown(Shutdown::Write).map_err(away)?;
    let mut answer = Vec::new();
    let cap = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    stream.take(cap).read_to_end(&mut answer).map_err(away)?;
    match decode(&answer)? {
        Answer::Refused(why) => Err(HoldError::Refused { why }),
        answer => Ok(answer),
    }
}

/// Checks that the holder belongs to root and shares this process's pid and IPC namespaces:
/// otherwise its pids would mean other processes here, and its MPS servers would share no memory
/// with the containers' CUDA processes.
fn check_peer(socket: &Path, stream: &UnixStream) -> Result<(), HoldError> {
    let stranger = |why: String| HoldError::Stranger { socket: socket.to_owned(), why };
    let peer = getsockopt(stream, PeerCredentials)
        .map_err(|errno| HoldError::Away { socket: socket.to_owned(), source: errno.into() })?;
    let own = geteuid().as_raw();
    if peer.uid() != own {
        return Err(stranger(format!("runs as uid {}, not {own}", peer.uid())));
    }
    if peer.pid() <= 0 {
        return Err(stranger("is in a pid namespace that cannot be seen from here".into()));
    }
    for kind in ["pid", "ipc"] {
        let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/{kind}")).ok();
        let (its, ours) = (namespace(&peer.pid().to_string()), namespace("self"));
        if its.is_none() || its != ours {
            return Err(stranger(format!("is in another {kind} namespace")));
        }
    }
    Ok(())
}
