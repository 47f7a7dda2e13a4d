//! A fake `nvidia-cuda-mps-control` for tests on machines without a GPU, and a stand-in for
//! `nvidia-cuda-mps-server` that NVIDIA's own control daemon takes, too.
//!
//! What the real program shows without a GPU it shows too (measured on 535.261.03 and 550.163.01,
//! checked against both by the contract tests of `mpsgate-mps`): argv, files and their modes,
//! answers, privileges, lenient values, the wedge by one idle connection, what quit and SIGTERM
//! leave behind, and the first words of servers and clients ([`wire`]), so that NVIDIA's own
//! libcuda attaches to it. `FAKE_MPS_VERSION=535|550|580`, or that number in a file
//! `fake-mps-version` beside the program, picks the differences.
//!
//! It differs in one thing: while a front-end stays, the real one turns others away, and this one
//! makes them wait.
//!
//! What servers and clients do after their first words is **unverified**: built from NVIDIA's
//! documentation, checked on a real card by `tests/gpu`. Files in the log directory steer the
//! server ([`server`]). `CONTROL client [--alloc MIB]` is a CUDA client, `CONTROL hold N` opens N
//! connections to `control` and says nothing.

mod client;
mod daemon;
mod front_end;
mod record;
mod server;
mod state;
mod value;
mod wire;

use std::path::PathBuf;

pub use server::serve;

/// Runs the program and gives its exit status.
pub fn main() -> u8 {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["-f"] => daemon::run(false),
        ["-d"] => daemon::run_in_background(),
        ["-f", "-multiuser-server"] if version() >= 580 => daemon::run(true),
        ["client", rest @ ..] => client::run(rest),
        ["hold", count] => client::hold(count.parse().unwrap_or(1)),
        // Everything else falls through to the front-end, whatever it says (measured).
        _ => front_end::run(),
    }
}

/// The version whose behaviour is shown: from the environment, or else from the file
/// `fake-mps-version` beside the program, because who runs it properly clears its environment.
fn version() -> u32 {
    let beside = || {
        let program = std::env::current_exe().ok()?;
        std::fs::read_to_string(program.with_file_name("fake-mps-version")).ok()
    };
    let text = std::env::var("FAKE_MPS_VERSION").ok().or_else(beside);
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(550)
}

fn pipe_dir() -> PathBuf {
    std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")
        .map_or_else(|| "/tmp/nvidia-mps".into(), PathBuf::from)
}

fn log_dir() -> PathBuf {
    std::env::var_os("CUDA_MPS_LOG_DIRECTORY")
        .map_or_else(|| "/var/log/nvidia-mps".into(), PathBuf::from)
}
