//! Connections: accepted, held to their limits, ended in order. HTTP/1.1, which every
//! kube-scheduler speaks.
//!
//! | until | at most |
//! |---|---|
//! | the handshake of TLS is done | 5 s |
//! | the first head is read | 5 s |
//! | the next one is, after an answer | 120 s |
//! | an answer is read by the client | 10 s of waiting ([`patient`]) |
//!
//! Until it has shown a certificate, a connection has a seat among those of all strangers, and of
//! its address ([`addresses`]). Where there is none for who comes, one gives way that has not said
//! all of a request, or was answered ([`mpsgate_host::seats`]).

mod addresses;
mod patient;
mod whole;

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mpsgate_host::seats::{Seat, Seats};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::yield_now;

use self::patient::Patient;
use self::whole::Whole;
use crate::tls::Certificate;

/// Connections at a time of those that have shown no certificate.
const STRANGERS: usize = 256;
/// And of those that have.
const KNOWN: usize = 256;
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
const FIRST_HEAD_LIMIT: Duration = Duration::from_secs(5);
/// An idle connection ends, and whoever wants another opens it.
const NEXT_HEAD_LIMIT: Duration = Duration::from_secs(120);
/// What a head may have, and what is made ready of an answer before it can be sent.
const BUFFER: usize = 1 << 16;
/// After `accept` failed, such as without descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// Who asks, as the connection knows it: an extension of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Peer {
    /// It has shown a certificate that the client CA has signed.
    pub(crate) verified: bool,
}

/// Accepts until `stop`. Requests that are being answered then are answered.
pub(crate) async fn listen(
    listener: TcpListener,
    router: Router,
    certificate: Option<Certificate>,
    mut stop: watch::Receiver<bool>,
) {
    let seats = Seats::new(STRANGERS);
    let known = Arc::new(Semaphore::new(KNOWN));
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    log::debug!(reason:% = error; "connection not accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            () = stopped(&mut stop) => return,
        };
        let whose = addresses::whose(peer.ip());
        let (tell, gives_way) = oneshot::channel();
        let ends = Box::new(move || {
            let _ = tell.send(());
        });
        let Ok(seat) = seats.take(whose, addresses::each(whose), ends) else {
            log::debug!(peer:% = peer; "connection not accepted: too many requests are answered");
            continue;
        };
        let (router, stop) = (router.clone(), stop.clone());
        let (certificate, known) = (certificate.clone(), Arc::clone(&known));
        tokio::spawn(async move {
            tokio::select! {
                () = converse(stream, certificate, router, stop, known, seat) => {}
                Ok(()) = gives_way => log::debug!(peer:% = peer; "connection gives way"),
            }
        });
        // Who was accepted has its turn first, however many wait.
        yield_now().await;
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

async fn converse(
    stream: TcpStream,
    certificate: Option<Certificate>,
    router: Router,
    stop: watch::Receiver<bool>,
    known: Arc<Semaphore>,
    seat: Seat<IpAddr>,
) {
    let _ = stream.set_nodelay(true);
    let Some(certificate) = certificate else {
        return answer(stream, Peer::default(), router, stop, Some(seat)).await;
    };
    match tokio::time::timeout(HANDSHAKE_LIMIT, certificate.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => {
            let peer = Peer { verified: stream.get_ref().1.peer_certificates().is_some() };
            if !peer.verified {
                return answer(stream, peer, router, stop, Some(seat)).await;
            }
            let _place = known.acquire_owned().await;
            drop(seat);
            answer(stream, peer, router, stop, None).await;
        }
        Ok(Err(error)) => log::debug!(reason:% = error; "TLS handshake failed"),
        Err(_) => log::debug!("TLS handshake took too long"),
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: Peer,
    router: Router,
    mut stop: watch::Receiver<bool>,
    seat: Option<Seat<IpAddr>>,
) {
    let asked = Arc::new(AtomicBool::new(false));
    let service = Introduced {
        router: TowerToHyperService::new(router),
        peer,
        asked: Arc::clone(&asked),
        seat: seat.map(Arc::new),
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(NEXT_HEAD_LIMIT)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(Patient::new(stream)), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = silence(&asked) => return log::debug!("no request came"),
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        log::debug!(reason:% = error; "connection broken off");
    }
}

/// Ends where nothing was asked in time.
async fn silence(asked: &AtomicBool) {
    tokio::time::sleep(FIRST_HEAD_LIMIT).await;
    if asked.load(Ordering::Relaxed) {
        std::future::pending().await
    }
}

/// The router, told who asks.
struct Introduced {
    router: TowerToHyperService<Router>,
    peer: Peer,
    asked: Arc<AtomicBool>,
    /// A stranger's.
    seat: Option<Arc<Seat<IpAddr>>>,
}

type Answered = <TowerToHyperService<Router> as Service<Request<Whole>>>::Future;
type Response = <TowerToHyperService<Router> as Service<Request<Whole>>>::Response;
type Unanswered = <TowerToHyperService<Router> as Service<Request<Whole>>>::Error;

impl Service<Request<Incoming>> for Introduced {
    type Response = Response;
    type Error = Unanswered;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Unanswered>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        self.asked.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(self.peer);
        let seat = self.seat.clone();
        let answered: Answered =
            self.router.call(request.map(|body| Whole::new(body, seat.clone())));
        Box::pin(async move {
            let answer = answered.await;
            // Whoever does not read it is not served any more.
            if let Some(seat) = seat {
                seat.waits();
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests;
