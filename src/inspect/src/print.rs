//! The edge: the answer on stdout, everything else on stderr.

use std::io::{self, ErrorKind, IsTerminal, Write as _};

use crate::InspectError;

/// Writes the answer. A reader that has seen enough (`| head -1`) is no error.
pub(crate) fn answer(text: &str) -> Result<(), InspectError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(InspectError::Stdout(e)),
        _ => Ok(()),
    }
}

/// Writes text to stderr. Where that is closed there is nobody to tell.
pub(crate) fn note(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether stdout may be coloured: a terminal, and nobody asked for none (<https://no-color.org>).
pub(crate) fn coloured() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !set("NO_COLOR") && !dumb
}
