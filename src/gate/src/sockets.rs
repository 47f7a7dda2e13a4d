//! The sockets: bound and named, accepted, heard and answered. Every call here returns at once.

use std::fs::{Permissions, set_permissions};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mpsgate_model::door_file::SOCKET;
use nix::cmsg_space;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, UnixCredentials, getsockopt, recvmsg,
    sockopt::{PeerCredentials, PeerPidfd},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, renameat, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, UCred, accept_with,
    bind, connect, listen, send, sendmsg, socket_with, sockopt,
};
use rustix::process::{Gid, Pid, Uid, getpid};

use crate::handshake::Peer;
use crate::mps_wire::{
    ACKNOWLEDGEMENT, ANSWER, CREDENTIALS, HELLO, LONGEST, Message, Sender, Word,
};

/// The same before it can be seen.
const BESIDE: &str = ".control.new";
/// Connections that wait to be accepted. The kernel may allow fewer (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const NOW: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// A listening socket in `directory`, not to be seen yet: see [`show`].
pub(crate) fn prepare(directory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    // Connections inherit it, so that even what is sent before they are accepted has credentials.
    sockopt::set_socket_passcred(&socket, true)?;
    match unlinkat(directory, BESIDE, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    // By way of the descriptor: who renames the directory meanwhile has it bound there still.
    let path = PathBuf::from(format!("/proc/self/fd/{}/{BESIDE}", directory.as_raw_fd()));
    bind(&socket, &SocketAddrUnix::new(&path)?)?;
    // A client's uid is whatever its container has.
    set_permissions(&path, Permissions::from_mode(0o666))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Gives the socket of [`prepare`] its name, in the place of whatever has it.
pub(crate) fn show(directory: BorrowedFd<'_>) -> io::Result<()> {
    Ok(renameat(directory, BESIDE, directory, SOCKET)?)
}

/// Accepts one connection, where one waits, and says hello: nothing is between the two that can be
/// waited for, and who is closed after it does not go on without MPS. One that has gone already is
/// heard of next.
pub(crate) fn accept(
    listener: BorrowedFd<'_>,
    hello: &[u8],
) -> io::Result<Option<(OwnedFd, Peer)>> {
    let client = match accept_with(listener, FLAGS) {
        Ok(client) => client,
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let _ = send(&client, hello, NOW);
    let pid = getsockopt(&client, PeerCredentials).map_or(0, |peer| peer.pid());
    Ok(Some((client, Peer { pid: u32::try_from(pid).unwrap_or(0) })))
}

/// Whether the process that connected lives: what was read of its pid before was of it then, and of
/// none that has the number now. Linux 6.5 and newer say so; on an older one it is taken to live.
pub(crate) fn lives(client: BorrowedFd<'_>) -> bool {
    match getsockopt(&client, PeerPidfd) {
        Ok(pidfd) => poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&NO_TIME)) == Ok(0),
        Err(nix::errno::Errno::ENOPROTOOPT) => true,
        Err(_) => false,
    }
}

/// What came of listening to a client.
pub(crate) enum Heard<T> {
    /// It said something.
    Said(T),
    /// Nothing yet.
    Nothing,
    /// It has closed the connection.
    Gone,
}

/// Gives the next message of a client to `take`.
pub(crate) fn hear<T>(client: BorrowedFd<'_>, take: impl FnOnce(&Message<'_>) -> T) -> Heard<T> {
    let mut bytes = [0; LONGEST];
    let mut space = cmsg_space!(UnixCredentials);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    // Room for credentials and for no descriptor: the kernel closes those that do not fit.
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let heard = recvmsg::<()>(client.as_raw_fd(), &mut parts, Some(&mut space), flags);
    let (length, more, sender) = match heard {
        Ok(message) => {
            let more = message.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
            let sender = message.cmsgs().ok().and_then(|mut all| all.find_map(sender_of));
            (message.bytes, more, sender)
        }
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => return Heard::Nothing,
        Err(_) => return Heard::Gone,
    };
    // The end of a connection has no sender, an empty message has.
    if length == 0 && sender.is_none_or(|sender| sender.pid == 0) {
        return Heard::Gone;
    }
    Heard::Said(take(&Message { bytes: bytes.get(..length).unwrap_or_default(), more, sender }))
}

fn sender_of(message: ControlMessageOwned) -> Option<Sender> {
    let ControlMessageOwned::ScmCredentials(sender) = message else { return None };
    let pid = u32::try_from(sender.pid()).unwrap_or(0);
    Some(Sender { pid, uid: sender.uid(), gid: sender.gid() })
}

/// Passes the control daemon's answer on.
pub(crate) fn hand_over(client: BorrowedFd<'_>, answer: &Answer) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let descriptor = [answer.descriptor.as_fd()];
    rights.push(SendAncillaryMessage::ScmRights(&descriptor));
    sendmsg(client, &[IoSlice::new(&answer.bytes)], &mut rights, NOW)?;
    Ok(())
}

/// What the control daemon gives to a client.
pub(crate) struct Answer {
    bytes: [u8; ANSWER],
    descriptor: OwnedFd,
}

/// Connects to the control daemon whose directory `pipe` is.
pub(crate) fn dial(pipe: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", pipe.as_raw_fd()));
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    sockopt::set_socket_passcred(&socket, true)?;
    connect(&socket, &SocketAddrUnix::new(&path)?)?;
    Ok(socket)
}

/// Connects to mpsgated at `path` and says a line to it.
pub(crate) fn say(path: &Path, line: &[u8]) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    // It fits into the buffer of a new connection.
    send(&socket, line, NOW)?;
    Ok(socket)
}

/// What mpsgated has said since: how many bytes, and a descriptor that came with them.
pub(crate) fn read(mpsgated: BorrowedFd<'_>, bytes: &mut [u8]) -> Heard<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message =
        rustix::net::recvmsg(mpsgated, &mut [IoSliceMut::new(bytes)], &mut control, flags);
    match message {
        Ok(message) if message.bytes == 0 => Heard::Gone,
        Ok(message) => Heard::Said((message.bytes, descriptors(&mut control).pop())),
        Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
        Err(_) => Heard::Gone,
    }
}

fn descriptors(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    descriptors
}

/// The control daemon's hello; the error says what came in its place.
pub(crate) fn greeting(daemon: BorrowedFd<'_>) -> io::Result<Heard<[u8; HELLO]>> {
    let mut bytes = [0; LONGEST];
    match rustix::net::recv(daemon, &mut bytes, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
        Ok((_, 0)) => Ok(Heard::Gone),
        Ok((_, length)) => match bytes.get(..length).map(TryInto::try_into) {
            Some(Ok(hello)) => Ok(Heard::Said(hello)),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("its hello has {length} bytes, and {HELLO} are known"),
            )),
        },
        Err(Errno::AGAIN | Errno::INTR) => Ok(Heard::Nothing),
        Err(_) => Ok(Heard::Gone),
    }
}

/// Says a client's words, as the client's user. The kernel does not let us say its pid without
/// CAP_SYS_ADMIN: the control daemon's log has ours.
pub(crate) fn ask(daemon: BorrowedFd<'_>, sender: Sender, word: Word) -> io::Result<()> {
    for bytes in [CREDENTIALS.as_slice(), &word.bytes()] {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut credentials = SendAncillaryBuffer::new(&mut space);
        let pid: Pid = getpid();
        let (uid, gid) = (Uid::from_raw(sender.uid), Gid::from_raw(sender.gid));
        credentials.push(SendAncillaryMessage::ScmCredentials(UCred { pid, uid, gid }));
        sendmsg(daemon, &[IoSlice::new(bytes)], &mut credentials, NOW)?;
    }
    Ok(())
}

/// The control daemon's answer, acknowledged the moment that it is there: until then the daemon
/// serves nobody else.
pub(crate) fn answer(daemon: BorrowedFd<'_>) -> io::Result<Heard<Answer>> {
    let mut bytes = [0; LONGEST];
    // Its credentials come along, as the socket asks for them.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message =
        rustix::net::recvmsg(daemon, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let length = match message {
        Ok(message) => message.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Heard::Nothing),
        Err(_) => return Ok(Heard::Gone),
    };
    let mut descriptors = descriptors(&mut control);
    if length == 0 && descriptors.is_empty() {
        return Ok(Heard::Gone);
    }
    // Whatever it was: the daemon must not wait for us.
    let _ = send(daemon, &ACKNOWLEDGEMENT, NOW);
    let bytes = bytes.get(..length).and_then(|bytes| bytes.try_into().ok());
    match (bytes, descriptors.pop(), descriptors.is_empty()) {
        (Some(bytes), Some(descriptor), true) => Ok(Heard::Said(Answer { bytes, descriptor })),
        (_, one, _) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "its answer has {length} bytes and {} descriptors, and {ANSWER} with one are known",
                descriptors.len() + usize::from(one.is_some())
            ),
        )),
    }
}
