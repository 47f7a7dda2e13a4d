//! For `tests/properties` alone: parsers of what others wrote.

use mpsgate_model::door_file::{self, Container, LONGEST_LINE, Prepared, Question};

use crate::handshake::{Heard, Peer, Words};
use crate::mps_wire::{CREDENTIALS, LONGEST, Message, Sender, Word};

/// Holds what must hold for the messages of a client. Each begins with two bytes: what comes with
/// it, and its length.
///
/// # Panics
/// Where it does not.
pub fn conversation(data: &[u8]) {
    let peer = Peer { pid: 7 };
    let mut words = Words::Greeted;
    let mut taken = Vec::new();
    let mut rest = data;
    while let [with, length, bytes @ ..] = rest {
        let length = usize::from(*length).min(LONGEST).min(bytes.len());
        let (bytes, after) = bytes.split_at(length);
        rest = after;
        let sender = Sender { pid: 7 + u32::from(with >> 4), uid: 0, gid: 0 };
        let sender = (with & 2 == 0).then_some(sender);
        let message = Message { bytes, more: with & 1 != 0, sender };
        taken.push(message);
        match words.hear(peer, &message) {
            Heard::Listen => assert_eq!(taken.len(), 1),
            Heard::End(_) => return,
            Heard::All(sender, word) => {
                assert!(taken.iter().all(|message| !message.more));
                assert!(taken.iter().all(|message| message.sender == Some(sender)));
                assert_eq!(sender.pid, peer.pid);
                let said: Vec<&[u8]> = taken.iter().map(|message| message.bytes).collect();
                assert_eq!(said, [CREDENTIALS.as_slice(), &word.bytes()]);
                assert_eq!(Word::of(word.bytes()), word);
            }
        }
    }
}

/// Holds what must hold for a container's file: its name in the first line.
///
/// # Panics
/// Where it does not.
pub fn container(data: &[u8]) {
    let (name, file) = data.split_at(data.iter().position(|byte| *byte == b'\n').unwrap_or(0));
    if let Some(name) = std::str::from_utf8(name).ok().and_then(door_file::instance_of) {
        assert_eq!(door_file::instance_of(&door_file::file_name(&name)).as_ref(), Some(&name));
        assert!(!name.as_str().contains(['/', '.']));
    }
    let Ok(container) = Container::read(file) else { return };
    let written = container.write().map(|bytes| Container::read(&bytes));
    assert!(matches!(written, Ok(Ok(read)) if read == container));
}

/// Holds what must hold for a line between gate and mpsgated: what is a question is what was asked,
/// whatever a control daemon put into it.
///
/// # Panics
/// Where it does not.
pub fn question(line: &[u8]) {
    if let Ok(prepared) = Prepared::read(line) {
        assert!(matches!(Prepared::read(&prepared.line()), Ok(read) if read == prepared));
    }
    let why = String::from_utf8_lossy(line).into_owned();
    let unserved = Question::Unserved { why };
    for question in [Question::read(line).ok(), Some(unserved)].into_iter().flatten() {
        let line = question.line();
        assert!(line.len() <= LONGEST_LINE && !line[..line.len() - 1].contains(&b'\n'));
        assert!(matches!(Question::read(&line), Ok(read) if read.line() == line));
    }
}
