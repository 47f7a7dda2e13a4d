//! What a client tries on its control daemon: to write to its log, and to say words that it does
//! not know.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use nix::libc;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, UnixCredentials,
    connect, recv, sendmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::{Outcome, failed, io_failed};

/// Of a record in the log FIFO; the component is in the lowest bits.
const MAGIC: u32 = 0xabcd_e000;

/// Writes one well-formed record of the log: as whichever component and process it likes.
pub(crate) fn record(fifo: &Path, component: u32, pid: i32, text: &str) -> Outcome {
    let mut bytes = Vec::new();
    for word in [MAGIC | component, pid.cast_unsigned(), 2026, 11, 22, 0, 19, 8, 20, 1] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(u64::try_from(text.len()).unwrap_or_default().to_ne_bytes());
    bytes.extend(text.as_bytes());
    let mut fifo = File::options()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(fifo)
        .map_err(|error| io_failed("open", &error))?;
    fifo.write_all(&bytes).map_err(|error| io_failed("write", &error))?;
    Ok(format!("the log takes a line of pid {pid}"))
}

fn connected(path: &str) -> Result<OwnedFd, String> {
    let address = UnixAddr::new(path).map_err(failed("address"))?;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
        .map_err(failed("socket"))?;
    connect(fd.as_raw_fd(), &address).map_err(failed("connect"))?;
    Ok(fd)
}

/// Says a word that the daemon may not know, as often as it is told to, and leaves each time.
pub(crate) fn words(path: &str, word: i32, times: u32) -> Outcome {
    for said in 0..times {
        say(path, word).map_err(|why| format!("after {said}: {why}"))?;
    }
    Ok(format!("the daemon took {times} connections"))
}

/// The same, each time by a process of its own, which has ended by then.
pub(crate) fn words_each(path: &str, word: i32, times: u32) -> Outcome {
    for said in 0..times {
        let status = Command::new("/proc/self/exe")
            .args(["words", path, &word.to_string(), "1"])
            .stdout(std::process::Stdio::null())
            .status();
        status.map_err(|error| format!("after {said}: {error}"))?;
    }
    Ok(format!("the daemon took {times} connections"))
}

fn say(path: &str, word: i32) -> Result<(), String> {
    let connection = connected(path)?;
    // The daemon's greeting. It closes where nobody is there to take it.
    let patience = TimeVal::milliseconds(200);
    setsockopt(&connection, sockopt::ReceiveTimeout, &patience).map_err(failed("setsockopt"))?;
    let _ = recv(connection.as_raw_fd(), &mut [0; 64], MsgFlags::empty());
    let who = UnixCredentials::new();
    sendmsg::<UnixAddr>(
        connection.as_raw_fd(),
        &[IoSlice::new(b"OUTBCRED\0")],
        &[ControlMessage::ScmCredentials(&who)],
        MsgFlags::empty(),
        None,
    )
    .map_err(failed("sendmsg"))?;
    sendmsg::<UnixAddr>(
        connection.as_raw_fd(),
        &[IoSlice::new(&word.to_ne_bytes())],
        &[],
        MsgFlags::empty(),
        None,
    )
    .map_err(failed("sendmsg"))?;
    Ok(())
}
