//! Keeps the gates' listening sockets while a gate is replaced. It accepts no connection: clients
//! wait in a socket's backlog for the next gate.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use mpsgate_host::fd_store::{Answer, Request, check_peer, receive, send, socket};
use nix::sys::socket::{SockType, getsockopt, sockopt};

use crate::door_name::is_door;

/// A gate sends its requests and leaves; only root can connect.
const LIMIT: Duration = Duration::from_secs(2);
/// The most sockets of one card, as the unit of a gate may keep (`FileDescriptorStoreMax=`): MPS
/// serves 60 clients of a card at most.
const OF_A_CARD: usize = 1024;
/// The most sockets in all. They are descriptors of this process, which must still be able to start
/// control daemons.
const IN_ALL: usize = 8192;

/// The kept sockets, and the store's own socket.
#[derive(Debug)]
pub(super) struct Store {
    listener: UnixListener,
    kept: BTreeMap<(u32, String), OwnedFd>,
}

impl Store {
    /// Binds the store's socket in the directory above the cards' directories.
    pub(super) fn bind(mps: &Path) -> io::Result<Self> {
        let listener = mpsgate_host::bound_socket::bind_packets(&socket(mps))?;
        Ok(Self { listener, kept: BTreeMap::new() })
    }

    /// Readable when a gate or mpsgated connects.
    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Answers one connection; does nothing without one.
    pub(super) fn answer(&mut self) -> io::Result<()> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        check_peer(stream.as_fd())?;
        let (request, descriptor) = receive(stream.as_fd())?;
        self.act(&stream, request, descriptor)
    }

    fn act(
        &mut self,
        stream: &UnixStream,
        request: Request,
        descriptor: Option<OwnedFd>,
    ) -> io::Result<()> {
        match (request, descriptor) {
            (Request::Keep { card, name }, Some(descriptor)) => self.keep(card, name, descriptor),
            (Request::Remove { card, name }, None) => {
                self.kept.remove(&(card, name));
                Ok(())
            }
            (Request::Take { card }, None) => {
                for (name, kept) in self.of(card) {
                    send(stream.as_fd(), &Answer::Kept(name.to_owned()), Some(kept.as_fd()))?;
                }
                send(stream.as_fd(), &Answer::End, None)
            }
            (Request::Forget { card }, None) => {
                self.kept.retain(|(its, _), _| *its != card);
                Ok(())
            }
            (request, _) => Err(io::Error::other(format!("{request:?}: a descriptor is amiss"))),
        }
    }

    fn keep(&mut self, card: u32, name: String, descriptor: OwnedFd) -> io::Result<()> {
        let wrong = |why: &str| Err(io::Error::other(format!("{name} of card {card}: {why}")));
        if !is_door(&name) {
            return wrong("it is no container's name");
        }
        // Only listening sockets, which a gate needs; nothing else that a process in a gate's place
        // could keep here.
        let is_listening = getsockopt(&descriptor, sockopt::AcceptConn).is_ok_and(|is| is);
        let kind = getsockopt(&descriptor, sockopt::SockType);
        if !is_listening || kind != Ok(SockType::SeqPacket) {
            return wrong("its descriptor is no listening socket of a gate");
        }
        let is_new = !self.kept.contains_key(&(card, name.clone()));
        if is_new && (self.of(card).count() >= OF_A_CARD || self.kept.len() >= IN_ALL) {
            return wrong("too many are kept");
        }
        self.kept.insert((card, name), descriptor);
        Ok(())
    }

    fn of(&self, card: u32) -> impl Iterator<Item = (&str, &OwnedFd)> {
        let all = self.kept.range((card, String::new())..);
        all.take_while(move |((its, _), _)| *its == card)
            .map(|((_, name), kept)| (name.as_str(), kept))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use mpsgate_host::fd_store::dial;

    use super::*;

    const NAME: &str = "0123456789abcdef0123456789abcdef";
    const OTHER: &str = "fedcba9876543210fedcba9876543210";

    fn say(store: &mut Store, mps: &Path, request: &Request, fd: Option<BorrowedFd<'_>>) -> bool {
        let ours = dial(&socket(mps)).unwrap();
        send(ours.as_fd(), request, fd).unwrap();
        store.answer().is_ok()
    }

    fn taken(store: &mut Store, mps: &Path, card: u32) -> Vec<String> {
        let ours = dial(&socket(mps)).unwrap();
        send(ours.as_fd(), &Request::Take { card }, None).unwrap();
        store.answer().unwrap();
        let mut names = Vec::new();
        while let (Answer::Kept(name), fd) = receive(ours.as_fd()).unwrap() {
            assert!(fd.is_some());
            names.push(name);
        }
        names
    }

    fn keep(card: u32, name: &str) -> Request {
        Request::Keep { card, name: name.into() }
    }

    #[test]
    fn a_socket_is_kept_given_and_closed_by_card_and_name() {
        let root = tempfile::tempdir().unwrap();
        let mps = root.path();
        let mut store = Store::bind(mps).unwrap();
        assert!(store.answer().is_ok(), "nobody asks");
        let path = mps.join("door");
        let door = mpsgate_host::bound_socket::bind_packets(&path).unwrap();
        for request in [keep(0, NAME), keep(0, OTHER), keep(0, NAME), keep(1, NAME)] {
            assert!(say(&mut store, mps, &request, Some(door.as_fd())));
        }
        drop(door);
        assert_eq!(taken(&mut store, mps, 0), [NAME, OTHER]);
        assert_eq!(taken(&mut store, mps, 2), [""; 0]);
        dial(&path).unwrap();
        let remove = Request::Remove { card: 0, name: OTHER.into() };
        assert!(say(&mut store, mps, &remove, None));
        assert!(say(&mut store, mps, &Request::Forget { card: 1 }, None));
        assert_eq!(taken(&mut store, mps, 1), [""; 0]);
        assert_eq!(taken(&mut store, mps, 0), [NAME]);
        assert!(say(&mut store, mps, &Request::Forget { card: 0 }, None));
        let refused = dial(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "it is closed");
    }

    #[test]
    fn nothing_but_a_gates_socket_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let mps = root.path();
        let mut store = Store::bind(mps).unwrap();
        let door = mpsgate_host::bound_socket::bind_packets(&mps.join("door")).unwrap();
        let stream = UnixListener::bind(mps.join("stream")).unwrap();
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let connected = dial(&mps.join("door")).unwrap();
        for (request, fd) in [
            (keep(0, NAME), None),
            (keep(0, NAME), Some(stream.as_fd())),
            (keep(0, NAME), Some(file.as_fd())),
            (keep(0, NAME), Some(connected.as_fd())),
            (keep(0, "../control"), Some(door.as_fd())),
            (Request::Take { card: 0 }, Some(door.as_fd())),
        ] {
            assert!(!say(&mut store, mps, &request, fd), "{request:?}");
        }
        assert_eq!(taken(&mut store, mps, 0), [""; 0]);
    }

    #[test]
    fn a_card_has_so_many_and_no_more() {
        let root = tempfile::tempdir().unwrap();
        let mps = root.path();
        let mut store = Store::bind(mps).unwrap();
        let door = mpsgate_host::bound_socket::bind_packets(&mps.join("door")).unwrap();
        super::super::holder_server::raise_nofile().unwrap();
        let copy = || OwnedFd::from(door.try_clone().unwrap());
        for number in 0..OF_A_CARD {
            store.keep(0, format!("{number:032x}"), copy()).unwrap();
        }
        store.keep(0, format!("{OF_A_CARD:032x}"), copy()).unwrap_err();
        store.keep(0, format!("{:032x}", 0), copy()).unwrap();
        store.keep(1, format!("{:032x}", 0), copy()).unwrap();
    }
}
