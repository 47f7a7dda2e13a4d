//! HTTP, as little as Prometheus needs: GET /metrics, one request a connection. Any user of the
//! node can connect, and one thread does all the daemon's work: so connections are few, short, and
//! not one after another without a pause. Who takes them all away keeps others from the metrics,
//! and from nothing else.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{scrape, text};
use crate::DaemonError;
use crate::daemon::Daemon;

/// Connections at a time; the next ones wait in the kernel's queue.
const CONNECTIONS: usize = 4;
/// For a whole connection.
const LIMIT: Duration = Duration::from_secs(5);
/// Before the place of a connection is given to the next: at most 20 scrapes a second, some
/// milliseconds of work each on a full node.
const PAUSE: Duration = Duration::from_millis(200);
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
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.map_err(|error| {
            DaemonError::Task { task: "accepts scrapes".to_owned(), why: error.to_string() }
        })?;
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::debug!(reason:% = error; "scrape not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let shared = Arc::clone(daemon);
        daemon.spawn("answers a scrape", async move {
            converse(&shared, stream).await;
            tokio::time::sleep(PAUSE).await;
            drop(place);
            Ok(())
        });
    }
}

/// One connection: what goes wrong on it is its caller's.
async fn converse(daemon: &Arc<Daemon>, stream: TcpStream) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(daemon, &request);
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

fn answer<B>(daemon: &Daemon, request: &Request<B>) -> Response<String> {
    if request.uri().path() != "/metrics" {
        return reply(StatusCode::NOT_FOUND, PLAIN, "there is only /metrics\n".to_owned());
    }
    if request.method() != Method::GET {
        let sentence = "only GET is answered\n".to_owned();
        let mut refused = reply(StatusCode::METHOD_NOT_ALLOWED, PLAIN, sentence);
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    let rendered = text::render(scrape::Scrape::of(daemon));
    match rendered {
        Ok(open) if wants_open_metrics(request) => reply(StatusCode::OK, OPEN_METRICS, open),
        Ok(open) => reply(StatusCode::OK, CLASSIC, text::classic(&open)),
        // A `String` takes all that is written to it, so this is nobody's day.
        Err(error) => reply(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
    }
}

/// Prometheus asks for it by name; whoever does not, gets what every reader understands.
fn wants_open_metrics<B>(request: &Request<B>) -> bool {
    let mut accepted = request.headers().get_all(ACCEPT).iter();
    accepted.any(|value| value.to_str().is_ok_and(|v| v.contains("application/openmetrics-text")))
}

fn reply(status: StatusCode, content: &'static str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response
}
