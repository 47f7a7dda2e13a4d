//! The socket: who may speak, how much, and for how long. What is said is [`calls`](crate::calls)'.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_api::{Reply, VERSION, WireRefusal, decode_length, parse_envelope};
use mpsgate_host::crash_steps;
use mpsgate_model::{Code, Refusal};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::daemon::Daemon;
use crate::line::{Caller, FRAME_LIMIT, Line};
use crate::{DaemonError, calls};

/// Connections at a time; the next ones wait in the kernel's queue.
const CONNECTIONS: usize = 1024;

/// Makes the socket. Another living daemon is kept out by the ledger's lock before this.
pub(crate) fn bind(path: &Path) -> Result<UnixListener, DaemonError> {
    let steps = crash_steps!("daemon.socket": "bound", "named");
    mpsgate_host::socket::bind(path, steps)
        .and_then(UnixListener::from_std)
        .map_err(|source| DaemonError::Socket { action: "bind", path: path.to_owned(), source })
}

/// Accepts for as long as the process lives.
pub(crate) async fn listen(daemon: Arc<Daemon>, listener: UnixListener) -> Result<(), DaemonError> {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.map_err(|error| {
            DaemonError::Task { task: "accepts connections".to_owned(), why: error.to_string() }
        })?;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, or the caller has gone. Others wait in the queue.
                log::warn!(reason:% = error; "connection not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let shared = Arc::clone(&daemon);
        daemon.spawn("answers a caller", async move {
            let _place = place;
            answer(shared, stream).await
        });
    }
}

async fn answer(daemon: Arc<Daemon>, stream: UnixStream) -> Result<(), DaemonError> {
    let peer = match stream.peer_cred() {
        Ok(peer) => peer,
        Err(error) => {
            log::warn!(reason:% = error; "caller without credentials");
            return Ok(());
        }
    };
    // Root, or whoever this daemon runs as: in tests.
    if peer.uid() != 0 && peer.uid() != rustix::process::geteuid().as_raw() {
        log::warn!(uid = peer.uid(), pid = peer.pid(); "caller is not root");
        return Ok(());
    }
    let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0);
    let (bytes, fd) = match timeout(FRAME_LIMIT, read_frame(&stream)).await {
        Ok(Ok(frame)) => frame,
        Ok(Err(error)) => {
            log::debug!(pid, reason:% = error; "caller sent no frame");
            if error.kind() == io::ErrorKind::InvalidData {
                Line { stream }.send(&garbage(&error.to_string())).await;
            }
            return Ok(());
        }
        Err(_) => {
            log::debug!(pid; "caller was silent");
            return Ok(());
        }
    };
    let mut line = Line { stream };
    let reply = match parse_envelope(&bytes) {
        Err(error) => garbage(&error.to_string()),
        Ok(Err(version)) => {
            log::warn!(pid, version; "caller of another version");
            Reply::Version { daemon: VERSION }
        }
        Ok(Ok(envelope)) => {
            drop(bytes);
            calls::handle(&daemon, &mut line, Caller { pid, fd }, envelope.call).await?
        }
    };
    line.send(&reply).await;
    Ok(())
}

fn garbage(why: &str) -> Reply {
    Reply::Refused(WireRefusal::from(Refusal::new(
        Code::DaemonVersion,
        format!("mpsgated was sent what it does not understand: {why}"),
        "mpsgate's programs are of different versions: reinstall the package",
    )))
}

/// One frame, and the first descriptor that came with it; others are closed.
async fn read_frame(stream: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut fd = None;
    let mut prefix = [0; 4];
    read_exact(stream, &mut prefix, &mut fd).await?;
    let length = decode_length(prefix)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    // Grown as bytes arrive: a caller that only announces a megabyte gets none.
    let mut content = Vec::new();
    while content.len() < length {
        let have = content.len();
        content.resize(length.min(have + 16 * 1024), 0);
        read_exact(stream, &mut content[have..], &mut fd).await?;
    }
    Ok((content, fd))
}

async fn read_exact(
    stream: &UnixStream,
    mut buffer: &mut [u8],
    fd: &mut Option<OwnedFd>,
) -> io::Result<()> {
    while !buffer.is_empty() {
        stream.readable().await?;
        match stream.try_io(Interest::READABLE, || receive(stream, buffer, fd)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn receive(stream: &UnixStream, buffer: &mut [u8], fd: &mut Option<OwnedFd>) -> io::Result<usize> {
    // Room for one; the kernel closes what does not fit.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            for right in rights {
                fd.get_or_insert(right);
            }
        }
    }
    Ok(received.bytes)
}
