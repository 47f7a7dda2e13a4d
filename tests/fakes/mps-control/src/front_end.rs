//! The front-end: lines of stdin to the daemon, its answers to stdout.

use std::io::BufRead;
use std::os::fd::AsFd;

use crate::pipe_dir;
use crate::wire::{introduced, receive_text, say_text, word};

pub(crate) fn run() -> u8 {
    let dir = pipe_dir();
    // The privileged socket first; ENOENT and EACCES both fall through (measured).
    let connected = introduced(&dir.join("control_privileged"), word::FRONT_END)
        .or_else(|| introduced(&dir.join("control"), word::FRONT_END));
    let Some(daemon) = connected else {
        eprintln!("Cannot find MPS control daemon process");
        return 1;
    };
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if say_text(daemon.as_fd(), &line).is_err() {
            return 1;
        }
        let Some(answer) = receive_text(daemon.as_fd()) else { return 1 };
        // `quit` ends the connection with the daemon's exit status.
        if let Some(status) = answer.strip_prefix("\u{0}quit ") {
            return status.parse().unwrap_or(1);
        }
        print!("{answer}");
    }
    0
}
