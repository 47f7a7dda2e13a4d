//! The edge: the answer on stdout, errors as `error:`, `cause:` and `hint:` lines on stderr.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal, Write as _};

use mpsgate_model::printable::plain;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

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
    let mut text = format!("error: {}\n", lines(&error.to_string()));
    let mut cause = error.source();
    while let Some(source) = cause {
        // Writing to a String does not fail.
        let _ = writeln!(text, "cause: {}", lines(&source.to_string()));
        cause = source.source();
    }
    if let Some(hint) = error.hint() {
        let _ = writeln!(text, "hint: {}", lines(&hint));
    }
    text
}

/// [`plain`] for a text of lines, each of which stays one.
#[must_use]
pub(crate) fn lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// An answer of the daemon with every text of it [`plain`].
pub(crate) fn plain_answer<T: Serialize + DeserializeOwned>(answer: T) -> T {
    let Ok(mut value) = serde_json::to_value(&answer) else { return answer };
    plain_value(&mut value);
    serde_json::from_value(value).unwrap_or(answer)
}

fn plain_value(value: &mut Value) {
    match value {
        Value::String(text) => *text = plain(text),
        Value::Array(items) => items.iter_mut().for_each(plain_value),
        Value::Object(members) => {
            // Keys are codes that the shim may have told.
            let clean = std::mem::take(members).into_iter().map(|(key, mut member)| {
                plain_value(&mut member);
                (plain(&key), member)
            });
            *members = clean.collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
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

    #[test]
    fn what_a_terminal_obeys_is_no_part_of_an_answer() {
        let text = "a\u{1b}[2J\u{9b}\u{7f}\u{202e}\u{2069}b\r\tc\nd ü – 名";
        assert_eq!(plain(text), "a�[2J����b��c�d ü – 名");
        assert_eq!(lines(text), "a�[2J����b��c\nd ü – 名");
        let answer = serde_json::json!({"why\u{1b}": ["x\ny", {"n": 1, "z": null, "t": "\u{85}"}]});
        let shown = serde_json::json!({"why�": ["x�y", {"n": 1, "z": null, "t": "�"}]});
        assert_eq!(plain_answer(answer), shown);
    }
}
