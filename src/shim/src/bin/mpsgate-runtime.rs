//! `mpsgate-runtime`; see [`mpsgate_shim::runtime`].
#![no_main]
#![allow(unsafe_code, reason = "C's main; see mpsgate_shim::arguments for the justification")]

use std::ffi::{c_char, c_int};

// SAFETY: this program never starts a thread.
#[global_allocator]
static ALLOCATOR: mpsgate_shim::alloc::Bump = unsafe { mpsgate_shim::alloc::Bump::new() };

/// C's main.
///
/// # Safety
/// Called by the C library alone, with its own arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: these are C main's own arguments.
    let arguments = unsafe { mpsgate_shim::arguments(argc, argv) };
    mpsgate_shim::runtime::main(&arguments)
}
