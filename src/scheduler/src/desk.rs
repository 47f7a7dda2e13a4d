//! What comes in and goes out is bounded, for all connections together: bytes that arrive,
//! questions that are answered at a time, bytes of answers. Questions are answered on threads of
//! their own, never where connections or the lease are served.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::Request;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use mpsgate_model::printable::make_text;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::Instant;

/// For the body of a request to arrive.
pub(crate) const BODY_LIMIT: Duration = Duration::from_secs(10);
/// For a question to be answered, waiting for its turn included: kube-scheduler's own limit
/// (`httpTimeout`) where nothing is set.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const KIB: usize = 1024;
/// What of each request, and of each answer, is had without asking: usual ones have less, and never
/// wait for large ones.
const FREE: usize = 256 * KIB;
/// Usual questions that are answered at a time.
const USUAL_AT_A_TIME: usize = 4;
/// Large ones, beside them.
const LARGE_AT_A_TIME: usize = 2;
/// What is larger has both of their turns.
const HALF: usize = 4096 * KIB;
const ARRIVING: usize = 32_768 * KIB;
const LEAVING: usize = 65_536 * KIB;
/// Pieces in which an answer is handed out.
const PIECE: usize = 32 * KIB;

/// One for each listener.
#[derive(Debug)]
pub(crate) struct Desk {
    /// Of one body.
    most: usize,
    /// What to do about a larger one.
    hint: &'static str,
    arriving: Arc<Semaphore>,
    usual: Arc<Semaphore>,
    large: Arc<Semaphore>,
    leaving: Arc<Semaphore>,
}

impl Desk {
    /// For bodies of at most so many bytes; `hint` is what to do about larger ones.
    pub(crate) fn new(most: usize, hint: &'static str) -> Self {
        let places = |bytes: usize| Arc::new(Semaphore::new(bytes.max(most).div_ceil(KIB)));
        Self {
            most,
            hint,
            arriving: places(ARRIVING),
            usual: Arc::new(Semaphore::new(USUAL_AT_A_TIME)),
            large: Arc::new(Semaphore::new(LARGE_AT_A_TIME)),
            leaving: places(LEAVING),
        }
    }

    /// Has a request's body answered by `work`, which has to look whether its time is over. Nobody
    /// reads an answer that comes after `latest`.
    ///
    /// # Errors
    /// A sentence: the body is too large, does not come, or there is no time left for it.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        request: Request<Body>,
        latest: Option<std::time::Instant>,
        work: impl FnOnce(&[u8], std::time::Instant) -> T + Send + 'static,
    ) -> Result<T, String> {
        let by = |limit| {
            let by = Instant::now() + limit;
            latest.map_or(by, |latest| by.min(Instant::from_std(latest)))
        };
        let mut body = self.body(request, self.most, by(BODY_LIMIT)).await?;
        let until = by(ANSWER_LIMIT);
        let (turns, count) = match body.bytes.len() {
            bytes if bytes <= FREE => (&self.usual, 1),
            bytes if bytes <= HALF => (&self.large, 1),
            _ => (&self.large, 2),
        };
        let turn = Arc::clone(turns).acquire_many_owned(count);
        let Ok(Ok(turn)) = tokio::time::timeout_at(until, turn).await else {
            return Err("there are too many other questions; try again".to_owned());
        };
        let answered = tokio::task::spawn_blocking(move || {
            // An API server passes on bytes that are no text, in `managedFields`.
            make_text(&mut body.bytes);
            let answer = work(&body.bytes, until.into_std());
            drop((body, turn));
            answer
        });
        answered.await.map_err(|error| error.to_string())
    }

    /// The whole body, of at most so many bytes, where it has come until then.
    ///
    /// # Errors
    /// A sentence: it is too large, or does not come.
    pub(crate) async fn body(
        &self,
        request: Request<Body>,
        most: usize,
        by: Instant,
    ) -> Result<Arrived, String> {
        let read = async {
            let most = most.min(self.most);
            let mut body = request.into_body();
            let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
            if announced > most {
                return Err(self.too_large(most));
            }
            let mut arrived = Arrived { bytes: Vec::new(), _places: Vec::new() };
            let mut paid = FREE;
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| format!("the request was cut: {error}"))?;
                let Ok(data) = frame.into_data() else { continue };
                let length = arrived.bytes.len().saturating_add(data.len());
                if length > most {
                    return Err(self.too_large(most));
                }
                if paid < length {
                    // At once, where it says its length: two that have a part each would wait for
                    // each other. Not before what is free has come: to say a length costs nothing.
                    let more = announced.max(length).max(paid + FREE) - paid;
                    let all = Arc::clone(&self.arriving).acquire_many_owned(permits(more)).await;
                    arrived._places.extend(all.ok());
                    paid += more;
                    arrived.bytes.reserve_exact(announced.saturating_sub(arrived.bytes.len()));
                }
                arrived.bytes.extend_from_slice(&data);
            }
            Ok(arrived)
        };
        let read = tokio::time::timeout_at(by, read).await;
        read.unwrap_or_else(|_| Err("the request did not arrive in time".to_owned()))
    }

    fn too_large(&self, most: usize) -> String {
        match most >> 20 {
            0 => format!("the request has more than {} KiB", most / KIB),
            mib => format!("the request has more than {mib} MiB; {}", self.hint),
        }
    }

    /// An answer as it is sent: in pieces, and where it is large, while there is room among all
    /// that leave. `None` where there is not.
    pub(crate) fn answer(&self, bytes: impl Into<Bytes>) -> Option<Body> {
        let bytes = bytes.into();
        let place = match bytes.len() {
            ..=FREE => None,
            length => match Arc::clone(&self.leaving).try_acquire_many_owned(permits(length)) {
                Ok(place) => Some(place),
                Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => return None,
            },
        };
        Some(Body::new(Leaving { bytes, _place: place }))
    }
}

/// Who looks at everything: one at a time, on a thread of its own.
#[derive(Debug)]
pub(crate) struct Looks(Arc<Semaphore>);

impl Default for Looks {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Looks {
    /// # Errors
    /// A sentence: too many others look.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let turn = tokio::time::timeout(ANSWER_LIMIT, Arc::clone(&self.0).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            return Err("too many others ask for the same; try again".to_owned());
        };
        let looked = tokio::task::spawn_blocking(move || {
            let seen = look();
            drop(turn);
            seen
        });
        looked.await.map_err(|error| error.to_string())
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX)
}

/// A body, with its places among all that arrive.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) bytes: Vec<u8>,
    _places: Vec<OwnedSemaphorePermit>,
}

/// An answer that is being sent, with its place among all that leave.
struct Leaving {
    bytes: Bytes,
    _place: Option<OwnedSemaphorePermit>,
}

impl axum::body::HttpBody for Leaving {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = self.bytes.len().min(PIECE);
        let piece = self.bytes.split_to(piece);
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests;
