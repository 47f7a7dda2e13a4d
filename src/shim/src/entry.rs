//! Arguments of a program with C's `main`.
//!
//! The programs here do without Rust's own start-up: it sets SIGPIPE to ignored and opens /dev/null
//! for closed standard descriptors. The real runtime would inherit both, but must find its process
//! as the engine made it.
//!
//! JUSTIFICATION for unsafe code: C's argv is raw pointers, and musl's std fills
//! `std::env::args` only in Rust's own start-up. One place.
#![allow(unsafe_code, reason = "see above")]

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

/// Copies argv, `argv[0]` included.
///
/// # Safety
/// `argv` must be C `main`'s: `argc` pointers to NUL-terminated strings.
#[must_use]
pub unsafe fn arguments(argc: c_int, argv: *const *const c_char) -> Vec<OsString> {
    let count = usize::try_from(argc).unwrap_or_default();
    let mut arguments = Vec::with_capacity(count);
    for i in 0..count {
        // SAFETY: `i < argc`, and the caller vouches for argv.
        let argument = unsafe { *argv.add(i) };
        if argument.is_null() {
            break;
        }
        // SAFETY: as above; the string lives as long as the process.
        let argument = unsafe { CStr::from_ptr(argument) };
        arguments.push(OsStr::from_bytes(argument.to_bytes()).to_owned());
    }
    arguments
}
