//! One call to the daemon, with its refusals and failures as errors of this program.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use mpsgate_api::{ApiError, Call, Client, FIRST_BYTE_TIMEOUT, Reply, Status};

use crate::{CliError, print};

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
        Ok(Reply::Refused(refusal)) => Err(CliError::Refused(print::plain_answer(refusal))),
        // Of containers, processes and cards it says what they are called; none of that is for the terminal to obey.
        Ok(reply) => Ok(print::plain_answer(reply)),
        // The daemon may well run: its socket, or the way there, is root's.
        Err(ApiError::Away { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            Err(CliError::NotRoot { source })
        }
        Err(error) => Err(error.into()),
    }
}
