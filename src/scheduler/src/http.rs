//! Connections: accepted, held to their limits, ended in order. HTTP/1.1, which every kube-scheduler speaks.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::tls::Certificate;

/// Connections at a time; the next ones wait in the kernel's queue.
const CONNECTIONS: usize = 256;
/// For the handshake, and for the head of each request: an idle connection ends, and whoever wants another opens it.
const HEAD_LIMIT: Duration = Duration::from_secs(120);
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// After `accept` failed, such as without descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// Accepts until `stop`. Requests that are being answered then are answered.
pub(crate) async fn listen(
    listener: TcpListener,
    router: Router,
    certificate: Option<Certificate>,
    mut stop: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (stream, place) = tokio::select! {
            (accepted, place) = next => match (accepted, place) {
                (Ok((stream, _)), place) => (stream, place),
                (Err(error), _) => {
                    log::debug!(reason:% = error; "connection not accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            () = async { drop(stop.wait_for(|stop| *stop).await) } => return,
        };
        let (router, stop) = (router.clone(), stop.clone());
        let acceptor = certificate.as_ref().map(Certificate::acceptor);
        tokio::spawn(async move {
            converse(stream, acceptor, router, stop).await;
            drop(place);
        });
    }
}

async fn converse(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    router: Router,
    stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = acceptor else { return answer(stream, router, stop).await };
    match tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => answer(stream, router, stop).await,
        Ok(Err(error)) => log::debug!(reason:% = error; "TLS handshake failed"),
        Err(_) => log::debug!("TLS handshake took too long"),
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = async { drop(stop.wait_for(|stop| *stop).await) } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        log::debug!(reason:% = error; "connection broken off");
    }
}
