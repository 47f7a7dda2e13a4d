//! A descriptor store for machines where systemd has none: `mpsgated hold` keeps a gate's listening
//! sockets while the gate is replaced. These are the messages of both. A message is a packet, with
//! one descriptor at most.
//!
//! ```text
//!  gate ── keep {card, name} + socket ──► store          (nothing is answered)
//!  gate ── take {card} ──► store ── kept {name} + socket, …, end ──► gate
//! ```
//!
//! The gate reads what containers send. So the store has a socket of its own: a process that has it
//! can ask for sockets, but not for processes.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, socket_with, sockopt,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::format;

/// The format of these messages.
const FORMAT: u32 = 1;
/// Longer than any message.
const LONGEST: usize = 256;

/// A request of a gate, or of mpsgated for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Keep the socket that comes with the request, in the place of one of the same name.
    Keep {
        /// The card's number.
        card: u32,
        /// The socket's name.
        name: String,
    },
    /// Close a socket.
    Remove {
        /// The card's number.
        card: u32,
        /// The socket's name.
        name: String,
    },
    /// Return all sockets of a card, and keep them.
    Take {
        /// The card's number.
        card: u32,
    },
    /// Close all sockets of a card.
    Forget {
        /// The card's number.
        card: u32,
    },
}

/// The answers to [`Request::Take`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The socket that comes with this answer is kept under this name.
    Kept(String),
    /// There are no more.
    End,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    format: u32,
    message: T,
}

/// The store's socket in the directory of the cards' directories.
#[must_use]
pub fn socket(mps: &Path) -> PathBuf {
    mps.join("store.sock")
}

/// Connects to the store at `path`; sending and receiving there do not block.
///
/// # Errors
/// The kernel's error, or a peer of another user.
pub fn dial(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    check_peer(socket.as_fd())?;
    Ok(socket)
}

/// Whether the error of [`dial`] means that there is no store.
#[must_use]
pub fn is_away(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Checks that the peer has this process's user.
///
/// # Errors
/// The peer's user.
pub fn check_peer(socket: BorrowedFd<'_>) -> io::Result<()> {
    let peer = sockopt::socket_peercred(socket)?;
    if peer.uid == rustix::process::geteuid() {
        return Ok(());
    }
    Err(io::Error::other(format!("the other end is uid {}'s", peer.uid.as_raw())))
}

/// Sends a message.
///
/// # Errors
/// The kernel's error.
pub fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = write(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptor) = &descriptor {
        rights.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(descriptor)));
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut rights, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next message, and the descriptor that came with it.
///
/// # Errors
/// The kernel's error; [`io::ErrorKind::UnexpectedEof`] at the end of the connection;
/// [`io::ErrorKind::InvalidData`] for anything but such a message.
pub fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<(T, Option<OwnedFd>)> {
    let mut bytes = [0; LONGEST];
    // Room for one descriptor: the kernel closes those that do not fit.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let length = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?.bytes;
    let mut descriptor = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptor = rights.last();
        }
    }
    if length == 0 && descriptor.is_none() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let message = read(bytes.get(..length).unwrap_or_default())?;
    Ok((message, descriptor))
}

/// The packet of a message.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for text that JSON cannot hold.
pub fn write<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(&Envelope { format: FORMAT, message })?)
}

/// Reads a packet.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`].
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let Envelope { message, .. } = format::read(bytes, FORMAT).map_err(wrong)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use rustix::fs::fstat;
    use rustix::net::socketpair;

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn messages_arrive_as_they_were_sent_each_with_its_descriptor() {
        let (ours, other) = pair();
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let keep = Request::Keep { card: 3, name: "0123".into() };
        let rest = [
            Request::Remove { card: 0, name: "0123".into() },
            Request::Take { card: 7 },
            Request::Forget { card: 7 },
        ];
        send(ours.as_fd(), &keep, Some(file.as_fd())).unwrap();
        for request in &rest {
            send(ours.as_fd(), request, None).unwrap();
        }
        let (heard, descriptor) = receive::<Request>(other.as_fd()).unwrap();
        assert_eq!(heard, keep);
        assert_eq!(fstat(descriptor.unwrap()).unwrap().st_ino, fstat(&file).unwrap().st_ino);
        for request in rest {
            let (heard, descriptor) = receive::<Request>(other.as_fd()).unwrap();
            assert!(descriptor.is_none());
            assert_eq!(heard, request);
        }
        for answer in [Answer::Kept("a".into()), Answer::End] {
            send(other.as_fd(), &answer, None).unwrap();
            assert_eq!(receive::<Answer>(ours.as_fd()).unwrap().0, answer);
        }
        drop(ours);
        let end = receive::<Request>(other.as_fd()).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for text in [
            "",
            "{}",
            r#"{"format":2,"message":{"take":{"card":1}}}"#,
            r#"{"format":1,"message":{"take":{"card":-1}}}"#,
            r#"{"format":1,"message":{"take":{"card":1,"name":"a"}}}"#,
            r#"{"format":1,"message":{"start":{"card":1}}}"#,
            r#"{"format":1,"message":{"take":{"card":1}},"more":1}"#,
        ] {
            let error = read::<Request>(text.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text}");
        }
    }
}
