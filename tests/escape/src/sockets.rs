//! Unix sockets: of the control daemon, of mpsgated, and those without a path.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::{Outcome, failed, io_failed};

const KINDS: [SockType; 3] = [SockType::SeqPacket, SockType::Stream, SockType::Datagram];

fn connect_to(address: &UnixAddr) -> Result<std::os::fd::OwnedFd, String> {
    let mut why = String::new();
    for kind in KINDS {
        let fd = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)
            .map_err(failed("socket"))?;
        match connect(fd.as_raw_fd(), address) {
            Ok(()) => return Ok(fd),
            Err(errno) if why.is_empty() => why = failed("connect")(errno),
            Err(_) => {}
        }
    }
    Err(why)
}

/// Connects, in whichever way the listener takes.
pub(crate) fn connect_any(path: &str) -> Outcome {
    let address = UnixAddr::new(path).map_err(failed("address"))?;
    connect_to(&address).map(|_| format!("{path} takes a connection"))
}

/// Connects and says nothing for some seconds.
pub(crate) fn hold(path: &str, seconds: u64) -> Outcome {
    let address = UnixAddr::new(path).map_err(failed("address"))?;
    let held = connect_to(&address)?;
    std::thread::sleep(Duration::from_secs(seconds));
    drop(held);
    Ok(format!("an idle connection was held for {seconds} s"))
}

/// Makes a listener of its own under a name.
pub(crate) fn bind_at(path: &Path) -> Outcome {
    match UnixListener::bind(path) {
        Ok(_) => {
            let _ = fs::remove_file(path);
            Ok(format!("a socket of our own stands at {}", path.display()))
        }
        Err(error) => Err(io_failed("bind", &error)),
    }
}

/// Abstract sockets of this network namespace that sound like ours or NVIDIA's, and take a
/// connection.
pub(crate) fn abstract_names() -> Outcome {
    let table = fs::read_to_string("/proc/net/unix").map_err(|error| io_failed("read", &error))?;
    let names: Vec<&str> =
        table.lines().filter_map(|line| line.split_once('@')).map(|(_, n)| n).collect();
    for name in &names {
        let sounds =
            ["mps", "nvidia", "cuda"].iter().any(|word| name.to_lowercase().contains(word));
        let address = UnixAddr::new_abstract(name.as_bytes()).map_err(failed("address"))?;
        if sounds && connect_to(&address).is_ok() {
            return Ok(format!("@{name} takes a connection"));
        }
    }
    Err(format!("{} abstract sockets, none of mpsgate's or NVIDIA's", names.len()))
}
