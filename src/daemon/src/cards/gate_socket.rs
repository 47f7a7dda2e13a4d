//! The socket on which a card's gate asks. One question at a time, in the order in which they came:
//! what is prepared for one must not be changed by one that was asked before.
//!
//! The gate reads what containers send: what it says is bounded, and asks for nothing but what any
//! container of the card may have.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_host::crash_steps;
use mpsgate_model::GpuUuid;
use mpsgate_model::door_file::{LONGEST_LINE, Prepared, Question};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::daemon::Daemon;
use crate::orders::Order;
use crate::process_end;

/// For a line, which the gate says as soon as it has connected.
const LIMIT: Duration = Duration::from_secs(1);
/// After a connection that could not be accepted, or on which nothing that is known was said.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers as long as it is there.
pub(super) struct Answering {
    _ends: oneshot::Sender<()>,
}

/// Starts answering.
///
/// # Errors
/// Where there can be no socket.
pub(super) fn answer(
    daemon: &Arc<Daemon>,
    uuid: &GpuUuid,
    path: &Path,
    pipe: &Arc<OwnedFd>,
) -> io::Result<Answering> {
    let steps = crash_steps!("daemon.gate_socket": "bound", "named");
    let listener =
        mpsgate_host::bound_socket::bind(path, steps).and_then(UnixListener::from_std)?;
    let (ends, mut ended) = oneshot::channel();
    let (shared, card, pipe) = (Arc::clone(daemon), uuid.clone(), Arc::clone(pipe));
    daemon.spawn(format!("answers the gate of {uuid}"), async move {
        tokio::select! {
            // Dropped: its card task has done with this control daemon.
            _ = &mut ended => Ok(()),
            () = answer_all(&shared, &card, &listener, &pipe) => Ok(()),
        }
    });
    Ok(Answering { _ends: ends })
}

async fn answer_all(daemon: &Daemon, card: &GpuUuid, listener: &UnixListener, pipe: &OwnedFd) {
    loop {
        let answered = match listener.accept().await {
            Ok((stream, _)) => answer_one(daemon, card, stream, pipe).await,
            Err(error) => Err(error),
        };
        if let Err(error) = answered {
            log::warn!(uuid = card.as_str(), reason:% = error; "the gate's question is not answered");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn answer_one(
    daemon: &Daemon,
    card: &GpuUuid,
    mut stream: UnixStream,
    pipe: &OwnedFd,
) -> io::Result<()> {
    // The socket is its owner's alone; who was given a descriptor of it asks nothing.
    let peer = stream.peer_cred()?;
    if peer.uid() != 0 && peer.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("uid {} asks", peer.uid())));
    }
    let mut line = Vec::new();
    let longest = u64::try_from(LONGEST_LINE).unwrap_or(u64::MAX);
    let mut reader = BufReader::new((&mut stream).take(longest));
    timeout(LIMIT, reader.read_until(b'\n', &mut line)).await??;
    match Question::read(&line)? {
        Question::Daemon => say(&stream, Prepared::Ready, pipe).await,
        Question::Prepare { instance, client } => {
            let (reply, mut answer) = oneshot::channel();
            if !daemon.order(card, Order::Prepare { instance, client, reply }) {
                return Ok(());
            }
            let mut more = [0];
            let prepared = tokio::select! {
                prepared = &mut answer => prepared.unwrap_or(Prepared::Later),
                // It does not wait any more; what it wanted is dropped with the channel.
                _ = stream.read(&mut more) => return Ok(()),
            };
            // Its client may have left just now: as often as a container likes.
            let _ = say(&stream, prepared, pipe).await;
            Ok(())
        }
        Question::Unserved { why } => {
            daemon.order(card, Order::Unserved { why });
            Ok(())
        }
        Question::Counts(counts) => {
            let gate = peer.pid().and_then(|pid| u32::try_from(pid).ok());
            daemon.order(card, Order::GateCounts(counts, gate.and_then(process_end::identify)));
            Ok(())
        }
    }
}

/// With the control daemon's directory where it is to be called.
async fn say(stream: &UnixStream, prepared: Prepared, pipe: &OwnedFd) -> io::Result<()> {
    let line = prepared.line();
    let descriptor = [pipe.as_fd()];
    let send = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if prepared == Prepared::Ready {
            rights.push(SendAncillaryMessage::ScmRights(&descriptor));
        }
        // A line fits into the buffer of a new connection.
        Ok(sendmsg(stream, &[IoSlice::new(&line)], &mut rights, SendFlags::NOSIGNAL)?)
    };
    stream.async_io(Interest::WRITABLE, send).await.map(|_| ())
}
