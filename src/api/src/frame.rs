//! Frames: a big-endian length of four bytes, then that many bytes of JSON.

use serde::Serialize;

/// Largest frame in bytes, in both directions: a status of 400 grants takes a quarter of it.
pub const MAX_FRAME: usize = 1 << 20;

/// Why bytes are not a frame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The length is zero or above [`MAX_FRAME`].
    #[error("a frame of {0} bytes (1 to {MAX_FRAME} are allowed)")]
    Length(usize),
    /// The content is not a message of mpsgate.
    #[error("the frame is no message of mpsgate")]
    Content(#[source] serde_json::Error),
    /// The content's version is not a neighbour of this one.
    #[error("the frame is of version {0}")]
    Version(u16),
}

/// A message as the bytes of one frame.
///
/// # Errors
/// If it would be larger than [`MAX_FRAME`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).map_err(FrameError::Content)?;
    let length = bytes.len() - 4;
    if length > MAX_FRAME {
        return Err(FrameError::Length(length));
    }
    let prefix = u32::try_from(length).map_err(|_| FrameError::Length(length))?.to_be_bytes();
    bytes[..4].copy_from_slice(&prefix);
    Ok(bytes)
}

/// The content's length from a frame's first four bytes.
///
/// # Errors
/// If it is zero or above [`MAX_FRAME`].
pub fn decode_length(prefix: [u8; 4]) -> Result<usize, FrameError> {
    let length = usize::try_from(u32::from_be_bytes(prefix)).unwrap_or(usize::MAX);
    if length == 0 || length > MAX_FRAME {
        return Err(FrameError::Length(length));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn lengths_outside_the_limit_are_refused() {
        assert!(decode_length([0; 4]).is_err());
        assert!(decode_length([255; 4]).is_err());
        assert_eq!(decode_length([0, 16, 0, 0]).unwrap(), MAX_FRAME);
        assert!(decode_length([0, 16, 0, 1]).is_err());
        assert!(encode(&"x".repeat(MAX_FRAME)).is_err());
        assert_eq!(encode(&"x").unwrap(), b"\0\0\0\x03\"x\"");
    }
}
