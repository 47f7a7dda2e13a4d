//! The edge: the answer on stdout, errors as `error:`, `cause:` and `hint:` lines on stderr.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal, Write as _};

use serde::Serialize;

use crate::CliError;

/// Writes the answer. A reader that has seen enough (`mpsgate status | head -1`) is no error.
pub(crate) fn answer(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(CliError::Stdout(e)),
        _ => Ok(()),
    }
}

/// `document` as the JSON that is printed: indented, with a line's end.
pub(crate) fn json(document: &impl Serialize) -> Result<String, CliError> {
    let mut text = serde_json::to_string_pretty(document).map_err(CliError::Render)?;
    text.push('\n');
    Ok(text)
}

/// Writes an error to stderr.
pub(crate) fn error(error: &CliError) {
    note(&render_error(error));
}

/// Tells a person who waits what is going on; a script need not know.
pub(crate) fn progress(text: &str) {
    if io::stderr().is_terminal() {
        note(&format!("{text}\n"));
    }
}

/// Writes text to stderr. Where that is closed there is nobody to tell.
pub(crate) fn note(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether stdout may be coloured: a terminal, and nobody asked for none (<https://no-color.org>).
#[must_use]
pub(crate) fn coloured() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !set("NO_COLOR") && !dumb
}

fn render_error(error: &CliError) -> String {
    let mut text = format!("error: {error}\n");
    let mut cause = error.source();
    while let Some(source) = cause {
        // Writing to a String does not fail.
        let _ = writeln!(text, "cause: {source}");
        cause = source.source();
    }
    if let Some(hint) = error.hint() {
        let _ = writeln!(text, "hint: {hint}");
    }
    text
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let _ = write!(text, ": {source}");
        cause = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use mpsgate_api::ApiError;

    use super::*;

    #[test]
    fn an_error_has_one_line_each_for_what_why_and_remedy() {
        let source = io::Error::from(ErrorKind::ConnectionRefused);
        let error = CliError::from(ApiError::Away { path: "/run/s".into(), source });
        assert_eq!(
            render_error(&error),
            "error: mpsgated is not running: no socket answers at /run/s\n\
             cause: connection refused\n\
             hint: systemctl start mpsgated; journalctl -u mpsgated -n 50\n"
        );
    }
}
