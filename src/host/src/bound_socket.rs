//! A socket that answers from the moment that it can be seen: bound under another name, then
//! renamed.

use std::fs::{Permissions, remove_file, rename, set_permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, listen, socket_with};

use crate::crash::Steps;
use crate::file::beside;

/// Connections that wait to be accepted, as in std.
const BACKLOG: i32 = 128;

/// Makes a socket that only its owner may connect to. It replaces whatever has the name: the caller
/// ensures that no other living process serves there. It does not block, as tokio and poll(2) need
/// it. `steps` are passed once it is `bound`, and once it is `named`.
///
/// # Errors
/// The kernel's error.
pub fn bind(path: &Path, steps: Steps) -> io::Result<UnixListener> {
    bind_as(SocketType::STREAM, path, steps)
}

/// The same, for messages with boundaries (`SOCK_SEQPACKET`).
///
/// # Errors
/// The kernel's error.
pub fn bind_packets(path: &Path) -> io::Result<UnixListener> {
    bind_as(SocketType::SEQPACKET, path, Steps::NONE)
}

fn bind_as(kind: SocketType, path: &Path, steps: Steps) -> io::Result<UnixListener> {
    let beside = beside(path);
    match remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&beside)?)?;
    set_permissions(&beside, Permissions::from_mode(0o600))?;
    listen(&socket, BACKLOG)?;
    steps.pass("bound");
    rename(&beside, path)?;
    steps.pass("named");
    Ok(UnixListener::from(socket))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_that_was_left_is_replaced_by_one_of_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(beside(&path), "left").unwrap();
        drop(bind(&path, Steps::NONE).unwrap());
        UnixStream::connect(&path).unwrap_err();
        let _listener = bind(&path, Steps::NONE).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }
}
