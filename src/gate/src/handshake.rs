//! One client's conversation, up to its word: what it said, and what follows.

pub(crate) use mpsgate_model::door_file::Reason;

use crate::mps_wire::{CREDENTIALS, Message, Sender, Word};

/// Who connected: the kernel's `SO_PEERCRED`, in our own pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its pid; 0 where it is in none that we see.
    pub pid: u32,
}

/// How far a conversation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Words {
    /// The hello was sent.
    Greeted,
    /// Its credentials came.
    Named(Sender),
    /// Its word came.
    Said(Sender, Word),
}

/// What follows from a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// There is more to come.
    Listen,
    /// All was said.
    All(Sender, Word),
    /// The conversation is over.
    End(Reason),
}

impl Words {
    /// Takes the next message of the client that connected as `peer`.
    pub(crate) fn hear(&mut self, peer: Peer, message: &Message<'_>) -> Heard {
        if message.more {
            return Heard::End(Reason::Words);
        }
        let Some(sender) = message.sender else { return Heard::End(Reason::Words) };
        match *self {
            Self::Greeted if message.bytes == CREDENTIALS => {
                *self = Self::Named(sender);
                Heard::Listen
            }
            Self::Greeted => Heard::End(Reason::Words),
            Self::Named(first) => {
                let Ok(word) = message.bytes.try_into() else { return Heard::End(Reason::Words) };
                // Said late, so that it is ended after its word.
                if peer.pid == 0 || [first.pid, sender.pid] != [peer.pid; 2] {
                    return Heard::End(Reason::Sender);
                }
                let word = Word::of(word);
                *self = Self::Said(first, word);
                Heard::All(first, word)
            }
            Self::Said(..) => Heard::End(Reason::Talks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Peer = Peer { pid: 7 };
    const SENDER: Sender = Sender { pid: 7, uid: 1000, gid: 100 };

    fn say(bytes: &[u8]) -> Message<'_> {
        Message { bytes, more: false, sender: Some(SENDER) }
    }

    fn word(number: i32) -> [u8; 4] {
        number.to_ne_bytes()
    }

    #[test]
    fn a_client_says_its_credentials_and_then_its_word() {
        let mut words = Words::Greeted;
        assert_eq!(words.hear(PEER, &say(CREDENTIALS)), Heard::Listen);
        assert_eq!(words.hear(PEER, &say(&word(2))), Heard::All(SENDER, Word::Client));
        assert_eq!(words.hear(PEER, &say(&[0; 4])), Heard::End(Reason::Talks));
    }

    #[test]
    fn what_is_not_said_by_clients_ends_the_conversation() {
        let first: [&[u8]; 6] =
            [b"", b"OUTBCRED", b"OUTBCRED\0\0", b"OUTBHELL\0", &[2, 0, 0, 0], &[b'O'; 16]];
        for bytes in first {
            assert_eq!(Words::Greeted.hear(PEER, &say(bytes)), Heard::End(Reason::Words));
        }
        for bytes in [b"".as_slice(), &[2], &[2, 0, 0], &[2, 0, 0, 0, 0], CREDENTIALS] {
            let heard = Words::Named(SENDER).hear(PEER, &say(bytes));
            assert_eq!(heard, Heard::End(Reason::Words), "{bytes:?}");
        }
        for mut words in [Words::Greeted, Words::Named(SENDER)] {
            let more = Message { more: true, ..say(CREDENTIALS) };
            assert_eq!(words.hear(PEER, &more), Heard::End(Reason::Words));
            let nobody = Message { sender: None, ..say(CREDENTIALS) };
            assert_eq!(words.hear(PEER, &nobody), Heard::End(Reason::Words));
        }
    }

    #[test]
    fn another_process_that_speaks_is_ended_after_its_word() {
        let other = Sender { pid: 8, ..SENDER };
        for (peer, first, second) in [
            (PEER, other, other),
            (PEER, SENDER, other),
            (PEER, other, SENDER),
            (Peer { pid: 0 }, Sender { pid: 0, ..SENDER }, Sender { pid: 0, ..SENDER }),
        ] {
            let mut words = Words::Greeted;
            let credentials = Message { sender: Some(first), ..say(CREDENTIALS) };
            assert_eq!(words.hear(peer, &credentials), Heard::Listen);
            let bytes = word(2);
            let word = Message { sender: Some(second), ..say(&bytes) };
            assert_eq!(words.hear(peer, &word), Heard::End(Reason::Sender));
        }
    }
}
