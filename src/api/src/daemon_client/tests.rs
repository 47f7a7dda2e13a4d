//! Daemons of all kinds, in a thread each.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
#![allow(clippy::disallowed_methods, reason = "a daemon needs a thread of its own")]
use std::io::Write;
use std::os::unix::net::UnixListener;

use super::*;
use crate::NoStatus;

/// A daemon that answers one call with `bytes` and hangs up, or hangs if there are none.
fn daemon(bytes: Option<Vec<u8>>) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut prefix = [0; 4];
        stream.read_exact(&mut prefix).unwrap();
        let mut content = vec![0; decode_length(prefix).unwrap()];
        stream.read_exact(&mut content).unwrap();
        match bytes {
            Some(bytes) => stream.write_all(&bytes).unwrap(),
            None => std::thread::sleep(Duration::from_secs(20)),
        }
    });
    (dir, path)
}

fn call(path: &Path) -> Result<Reply, ApiError> {
    Client::connect(path)?.call(Call::Status, None, FIRST_BYTE_TIMEOUT)
}

#[test]
fn an_absent_daemon_is_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(call(&dir.path().join("none")), Err(ApiError::Away { .. })));
}

#[test]
fn a_daemon_that_comes_back_in_time_is_asked_again_and_one_that_does_not_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let ask = |path: &Path| Client::ask::<NoStatus>(path, &Call::Status, None, FIRST_BYTE_TIMEOUT);
    let error = ask(&path).unwrap_err();
    assert!(matches!(error, ApiError::StillAway { .. }), "{error}");
    // The first daemon ends after it has read the call; the second, on another attempt, answers.
    let done = encode::<Reply>(&Reply::Done { text: "ok".to_owned() }).unwrap();
    let taken = path.clone();
    std::thread::spawn(move || {
        for bytes in [Vec::new(), done] {
            let listener = UnixListener::bind(&taken).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let mut prefix = [0; 4];
            stream.read_exact(&mut prefix).unwrap();
            stream.read_exact(&mut vec![0; decode_length(prefix).unwrap()]).unwrap();
            std::fs::remove_file(&taken).unwrap();
            stream.write_all(&bytes).unwrap();
        }
    });
    let answer = ask(&path);
    assert!(matches!(&answer, Ok(Reply::Done { text }) if text == "ok"), "{answer:?}");
    // The client does not wait for a wrong file.
    let file = dir.path().join("f");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(ask(&file), Err(ApiError::NotASocket { .. })));
}

#[test]
fn a_plain_file_is_no_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    std::fs::write(&path, "").unwrap();
    assert!(matches!(call(&path), Err(ApiError::NotASocket { .. })));
}

#[test]
fn a_full_backlog_is_silence_not_a_hang() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let _listener = UnixListener::bind(&path).unwrap();
    let mut held = Vec::new();
    let error = loop {
        match Client::connect(&path) {
            Ok(client) => held.push(client),
            Err(error) => break error,
        }
        assert!(held.len() < 20_000, "the backlog never filled");
    };
    assert!(matches!(error, ApiError::Silent { .. }), "{error}");
    Client::notify(&path, Call::Status);
}

#[test]
fn a_whole_question_has_one_limit_and_a_busy_daemon_another() {
    let limit = Duration::from_millis(50);
    let within =
        |path: &Path, limit, busy| Client::ask_within::<NoStatus>(path, Call::Status, limit, busy);
    let ask = |path: &Path| within(path, limit, limit);
    // The connection is never accepted.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let _listener = UnixListener::bind(&path).unwrap();
    assert!(matches!(ask(&path), Err(ApiError::Silent { .. })));
    // A daemon that reports progress for as long as the caller listens.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let progress = encode::<Reply>(&Reply::Progress { doing: "waiting".to_owned() }).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stream.write_all(&progress).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let error = ask(&path).unwrap_err();
    assert!(
        matches!(&error, ApiError::Silent { doing: Some(doing), .. } if doing == "waiting"),
        "{error}"
    );
    let done = encode::<Reply>(&Reply::Done { text: "ok".to_owned() }).unwrap();
    let (_dir, path) = daemon(Some(done));
    let long = Duration::from_secs(20);
    let answer = within(&path, long, long);
    assert!(matches!(answer, Ok(Reply::Done { text }) if text == "ok"));
    // Longer than the limit for a silent daemon.
    let slow_dir = tempfile::tempdir().unwrap();
    let path = slow_dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let frame = |reply: Reply| encode(&reply).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&frame(Reply::Progress { doing: "clearing".to_owned() })).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        stream.write_all(&frame(Reply::Done { text: "cleared".to_owned() })).unwrap();
        std::thread::park();
    });
    let answer = within(&path, Duration::from_secs(1), long);
    assert!(matches!(answer, Ok(Reply::Done { text }) if text == "cleared"));
    assert!(matches!(ask(&dir.path().join("none")), Err(ApiError::Away { .. })));
}

#[test]
fn a_silent_daemon_is_given_up() {
    let (_dir, path) = daemon(None);
    assert!(matches!(call(&path), Err(ApiError::Silent { .. })));
}

#[test]
fn a_daemon_that_ends_without_a_word_is_asked_again_and_a_silent_one_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let first = UnixListener::bind(&path).unwrap();
    let taken = path.clone();
    std::thread::spawn(move || {
        let _unanswered = first.accept().unwrap();
        std::fs::remove_file(&taken).unwrap();
        let second = UnixListener::bind(&taken).unwrap();
        let (mut stream, _) = second.accept().unwrap();
        let done = encode::<Reply>(&Reply::Done { text: "ok".to_owned() }).unwrap();
        stream.write_all(&done).unwrap();
        // The next connection is never accepted.
        let _held = (second.accept().unwrap(), second.accept().unwrap());
        std::thread::park();
    });
    let ask = || Client::ask::<NoStatus>(&path, &Call::Status, None, FIRST_BYTE_TIMEOUT);
    assert!(matches!(ask(), Ok(Reply::Done { text }) if text == "ok"));
    assert!(matches!(ask(), Err(ApiError::Silent { doing: None, .. })));
}

#[test]
fn garbage_and_silence_are_different_errors() {
    for bytes in [&b"HTTP/1.1 200 OK\r\n\r\n"[..], b"\0\0\0\x04null", b"\0\0\0\0"] {
        let (_dir, path) = daemon(Some(bytes.to_vec()));
        assert!(matches!(call(&path), Err(ApiError::Garbage(_))), "{bytes:?}");
    }
    let (_dir, path) = daemon(Some(b"\0\0".to_vec()));
    assert!(matches!(call(&path), Err(ApiError::Broken(_))));
}

#[test]
fn a_far_version_is_named() {
    let (_dir, path) = daemon(Some(encode::<Reply>(&Reply::Version { daemon: 9 }).unwrap()));
    assert!(matches!(call(&path), Err(ApiError::Version { daemon: 9 })));
}

#[test]
fn progress_precedes_the_answer() {
    let mut bytes = encode::<Reply>(&Reply::Progress { doing: "starting".to_owned() }).unwrap();
    bytes.extend(encode::<Reply>(&Reply::Done { text: "ok".to_owned() }).unwrap());
    let (_dir, path) = daemon(Some(bytes));
    assert!(matches!(call(&path), Ok(Reply::Done { text }) if text == "ok"));
}
