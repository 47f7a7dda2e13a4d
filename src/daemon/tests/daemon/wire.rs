//! Foreign bytes on the socket.

use std::io::{IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use mpsgate_api::{Call, Reply, decode_length, encode};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::json;

use crate::harness::{Node, Running, wait_for};

/// What comes back for `bytes`; `None` where the daemon hangs up.
fn answer(daemon: &Running, bytes: &[u8]) -> Option<Reply> {
    let mut stream = UnixStream::connect(&daemon.socket).unwrap();
    // The daemon may hang up before all is read.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    read_reply(&mut stream)
}

fn read_reply(stream: &mut UnixStream) -> Option<Reply> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).ok()?;
    let mut content = vec![0; decode_length(prefix).unwrap()];
    stream.read_exact(&mut content).unwrap();
    Some(serde_json::from_slice(&content).unwrap())
}

#[test]
fn garbage_is_answered_or_dropped_and_hurts_nobody() {
    let node = Node::unmanaged(1);
    let daemon = node.start();
    let framed =
        |text: &str| [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat();
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 64],
        vec![255; 64],
        framed("{}"),
        framed("\u{0}\u{1}"),
        framed("{\"version\":1,\"call\":\"teleport\"}"),
        framed("{\"version\":1,\"call\":{\"reserve\":{\"key\":null}}}"),
        framed(&"[".repeat(100_000)),
    ] {
        let reply = answer(&daemon, &bytes);
        let Some(Reply::Refused(refusal)) = reply else { panic!("{reply:?}") };
        assert_eq!(refusal.code, "E_DAEMON_VERSION");
    }
    for bytes in [&b""[..], b"\0", b"\0\0\0\x10{", b"\0\x0f\xff\xff{"] {
        assert!(answer(&daemon, bytes).is_none(), "{bytes:?}");
    }
    assert_eq!(daemon.status().cards.len(), 1);
}

#[test]
fn a_far_version_is_told_ours() {
    let node = Node::unmanaged(1);
    let daemon = node.start();
    let far = encode(&json!({ "version": 9, "call": { "teleport": {} } })).unwrap();
    assert!(matches!(answer(&daemon, &far), Some(Reply::Version { daemon: mpsgate_api::VERSION })));
}

#[test]
fn silent_callers_hold_up_nobody_and_are_dropped() {
    let node = Node::unmanaged(1);
    let daemon = node.start();
    let mut silent: Vec<UnixStream> =
        (0..100).map(|_| UnixStream::connect(&daemon.socket).unwrap()).collect();
    silent[0].write_all(b"\0\0").unwrap();
    assert_eq!(daemon.status().cards.len(), 1);
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "hung up without an answer");
    }
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let node = Node::unmanaged(1);
    let daemon = node.start();
    let bytes = encode(&json!({ "version": 1, "call": Call::Status })).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let stream = UnixStream::connect(&daemon.socket).unwrap();
    let fds = [theirs.as_fd(); 8];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
    let mut stream = stream;
    assert!(matches!(read_reply(&mut stream), Some(Reply::Status(_))));
    drop(theirs);
    // End of file: nobody else holds the other end.
    ours.set_nonblocking(true).unwrap();
    wait_for("all copies are closed", || matches!((&ours).read(&mut [0; 1]), Ok(0)));
}
