//! The front-end: lines of stdin to the daemon, its answers to stdout.

use std::io::BufRead;

use crate::{connect_to, pipe_dir, receive_text, send_text};

pub(crate) fn run() -> u8 {
    let dir = pipe_dir();
    // The privileged socket first; ENOENT and EACCES both fall through (measured).
    let connected =
        connect_to(&dir.join("control_privileged")).or_else(|_| connect_to(&dir.join("control")));
    let Ok(daemon) = connected else {
        eprintln!("Cannot find MPS control daemon process");
        return 1;
    };
    if send_text(&daemon, "UI").is_err() || receive_text(&daemon).is_none() {
        eprintln!("Cannot send command to MPS control daemon process");
        return 1;
    }
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        if send_text(&daemon, &line).is_err() {
            return 1;
        }
        let Some(answer) = receive_text(&daemon) else { return 1 };
        // `quit` ends the connection with the daemon's exit status.
        if let Some(status) = answer.strip_prefix("\u{0}quit ") {
            return status.parse().unwrap_or(1);
        }
        print!("{answer}");
    }
    0
}
