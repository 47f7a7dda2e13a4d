//! The answer on stdout, everything else on stderr.

use std::io::{self, ErrorKind, IsTerminal, Write as _};

use mpsgate_model::printable;
use serde::Serialize;

use crate::EdgeError;

/// Writes the answer. A reader that has seen enough (`mpsgate status | head -1`) is no error.
///
/// # Errors
/// Where stdout does not take it.
pub fn answer(text: &str) -> Result<(), EdgeError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(EdgeError::Stdout(e)),
        _ => Ok(()),
    }
}

/// `document` as the JSON that is printed: indented, with a line's end. What a terminal would obey
/// in its strings is escaped.
///
/// # Errors
/// Where it is no JSON document: a slip of ours.
pub fn json(document: &impl Serialize) -> Result<String, EdgeError> {
    let mut text = serde_json::to_string_pretty(document).map_err(EdgeError::Json)?;
    text.push('\n');
    Ok(printable::json(text))
}

/// Tells a person who waits what is going on; a script need not know.
pub fn progress(text: &str) {
    if io::stderr().is_terminal() {
        note(&format!("{text}\n"));
    }
}

/// Writes text to stderr. Where that is closed there is nobody to tell.
pub fn note(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether stdout may be coloured: a terminal, and nobody asked for none (<https://no-color.org>).
#[must_use]
pub fn coloured() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !set("NO_COLOR") && !dumb
}
