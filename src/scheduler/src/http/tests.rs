#![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
use axum::body::Body;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;

/// A connection in memory, whose clock stands still while anybody has something to do.
fn connection() -> (DuplexStream, JoinHandle<Duration>) {
    let (client, server) = duplex(1 << 10);
    let large = async || Body::from(vec![b'x'; 1 << 20]);
    let router = Router::new().route("/", get(async || "ok")).route("/large", get(large));
    let (keep, stop) = watch::channel(false);
    let ended = tokio::spawn(async move {
        let began = Instant::now();
        answer(server, Peer::default(), router, stop, None).await;
        drop(keep);
        began.elapsed()
    });
    (client, ended)
}

async fn ask(client: &mut DuplexStream) {
    client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok") {
        assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "it was ended");
    }
}

const SOON: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn whoever_says_nothing_or_does_not_come_to_the_end_of_the_first_head_is_ended_in_seconds() {
    let (_client, ended) = connection();
    assert!(ended.await.unwrap() <= FIRST_HEAD_LIMIT + SOON);

    let (mut client, ended) = connection();
    let drip = async {
        for byte in b"GET / HTTP/1.1\r\nhost: x\r\nand: so\r\non: and\r\n" {
            tokio::time::sleep(SOON).await;
            if client.write_all(&[*byte]).await.is_err() {
                return;
            }
        }
    };
    let (ended, ()) = tokio::join!(ended, drip);
    assert!(ended.unwrap() <= FIRST_HEAD_LIMIT + SOON);
}

#[tokio::test(start_paused = true)]
async fn whoever_was_answered_may_be_idle_for_two_minutes_and_no_longer() {
    let (mut client, ended) = connection();
    for _ in 0..3 {
        ask(&mut client).await;
        tokio::time::sleep(NEXT_HEAD_LIMIT - SOON).await;
    }
    ask(&mut client).await;
    let lived = ended.await.unwrap();
    assert!(lived <= NEXT_HEAD_LIMIT * 4 + SOON, "{lived:?}");
}

#[tokio::test(start_paused = true)]
async fn whoever_does_not_read_the_answer_is_ended() {
    let (mut client, ended) = connection();
    client.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(ended.await.unwrap() <= patient::WRITE_LIMIT + SOON);
    drop(client);

    let (mut client, ended) = connection();
    client.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).await.unwrap();
    assert!(all.len() > 1 << 20, "who reads has all of it");
    ended.await.unwrap();
}

/// A listener on loopback, where bodies are read.
async fn listening() -> (std::net::SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let read = async |body: axum::body::Bytes| body.len().to_string();
    let router = Router::new().route("/", get(async || "ok")).route("/body", post(read));
    let (keep, stop) = watch::channel(false);
    tokio::spawn(listen(listener, router, None, stop));
    (at, keep)
}

async fn said(at: std::net::SocketAddr, request: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|four| four == b"\r\n\r\n") {
        if stream.read_buf(&mut answer).await.unwrap() == 0 {
            break;
        }
    }
    (stream, String::from_utf8(answer).unwrap())
}

#[tokio::test]
async fn whoever_says_nothing_or_half_a_request_or_was_answered_keeps_nobody_out() {
    let (at, _keep) = listening().await;
    let more = addresses::each(at.ip()) + 2;
    let whole = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    for begun in [
        "",
        "GET / HTTP/1.1\r\nhost: ",
        "POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nfour",
    ] {
        let mut held = Vec::new();
        for _ in 0..more {
            let mut stream = TcpStream::connect(at).await.unwrap();
            stream.write_all(begun.as_bytes()).await.unwrap();
            held.push(stream);
        }
        let (_, answer) = said(at, whole).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{begun}: {answer}");
    }
    let mut held = Vec::new();
    for _ in 0..more {
        let (stream, answer) = said(at, whole).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        held.push(stream);
    }
    let body = "POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nfour";
    let (_, answer) = said(at, body).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn whose_request_is_whole_has_its_answer_whoever_comes_meanwhile() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (began, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, goes) = (Arc::clone(&began), Arc::clone(&go));
    let waits = async move || {
        begins.notify_one();
        goes.notified().await;
        "ok"
    };
    let router = Router::new().route("/", get(async || "ok")).route("/waits", get(waits));
    let (_keep, stop) = watch::channel(false);
    tokio::spawn(listen(listener, router, None, stop));
    let asked = tokio::spawn(said(at, "GET /waits HTTP/1.1\r\nhost: x\r\n\r\n"));
    began.notified().await;
    let mut held = Vec::new();
    for _ in 0..addresses::each(at.ip()) + 2 {
        held.push(TcpStream::connect(at).await.unwrap());
    }
    let (_, answer) = said(at, "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    go.notify_one();
    let (_, answer) = asked.await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
