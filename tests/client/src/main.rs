//! `cuda-client [LIBRARY [leaderless]]`: loads a libcuda (`libcuda.so.1` without a name), calls
//! `cuInit(0)` and prints its own pid and the code. It stays until its standard input ends.
//! `leaderless`: its first thread has ended before, so that the kernel shows a zombie.
//!
//! `cuda-client - [leaderless | renamed]` loads nothing, prints its pid and stays until it is
//! killed.
//! `renamed`: its name is the byte ff, which is no text, and which the kernel shows as it is.
//! `cuda-client - numbered PID` starts a process with this pid, prints it, and stays. That process
//! ends when this one does; what the kernel says to it is printed where there is none.
//!
//! The code alone proves nothing: 100 means that the library found no MPS, or no card behind it;
//! 805 that somebody greeted it. Whom it reached, the control daemon's own log says, by pid. Exit
//! status: 0 whatever the code, 1 where there is no such library or no cuInit in it.

use std::ffi::{OsString, c_int, c_uint};
use std::io;
use std::process::ExitCode;

use libloading::{Library, Symbol};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let second = words.get(1).and_then(|word| word.to_str());
    if let (Some("numbered"), Some(pid)) = (second, words.get(2)) {
        return numbered(pid.to_str().and_then(|pid| pid.parse().ok()).unwrap_or_default());
    }
    if second == Some("renamed") {
        std::fs::write("/proc/self/comm", b"\xff").expect("a process chooses its name");
    }
    if second == Some("leaderless") {
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
    if name == "-" {
        println!("{}", std::process::id());
        stay();
    }
    match init(&name) {
        Ok(code) => {
            println!("{} {code}", std::process::id());
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            eprintln!("{}: {error}: {}", name.display(), cause.unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

fn stay() -> ! {
    loop {
        std::thread::park();
    }
}

fn numbered(pid: libc::pid_t) -> ExitCode {
    match clone_as(pid) {
        Ok(0) => stay(),
        Ok(child) => {
            println!("{child}");
            reap(child);
            stay()
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// As fork(2) does, with that pid; this process has one thread.
#[allow(unsafe_code, reason = "JUSTIFICATION: no library of Rust's chooses a pid")]
fn clone_as(pid: libc::pid_t) -> io::Result<libc::pid_t> {
    let pids = [pid];
    // SAFETY: all its fields are numbers, for which 0 stands for what is not wanted.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
    args.set_tid = pids.as_ptr() as u64;
    args.set_tid_size = 1;
    // SAFETY: the kernel reads both within the call. Without CLONE_VM the child has a copy of all.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    if child == 0 {
        // SAFETY: numbers alone.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    }
    libc::pid_t::try_from(child).ok().filter(|pid| *pid >= 0).ok_or_else(io::Error::last_os_error)
}

/// Waits for its end, after which its pid may be another's.
#[allow(unsafe_code, reason = "JUSTIFICATION: it is no child of the library of Rust's")]
fn reap(child: libc::pid_t) {
    // SAFETY: where to write a status is left out.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
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
