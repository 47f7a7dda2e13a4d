//! HTTP, as little as Prometheus needs: GET /metrics, one request a connection.
//!
//! Any user of the node can connect, and one thread does all the daemon's work. So no connection
//! keeps its seat for sure. Where all are taken, one gives way to the next that comes: of the
//! address with the most connections the oldest one, whatever it does. Then one is accepted each
//! millisecond, so each has 64 ms to say what it wants and to be answered. The text is made at most
//! 20 times a second, however often it is asked for.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use mpsgate_host::seats::Seats;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::{openmetrics, scrape};
use crate::DaemonError;
use crate::daemon::Daemon;

/// Connections at a time.
const CONNECTIONS: usize = 64;
/// For a whole connection.
const LIMIT: Duration = Duration::from_secs(5);
/// Between two connections where all seats are taken.
const TURN: Duration = Duration::from_millis(1);
/// After `accept` failed, such as without descriptors.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a text is answered: at most 20 are made a second, some milliseconds of work each on a
/// full node.
const FRESH: Duration = Duration::from_millis(50);
/// Of a request; hyper takes no less.
const HEAD_BYTES: usize = 8 * 1024;
const HEADERS: usize = 32;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Accepts until it is dropped.
pub(super) async fn listen(
    daemon: &Arc<Daemon>,
    listener: &TcpListener,
) -> Result<(), DaemonError> {
    let seats = Seats::new(CONNECTIONS);
    let texts = Arc::new(Texts::default());
    loop {
        let (stream, whose) = match listener.accept().await {
            Ok((stream, peer)) => (stream, peer.ip()),
            Err(error) => {
                log::debug!(reason:% = error; "scrape not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (tell, gives_way) = oneshot::channel();
        let ends = Box::new(move || {
            let _ = tell.send(());
        });
        // Always a seat: no connection here is ever marked as served, so any can give way.
        let seat = seats.take(whose, CONNECTIONS, ends);
        let (shared, texts) = (Arc::clone(daemon), Arc::clone(&texts));
        daemon.spawn("answers a scrape", async move {
            let _seat = seat;
            tokio::select! {
                () = converse(&shared, &texts, stream) => {}
                Ok(()) = gives_way => log::debug!("scrape gives way"),
            }
            Ok(())
        });
        // Who was accepted has its turn first, however many wait.
        if seats.is_full() {
            tokio::time::sleep(TURN).await;
        } else {
            yield_now().await;
        }
    }
}

/// One connection: what goes wrong on it is its caller's.
async fn converse(daemon: &Arc<Daemon>, texts: &Texts, stream: TcpStream) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(daemon, texts, &request);
        async { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(LIMIT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => log::debug!(reason:% = error; "scrape broken off"),
        Err(_) => log::debug!("scrape took too long"),
    }
}

fn answer<B>(daemon: &Daemon, texts: &Texts, request: &Request<B>) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        return reply(StatusCode::NOT_FOUND, PLAIN, "there is only /metrics\n");
    }
    if request.method() != Method::GET {
        let mut refused = reply(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET is answered\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    match texts.now(|| openmetrics::render(scrape::Scrape::of(daemon))) {
        Ok(made) if wants_open_metrics(request) => reply(StatusCode::OK, OPEN_METRICS, made.open),
        Ok(made) => reply(StatusCode::OK, CLASSIC, made.classic),
        // A `String` takes all that is written to it, so this is nobody's day.
        Err(error) => reply(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
    }
}

/// The text that was made last. All who are answered with it share it: who does not read costs no
/// memory of its own.
#[derive(Default)]
struct Texts(Mutex<Option<Made>>);

#[derive(Clone)]
struct Made {
    at: Instant,
    open: Bytes,
    classic: Bytes,
}

impl Texts {
    fn now(
        &self,
        render: impl FnOnce() -> Result<String, std::fmt::Error>,
    ) -> Result<Made, std::fmt::Error> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = last.as_ref().filter(|made| made.at.elapsed() < FRESH) {
            return Ok(made.clone());
        }
        let open = render()?;
        let classic = openmetrics::classic(&open).into();
        // From its end on: a text that takes long to make is not made all the time.
        let made = Made { at: Instant::now(), open: open.into(), classic };
        *last = Some(made.clone());
        Ok(made)
    }
}

/// Prometheus asks for it by name; whoever does not, gets what every reader understands.
fn wants_open_metrics<B>(request: &Request<B>) -> bool {
    let mut accepted = request.headers().get_all(ACCEPT).iter();
    accepted.any(|value| value.to_str().is_ok_and(|v| v.contains("application/openmetrics-text")))
}

fn reply(
    status: StatusCode,
    content: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response
}
