//! The messages on the socket.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use super::*;

#[test]
fn a_far_version_and_garbage_are_different_errors() {
    let far = parse_envelope(br#"{"version":9,"call":{"teleport":{}}}"#);
    assert!(matches!(far, Err(FrameError::Version(9))), "{far:?}");
    for garbage in [&b"GET / HTTP/1.1"[..], br#"{"version":1,"call":"teleport"}"#] {
        assert!(matches!(parse_envelope(garbage), Err(FrameError::Content(_))));
    }
    parse_envelope(br#"{"version":1,"call":"status"}"#).unwrap();
}

#[test]
fn every_code_survives_the_wire() {
    for code in Code::ALL {
        let refusal = Refusal::new(*code, "s", "h");
        assert_eq!(Refusal::from(WireRefusal::from(refusal.clone())), refusal);
    }
}
