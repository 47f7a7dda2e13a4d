//! `cuda-client [LIBRARY [leaderless]]`: loads a libcuda (`libcuda.so.1` without a name), calls
//! `cuInit(0)` and prints its own pid and the code. It stays until its standard input ends.
//! `leaderless`: its first thread has ended before, so that the kernel shows a zombie.
//!
//! The code alone proves nothing: 100 means that the library found no MPS, or no card behind it;
//! 805 that somebody greeted it. Whom it reached, the control daemon's own log says, by pid. Exit
//! status: 0 whatever the code, 1 where there is no such library or no cuInit in it.

use std::ffi::{OsString, c_int, c_uint};
use std::process::ExitCode;

use libloading::{Library, Symbol};

fn main() -> ExitCode {
    if std::env::args_os().nth(2).is_some_and(|second| second == "leaderless") {
        std::thread::spawn(|| {
            while !std::fs::read_to_string("/proc/self/stat").is_ok_and(|s| s.contains(") Z ")) {
                std::thread::yield_now();
            }
            std::process::exit(i32::from(run() != ExitCode::SUCCESS));
        });
        end_this_thread();
    }
    run()
}

#[allow(unsafe_code, reason = "JUSTIFICATION: no library of Rust's ends the first thread alone")]
fn end_this_thread() {
    // SAFETY: nobody waits for this thread or uses its stack.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

fn run() -> ExitCode {
    let name = std::env::args_os().nth(1).unwrap_or_else(|| OsString::from("libcuda.so.1"));
    match init(&name) {
        Ok(code) => {
            println!("{} {code}", std::process::id());
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            eprintln!("{}: {error}: {}", name.display(), cause.unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

#[allow(unsafe_code, reason = "JUSTIFICATION: a C library is loaded and called")]
fn init(name: &std::ffi::OsStr) -> Result<c_int, libloading::Error> {
    // SAFETY: whoever runs this names NVIDIA's library, whose start-up code asks nothing of us.
    let library = unsafe { Library::new(name)? };
    // SAFETY: CUresult cuInit(unsigned int flags), as cuda.h has it.
    let init: Symbol<'_, unsafe extern "C" fn(c_uint) -> c_int> =
        unsafe { library.get(b"cuInit\0")? };
    // SAFETY: 0 is the only value that the documentation allows.
    let code = unsafe { init(0) };
    // It has threads of its own by now.
    std::mem::forget(library);
    Ok(code)
}
