//! Random bytes of the kernel.

use std::io::{self, ErrorKind};

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns so many random bytes. It needs no file, unlike `/dev/urandom`.
///
/// # Errors
/// Early in a boot a signal may interrupt the wait for the kernel's first ones (getrandom(2)).
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    // The kernel returns up to 256 bytes whole (getrandom(2)).
    const { assert!(N <= 256, "more than come whole") };
    let mut bytes = [0; N];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(length) if length == N => Ok(bytes),
        Ok(_) => Err(ErrorKind::Interrupted.into()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn each_call_has_other_bytes() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
        assert!(bytes::<0>().unwrap().is_empty());
    }
}
