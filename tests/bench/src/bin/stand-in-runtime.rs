//! In place of runc, so that only our own part is measured: ends at once, successfully. With
//! `MPSGATE_BENCH_HOLD` in its environment it waits to be killed, as a runtime that works does.
//!
//! JUSTIFICATION for unsafe code: C's main, so that its own start-up costs next to nothing.
#![no_main]
#![allow(unsafe_code, reason = "see above")]

use std::ffi::{c_char, c_int};

/// C's main.
///
/// # Safety
/// Called by the C library alone, with its own arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(_: c_int, _: *const *const c_char) -> c_int {
    // SAFETY: this program has one thread, which does not change the environment.
    let hold = unsafe { nix::libc::getenv(c"MPSGATE_BENCH_HOLD".as_ptr()) };
    while !hold.is_null() {
        // SAFETY: takes nothing and returns only after a signal handler, of which there are none.
        unsafe { nix::libc::pause() };
    }
    0
}
