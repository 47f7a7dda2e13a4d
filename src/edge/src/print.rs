//! The answer on stdout, everything else on stderr.

use std::io::{self, ErrorKind, IsTerminal, Write as _};

use mpsgate_model::printable;
use serde::Serialize;

use crate::EdgeError;

/// Writes the answer. A reader that has seen enough (`mpsgate status | head -1`) is no error.
///
/// # Errors
/// If stdout does not accept it.
pub fn answer(text: &str) -> Result<(), EdgeError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(EdgeError::Stdout(e)),
        _ => Ok(()),
    }
}

/// `document` as printed JSON: indented, with a line feed at the end. Characters in its strings
/// that a terminal would obey are escaped.
///
/// # Errors
/// If it has no JSON form: a mistake in mpsgate.
pub fn json(document: &impl Serialize) -> Result<String, EdgeError> {
    let mut text = serde_json::to_string_pretty(document).map_err(EdgeError::Json)?;
    text.push('\n');
    Ok(printable::json(text))
}

/// Prints what is going on, for a person who waits. A script need not know.
pub fn progress(text: &str) {
    if io::stderr().is_terminal() {
        note(&format!("{text}\n"));
    }
}

/// Writes text to stderr. If stderr is closed, nobody can read it.
pub fn note(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether stdout may be coloured: it is a terminal, not a dumb one, and `NO_COLOR` is not set
/// (<https://no-color.org>).
#[must_use]
pub fn coloured() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !set("NO_COLOR") && !dumb
}
