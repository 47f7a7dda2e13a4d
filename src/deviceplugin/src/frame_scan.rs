//! Scans the output of a connection for the one frame that means a malformed request.
//!
//! Kubelets before 1.27 send `:authority` as the path of the plugin's socket (kubernetes issue
//! 107093). h2 resets such a stream before any service or error handler sees it. So the reset
//! itself, RST_STREAM with PROTOCOL_ERROR in the output, is the only sign.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// RFC 9113: length (3), type, flags, stream (4).
const HEADER: usize = 9;
const RST_STREAM: u8 = 3;
const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];

/// Follows frames however the output is divided.
#[derive(Debug, Default)]
struct Frames {
    header: Vec<u8>,
    /// Bytes that are left of the current frame.
    left: usize,
    code: Vec<u8>,
}

impl Frames {
    /// Whether a reset for a malformed request ends in `bytes`.
    fn pass(&mut self, bytes: &[u8]) -> bool {
        let mut found = false;
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.header.len() < HEADER {
                let (now, later) = rest.split_at(rest.len().min(HEADER - self.header.len()));
                self.header.extend_from_slice(now);
                rest = later;
                if let [a, b, c, ..] = *self.header.as_slice() {
                    self.left = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(0);
                }
            } else {
                let (now, later) = rest.split_at(rest.len().min(self.left));
                self.left -= now.len();
                rest = later;
                if self.header.get(3) == Some(&RST_STREAM) {
                    self.code.extend_from_slice(now);
                }
            }
            if self.header.len() == HEADER && self.left == 0 {
                found |= self.code == PROTOCOL_ERROR;
                self.header.clear();
                self.code.clear();
            }
        }
        found
    }
}

/// A connection with a scanned output.
pub(crate) struct Scanned<S, F> {
    inner: S,
    frames: Frames,
    malformed: F,
}

impl<S, F: FnMut()> Scanned<S, F> {
    /// Calls `malformed` for each request that was reset as malformed.
    pub(crate) fn new(inner: S, malformed: F) -> Self {
        Self { inner, frames: Frames::default(), malformed }
    }
}

impl<S: AsyncRead + Unpin, F: Unpin> AsyncRead for Scanned<S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin, F: FnMut() + Unpin> AsyncWrite for Scanned<S, F> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, bytes))?;
        if self.frames.pass(bytes.get(..written).unwrap_or_default()) {
            (self.malformed)();
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap_or(u8::MAX);
        [&[0, 0, length, kind, 0, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn a_reset_is_found_wherever_the_pieces_end() {
        // SETTINGS, its empty acknowledgement, and DATA that holds what looks like a reset.
        let reset = frame(RST_STREAM, &PROTOCOL_ERROR);
        let before = [frame(4, &[0; 6]), frame(4, &[]), frame(0, &reset)].concat();
        let all = [before.clone(), reset, frame(6, &[0; 8])].concat();
        for size in 1..=all.len() {
            let mut frames = Frames::default();
            let found = all.chunks(size).filter(|piece| frames.pass(piece)).count();
            assert_eq!(found, 1, "in pieces of {size}");
            let mut frames = Frames::default();
            assert!(before.chunks(size).all(|piece| !frames.pass(piece)), "{size}");
        }
    }

    #[test]
    fn other_resets_are_none_of_malformed_requests() {
        let cancel = frame(RST_STREAM, &[0, 0, 0, 8]);
        assert!(!Frames::default().pass(&cancel));
    }
}
