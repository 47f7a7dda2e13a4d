//! One call to the daemon, with its refusals and failures as errors of this program.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use mpsgate_api::{ApiError, Call, Client, FIRST_BYTE_TIMEOUT, Reply, Status};
use mpsgate_model::printable::plain;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::CliError;

/// Longest wait for a card to be handed over, in all: 60 s for its MPS server to start
/// (`mps.start_timeout_s`), and time to stop what was there.
pub(crate) const CARD_LIMIT: Duration = Duration::from_secs(90);

/// Everything that the daemon knows.
pub(crate) fn status(socket: &Path) -> Result<Status, CliError> {
    match call(socket, Call::Status, FIRST_BYTE_TIMEOUT)? {
        Reply::Status(status) => Ok(*status),
        _ => Err(ApiError::Unexpected.into()),
    }
}

/// A call that changes something; what changed, for people.
pub(crate) fn change(socket: &Path, call_: Call) -> Result<String, CliError> {
    match ask(socket, call_)? {
        Reply::Done { text } => Ok(text),
        _ => Err(ApiError::Unexpected.into()),
    }
}

/// A call that may take as long as a card takes; its answer, which is no refusal.
pub(crate) fn ask(socket: &Path, call_: Call) -> Result<Reply, CliError> {
    call(socket, call_, CARD_LIMIT)
}

fn call(socket: &Path, call: Call, limit: Duration) -> Result<Reply, CliError> {
    match Client::connect(socket).and_then(|client| client.call(call, None, limit)) {
        Ok(Reply::Refused(refusal)) => Err(CliError::Refused(plain_answer(refusal))),
        // Of containers, processes and cards it says what they are called; none of that is for the
        // terminal to obey.
        Ok(reply) => Ok(plain_answer(reply)),
        // The daemon may well run: its socket, or the way there, is root's.
        Err(ApiError::Away { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            Err(CliError::NotRoot { source })
        }
        Err(error) => Err(error.into()),
    }
}

/// An answer of the daemon with every text of it [`plain`].
fn plain_answer<T: Serialize + DeserializeOwned>(answer: T) -> T {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_no_part_of_an_answer() {
        let answer = serde_json::json!({"why\u{1b}": ["x\ny", {"n": 1, "z": null, "t": "\u{85}"}]});
        let shown = serde_json::json!({"why�": ["x�y", {"n": 1, "z": null, "t": "�"}]});
        assert_eq!(plain_answer(answer), shown);
    }
}
