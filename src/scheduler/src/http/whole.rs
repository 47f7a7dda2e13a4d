//! A request's body that says when it is there: from then on its connection gives way to nobody.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use mpsgate_host::seats::Seat;

pub(super) struct Whole {
    body: Incoming,
    /// Until all of it is there.
    seat: Option<Arc<Seat<IpAddr>>>,
}

impl Whole {
    pub(super) fn new(body: Incoming, seat: Option<Arc<Seat<IpAddr>>>) -> Self {
        let mut new = Self { body, seat };
        new.look(false);
        new
    }

    fn look(&mut self, ended: bool) {
        if (ended || self.body.is_end_stream())
            && let Some(seat) = self.seat.take()
        {
            // Where it has given way already its connection is just being ended.
            let _ = seat.serve();
        }
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.look(frame.is_none());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
