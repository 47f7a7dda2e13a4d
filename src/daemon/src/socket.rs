//! The socket: who may speak, how much, and for how long. What is said is [`calls`](crate::calls)'.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_api::{Reply, VERSION, WireRefusal, decode_length, encode, parse_envelope};
use mpsgate_crashpoint::crash_point;
use mpsgate_model::{Code, Refusal};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval_at, timeout};

use crate::daemon::Daemon;
use crate::{DaemonError, calls};

/// Connections at a time; the next ones wait in the kernel's queue.
const CONNECTIONS: usize = 1024;
/// For a whole frame, in either direction.
const FRAME_LIMIT: Duration = Duration::from_secs(2);
/// Before the first progress frame and between two others. Callers wait 2 s for the first, counted from
/// before they were accepted: on a node that starts 200 containers at once that time is short.
const FIRST_PROGRESS: Duration = Duration::from_millis(100);
const PROGRESS: Duration = Duration::from_secs(1);

/// Makes the socket under another name and gives it its own by a rename: it answers from the moment
/// that it can be seen. Whatever else has the name is replaced; another living daemon is kept out
/// by the ledger's lock before this.
pub(crate) fn bind(path: &Path) -> Result<UnixListener, DaemonError> {
    let failed =
        |action| move |source| DaemonError::Socket { action, path: path.to_owned(), source };
    let temporary = path.with_file_name(".mpsgated.sock.new");
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("make room for")(error));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&temporary).map_err(failed("bind"))?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| {
            crash_point!("daemon.socket.bound");
            std::fs::rename(&temporary, path)
        })
        .map_err(failed("name"))?;
    crash_point!("daemon.socket.named");
    Ok(listener)
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

/// Who called.
#[derive(Debug)]
pub(crate) struct Caller {
    /// Its pid in our pid namespace; `None` where it is in one that we cannot see.
    pub(crate) pid: Option<u32>,
    /// The descriptor that came with the call.
    pub(crate) fd: Option<OwnedFd>,
}

/// The way back to a caller.
#[derive(Debug)]
pub(crate) struct Line {
    stream: UnixStream,
}

impl Line {
    /// Sends one frame. A caller that has gone is no error of ours.
    async fn send(&mut self, reply: &Reply) {
        let bytes = encode(reply).or_else(|error| {
            let refusal = Refusal::new(
                Code::DaemonVersion,
                format!("the answer does not fit: {error}"),
                "journalctl -u mpsgated -n 50",
            );
            encode::<Reply>(&Reply::Refused(refusal.into()))
        });
        let Ok(bytes) = bytes else { return };
        if let Ok(Err(error)) = timeout(FRAME_LIMIT, self.stream.write_all(&bytes)).await {
            log::debug!(reason:% = error; "caller has gone");
        }
    }

    /// Whether the caller still holds its end. Its pid is then its own: it was taken when it
    /// connected, and another process can have it only after its death, which closes the end.
    pub(crate) fn is_open(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = rustix::net::recv(&self.stream, &mut [0_u8; 1][..], flags);
        !matches!(peeked, Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET))
    }

    /// Waits for `work`, telling the caller soon and then every second what is waited for.
    pub(crate) async fn wait<T>(&mut self, doing: &str, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut tick = interval_at(tokio::time::Instant::now() + FIRST_PROGRESS, PROGRESS);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                result = &mut work => return result,
                _ = tick.tick() => self.send(&Reply::Progress { doing: doing.to_owned() }).await,
            }
        }
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
