//! The floor: a static program that execs what the shim execs, and nothing else.
//!
//! JUSTIFICATION for unsafe code: C's main, so that the floor has no start-up that the shim has
//! not.
#![no_main]
#![allow(unsafe_code, reason = "see above")]

use std::ffi::{CStr, c_char, c_int};

const RUNTIME: &CStr = c"/run/mpsgate/runtime";

/// C's main.
///
/// # Safety
/// Called by the C library alone, with its own arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(_: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: these are C main's own arguments, and the path is a C string.
    unsafe { nix::libc::execv(RUNTIME.as_ptr(), argv) };
    127
}
