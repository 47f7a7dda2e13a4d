//! The socket: who may speak, how much, and for how long. What is said is [`calls`](crate::calls)'.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use mpsgate_api::{FrameError, Reply, VERSION, WireRefusal, decode_length, parse_envelope};
use mpsgate_config::RunGroup;
use mpsgate_host::crash_steps;
use mpsgate_host::seats::{Full, Seat, Seats};
use mpsgate_model::{Code, Refusal};
use nix::unistd::Group;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::daemon::Daemon;
use crate::line::{Caller, FRAME_LIMIT, Line, Speaker};
use crate::user_database::{self, Members, Served};
use crate::{DaemonError, calls};

/// Connections of root's at a time; the next ones wait in the kernel's queue.
const CONNECTIONS: usize = 1024;
/// Of each of the sockets for users, so that they keep nobody else waiting; and of each user. A job
/// has up to some hundred tasks on a node, which ask together.
const USERS: usize = 512;
const EACH: usize = 256;
/// Between two looks for a seat where all are served.
const FULL: Duration = Duration::from_millis(50);
/// Between two looks for a group that is not there.
const GROUP: Duration = Duration::from_secs(30);

/// Makes the socket. Another living daemon is kept out by the ledger's lock before this.
pub(crate) fn bind(path: &Path) -> Result<UnixListener, DaemonError> {
    let steps = crash_steps!("daemon.socket": "bound", "named");
    mpsgate_host::bound_socket::bind(path, steps)
        .and_then(UnixListener::from_std)
        .map_err(|source| DaemonError::Socket { action: "bind", path: path.to_owned(), source })
}

/// Serves users of `run.group`, where there is one.
pub(crate) async fn serve_users(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    let path = daemon.paths.run_socket();
    let RunGroup::Named(group) = daemon.settings.now().run.group.clone() else {
        // One of settings before these.
        let _ = std::fs::remove_file(&path);
        return Ok(());
    };
    let mut told = false;
    let gid = loop {
        let name = group.clone();
        match daemon.blocking(move |_| Group::from_name(&name)).await {
            Ok(Some(found)) => break found.gid,
            found => {
                if !told {
                    let reason = found
                        .err()
                        .map_or_else(|| "there is no such group".to_owned(), |e| e.to_string());
                    log::error!(group = group.as_str(), reason = reason.as_str(),
                        hint = "groupadd --system NAME; run.group in /etc/mpsgate/config.toml";
                        "users cannot run processes with GPU memory");
                }
                told = true;
                tokio::time::sleep(GROUP).await;
            }
        }
    };
    let listener = bind(&path)?;
    let open = |source| DaemonError::Socket { action: "open", path: path.clone(), source };
    std::os::unix::fs::chown(&path, None, Some(gid.as_raw())).map_err(open)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).map_err(open)?;
    log::info!(group = group.as_str(); "users of a group may run processes with GPU memory");
    let members = Members { name: group, gid: gid.as_raw() };
    listen_to_users(daemon, listener, Speaker::User, Served::of(Some(members))).await
}

/// Serves processes of Slurm's jobs, where the settings say so.
pub(crate) async fn serve_jobs(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    let path = daemon.paths.slurm_socket();
    if !daemon.settings.now().slurm.jobs {
        // One of settings before these.
        let _ = std::fs::remove_file(&path);
        return Ok(());
    }
    let listener = bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))
        .map_err(|source| DaemonError::Socket { action: "open", path: path.clone(), source })?;
    log::info!("jobs of Slurm get what it has given them of a GPU");
    listen_to_users(daemon, listener, Speaker::Job, Served::of(None)).await
}

/// Accepts root's for as long as the process lives.
pub(crate) async fn listen(daemon: Arc<Daemon>, listener: UnixListener) -> Result<(), DaemonError> {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.map_err(|error| {
            DaemonError::Task { task: "accepts connections".to_owned(), why: error.to_string() }
        })?;
        let stream = accept(&listener).await;
        let shared = Arc::clone(&daemon);
        daemon.spawn("answers a caller", async move {
            let _place = place;
            answer(shared, stream, Speaker::Root, None).await;
            Ok(())
        });
    }
}

/// The same for users. One that says nothing gives its seat to who comes.
async fn listen_to_users(
    daemon: Arc<Daemon>,
    listener: UnixListener,
    speaker: Speaker,
    served: Served,
) -> Result<(), DaemonError> {
    let seats = Seats::new(USERS);
    let served = Arc::new(served);
    // What users bring about is told the 1st, 2nd, 4th, 8th time and so on: they can do it as often
    // as they like.
    let mut closed: u64 = 0;
    loop {
        let stream = accept(&listener).await;
        let user = stream.peer_cred().map(|peer| peer.uid()).unwrap_or_default();
        let taken = loop {
            let (tell, gives_way) = oneshot::channel();
            let ends = Box::new(move || {
                let _ = tell.send(());
            });
            match seats.take(user, EACH, ends) {
                Ok(seat) => break Some((seat, gives_way)),
                Err(Full::Own) => break None,
                // Of others: who has come now, and who comes later, waits.
                Err(Full::All) => tokio::time::sleep(FULL).await,
            }
        };
        let Some((seat, gives_way)) = taken else {
            closed += 1;
            if closed.is_power_of_two() {
                log::warn!(uid = user, count = closed; "a user has too many connections: one is closed");
            }
            continue;
        };
        let visitor = Visitor { seat, served: Arc::clone(&served) };
        let answered = answer(Arc::clone(&daemon), stream, speaker, Some(visitor));
        daemon.spawn("answers a user", async move {
            tokio::select! {
                () = answered => {}
                Ok(()) = gives_way => {}
            }
            Ok(())
        });
        // Who was accepted has its turn first, however many wait.
        yield_now().await;
    }
}

async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                // Out of descriptors, or the caller has gone. Others wait in the queue.
                log::warn!(reason:% = error; "connection not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Who comes to a socket for users.
struct Visitor {
    seat: Seat<u32>,
    /// Of whom a caller has to be one.
    served: Arc<Served>,
}

impl Visitor {
    /// Waits for its turn, and finds out who it is: its name, where the user database says it.
    /// `None` where it has given its seat to another one.
    async fn come_in(
        &self,
        daemon: &Daemon,
        line: &mut Line,
        uid: u32,
    ) -> Option<Result<Option<String>, Refusal>> {
        // Of a job's task, too: by its cgroup the kernel says which job it is, and not that its uid
        // is a user's.
        let turn = line.wait("other users are looked up first", self.served.turn(uid)).await;
        // Only now: until then it gives way to whoever comes.
        if !self.seat.serve() {
            return None;
        }
        Some(user_database::check(daemon, line, uid, &self.served, turn).await)
    }
}

async fn answer(
    daemon: Arc<Daemon>,
    stream: UnixStream,
    speaker: Speaker,
    visitor: Option<Visitor>,
) {
    let peer = match stream.peer_cred() {
        Ok(peer) => peer,
        Err(error) => {
            log::warn!(reason:% = error; "caller without credentials");
            return;
        }
    };
    // Root, or whoever this daemon runs as: in tests.
    let is_ours = peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw();
    if speaker == Speaker::Root && !is_ours {
        log::warn!(uid = peer.uid(), pid = peer.pid(); "caller is not root");
        return;
    }
    let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0);
    let read = timeout(FRAME_LIMIT, read_frame(&stream)).await;
    let (bytes, fd) = match read.unwrap_or_else(|late| Err(late.into())) {
        Ok(frame) => frame,
        Err(error) => {
            log::debug!(pid, reason:% = error; "caller sent no frame");
            if error.kind() == io::ErrorKind::InvalidData {
                Line { stream }.send(&garbage(&error.to_string())).await;
            }
            return;
        }
    };
    let mut line = Line { stream };
    let reply = match parse_envelope(&bytes) {
        Err(FrameError::Version(version)) => {
            let level = if speaker == Speaker::Root { Level::Warn } else { Level::Debug };
            log::log!(level, pid, version; "caller of another version");
            Reply::Version { daemon: VERSION }
        }
        Err(error) => garbage(&error.to_string()),
        Ok(envelope) => {
            drop(bytes);
            let user = visitor.is_some().then(|| peer.uid());
            let name = match &visitor {
                None => Ok(None),
                Some(visitor) => match visitor.come_in(&daemon, &mut line, peer.uid()).await {
                    Some(known) => known,
                    None => return,
                },
            };
            match name {
                Ok(name) => {
                    let caller = Caller { speaker, pid, fd, user, name };
                    calls::handle(&daemon, &mut line, caller, envelope.call).await
                }
                Err(refusal) => Reply::Refused(refusal.into()),
            }
        }
    };
    line.send(&reply).await;
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
