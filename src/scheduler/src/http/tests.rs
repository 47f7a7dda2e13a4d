#![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
use axum::body::Body;
use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
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
        answer(server, Peer::default(), router, stop).await;
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
