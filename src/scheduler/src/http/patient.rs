//! A stream that waits only so long for a client that does not read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How long writing may wait for the client, all in all, from one thing that it says to the next: a
/// byte now and then does not begin it anew.
pub(super) const WRITE_LIMIT: Duration = Duration::from_secs(10);

pub(super) struct Patient<S> {
    stream: S,
    /// What is left of the limit.
    left: Duration,
    /// Since when it waits, and until when.
    waits: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, left: WRITE_LIMIT, waits: None }
    }

    fn wait<T>(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            if let Some((since, _)) = self.waits.take() {
                self.left = self.left.saturating_sub(since.elapsed());
            }
            return done;
        }
        let left = self.left;
        let (_, end) =
            self.waits.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(left))));
        ready!(end.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read its answer",
        )))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, into));
        // The server reads only what comes after an answer that is on its way.
        if into.filled().len() > before {
            (self.left, self.waits) = (WRITE_LIMIT, None);
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wait(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.wait(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        self.wait(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(context);
        self.wait(context, done)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_or_a_byte_now_and_then_is_given_up() {
        let (server, _client) = duplex(16);
        let error = Patient::new(server).write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        let (server, mut client) = duplex(16);
        let drip = async {
            loop {
                tokio::time::sleep(WRITE_LIMIT / 4).await;
                if client.read_u8().await.is_err() {
                    return;
                }
            }
        };
        let mut server = Patient::new(server);
        let written = async {
            let written = server.write_all(&[0; 64]).await;
            drop(server);
            written
        };
        let (written, ()) = tokio::join!(written, drip);
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_each_answer_and_asks_again_is_served_on() {
        let (server, mut client) = duplex(16);
        let mut server = Patient::new(server);
        let asks = async {
            for _ in 0..20 {
                client.write_all(b"?").await.unwrap();
                tokio::time::sleep(WRITE_LIMIT / 2).await;
                client.read_exact(&mut [0; 64]).await.unwrap();
            }
        };
        let answers = async {
            for _ in 0..20 {
                server.read_u8().await.unwrap();
                server.write_all(&[0; 64]).await.unwrap();
            }
        };
        tokio::join!(asks, answers);
    }
}
