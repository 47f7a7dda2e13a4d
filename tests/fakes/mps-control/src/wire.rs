//! What is said on the sockets of a control daemon, as far as tests need it: seen on 2026-11-23 by
//! watching our own sockets, with NVIDIA's control daemons and libcuda 535.261.03 and 550.163.01,
//! without a GPU.
//!
//! Whoever is connected to gets [`HELLO`]. Who connected answers [`WHO`] with its credentials, then
//! a [`word`]. A server sends a descriptor, and is then told its limits; a client is handed one, by
//! which it speaks with its server, and acknowledges to the daemon with what the server said.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    UnixCredentials, connect, recvmsg, sendmsg, setsockopt, socket, socketpair, sockopt,
};

pub(crate) const HELLO: &[u8] = b"OUTBHELL\0";
pub(crate) const WHO: &[u8] = b"OUTBCRED\0";
pub(crate) const DESCRIPTOR: &[u8] = b"OUTBCUFD\0";

/// Longest message: an answer of the daemon to its front-end.
const MESSAGE_MAX: usize = 16 * 1024;

/// Who somebody is that has connected.
pub(crate) mod word {
    pub(crate) const SERVER: i32 = 1;
    pub(crate) const CLIENT: i32 = 2;
    pub(crate) const FRONT_END: i32 = 4;
}

/// What a daemon says to its server. Each is a message of its own; what follows is one each, too.
pub(crate) mod order {
    /// A descriptor follows, which leads to a client.
    pub(crate) const CLIENT: i32 = 2;
    pub(crate) const SHUTDOWN: i32 = 5;
    /// Answer: how many clients (i32), then their pids.
    pub(crate) const CLIENT_LIST: i32 = 6;
    /// Answer: how many (i32); no test has one.
    pub(crate) const DEVICE_CLIENT_LIST: i32 = 7;
    /// Answer: f64, in percent.
    pub(crate) const GET_SHARE: i32 = 8;
    /// An f64 follows.
    pub(crate) const SET_SHARE: i32 = 9;
    /// A device (i32) follows. Answer: bytes (u64), 0 for none.
    pub(crate) const GET_LIMIT: i32 = 11;
    /// A device (i32) and bytes (u64) follow.
    pub(crate) const SET_LIMIT: i32 = 12;
    /// A pid (i32) follows. Answer: 0 (i32) where there was such a client.
    pub(crate) const TERMINATE: i32 = 13;
    /// An i32 follows. Answer: how many (i32); no test has one.
    pub(crate) const PS: i32 = 14;
    /// Answer: 0 for a fault, else 1 (i32). 550 brought it.
    pub(crate) const STATUS: i32 = 17;
}

/// As many limits as a server is told at its start.
pub(crate) const DEVICES: usize = 32;

pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sender: Option<UnixCredentials>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Message {
    /// Four bytes, as most messages are.
    pub(crate) fn int(&self) -> Option<i32> {
        Some(i32::from_ne_bytes(self.bytes.as_slice().try_into().ok()?))
    }
}

pub(crate) fn seqpacket() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
}

/// A connection that is told who sends.
pub(crate) fn connect_to(path: &Path) -> nix::Result<OwnedFd> {
    let fd = seqpacket()?;
    setsockopt(&fd, sockopt::PassCred, &true)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd)
}

pub(crate) fn pair() -> nix::Result<(OwnedFd, OwnedFd)> {
    let ends = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    setsockopt(&ends.0, sockopt::PassCred, &true)?;
    setsockopt(&ends.1, sockopt::PassCred, &true)?;
    Ok(ends)
}

/// Connects, takes the greeting and says who we are. `None` where nobody greets.
pub(crate) fn introduced(path: &Path, word: i32) -> Option<OwnedFd> {
    let fd = connect_to(path).ok()?;
    if receive(fd.as_fd())?.bytes != HELLO {
        return None;
    }
    say_who(fd.as_fd()).ok()?;
    say_int(fd.as_fd(), word).ok()?;
    Some(fd)
}

/// That we are we: the kernel vouches for it.
pub(crate) fn say_who(fd: BorrowedFd<'_>) -> nix::Result<()> {
    send(fd, WHO, &[ControlMessage::ScmCredentials(&UnixCredentials::new())])
}

fn send(fd: BorrowedFd<'_>, bytes: &[u8], control: &[ControlMessage<'_>]) -> nix::Result<()> {
    let bytes = [IoSlice::new(bytes)];
    sendmsg::<UnixAddr>(fd.as_raw_fd(), &bytes, control, MsgFlags::MSG_NOSIGNAL, None).map(drop)
}

pub(crate) fn say(fd: BorrowedFd<'_>, bytes: &[u8]) -> nix::Result<()> {
    send(fd, bytes, &[])
}

pub(crate) fn say_int(fd: BorrowedFd<'_>, int: i32) -> nix::Result<()> {
    say(fd, &int.to_ne_bytes())
}

pub(crate) fn hand_over(fd: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> nix::Result<()> {
    send(fd, DESCRIPTOR, &[ControlMessage::ScmRights(&[descriptor.as_raw_fd()])])
}

/// `None` at the end of the stream.
pub(crate) fn receive(fd: BorrowedFd<'_>) -> Option<Message> {
    let mut buffer = vec![0; MESSAGE_MAX];
    let mut space = nix::cmsg_space!([i32; 8], UnixCredentials);
    let mut slices = [IoSliceMut::new(&mut buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let got = recvmsg::<UnixAddr>(fd.as_raw_fd(), &mut slices, Some(&mut space), flags).ok()?;
    let (mut sender, mut descriptors) = (None, Vec::new());
    for control in got.cmsgs().ok()? {
        match control {
            ControlMessageOwned::ScmCredentials(who) => sender = Some(who),
            ControlMessageOwned::ScmRights(raw) => {
                #[allow(unsafe_code, reason = "JUSTIFICATION: nix gives raw descriptors")]
                // SAFETY: the kernel has just made them for us alone.
                descriptors.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
            _ => {}
        }
    }
    let count = got.bytes;
    buffer.truncate(count);
    (count > 0).then_some(Message { bytes: buffer, sender, descriptors })
}

/// The front-end's lines and the daemon's answers are our own, with a byte before them: an empty
/// message would read as the end of the stream.
pub(crate) fn say_text(fd: BorrowedFd<'_>, text: &str) -> nix::Result<()> {
    say(fd, &[b"+", text.as_bytes()].concat())
}

pub(crate) fn receive_text(fd: BorrowedFd<'_>) -> Option<String> {
    let message = receive(fd)?;
    Some(String::from_utf8_lossy(message.bytes.get(1..)?).into_owned())
}
