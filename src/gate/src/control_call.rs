//! The one conversation at a time with the control daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::door_effect::Failure;
use crate::mps_wire::{HELLO, Sender, Word};
use crate::sockets::{self, Answer, Heard};

/// For a control daemon that answers. It answers within some ms, unless it has no server.
const LIMIT: Duration = Duration::from_secs(1);

/// A conversation for one client, or to learn the hello.
pub(crate) struct Call {
    daemon: OwnedFd,
    /// Whose words are to be said; none: only the hello is wanted.
    words: Option<(Sender, Word)>,
    is_greeted: bool,
    until: Instant,
}

/// What a conversation has come to.
pub(crate) enum Step {
    /// There is more to wait for.
    Wait,
    /// The daemon's hello.
    Hello([u8; HELLO]),
    /// Its answer, acknowledged.
    Answer(Answer),
    /// It is over; the second tells why, where the daemon said something that is not known.
    Failed(Failure, Option<String>),
}

impl Call {
    /// Connects; `None` where nobody takes the connection.
    pub(crate) fn dial(
        pipe: BorrowedFd<'_>,
        words: Option<(Sender, Word)>,
        now: Instant,
    ) -> Option<Self> {
        let daemon = sockets::dial(pipe).ok()?;
        Some(Self { daemon, words, is_greeted: false, until: now + LIMIT })
    }

    /// What the control daemon's words are waited for on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.daemon.as_fd()
    }

    /// When it is over at the latest.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// Whether only the hello is wanted.
    pub(crate) fn is_for_hello(&self) -> bool {
        self.words.is_none()
    }

    /// Whether the daemon has said a hello that is known.
    pub(crate) fn is_greeted(&self) -> bool {
        self.is_greeted
    }

    /// Takes what the daemon has said, one message at a time.
    pub(crate) fn step(&mut self) -> Step {
        if self.is_greeted {
            return match sockets::answer(self.fd()) {
                Ok(Heard::Said(answer)) => Step::Answer(answer),
                Ok(Heard::Nothing) => Step::Wait,
                Ok(Heard::Gone) => Step::Failed(Failure::Unreachable, None),
                Err(error) => Step::Failed(Failure::Unreachable, Some(error.to_string())),
            };
        }
        let hello = match sockets::greeting(self.fd()) {
            Ok(Heard::Said(hello)) => hello,
            Ok(Heard::Nothing) => return Step::Wait,
            Ok(Heard::Gone) => return Step::Failed(Failure::Unreachable, None),
            Err(error) => return Step::Failed(Failure::Unreachable, Some(error.to_string())),
        };
        self.is_greeted = true;
        match self.words {
            None => Step::Hello(hello),
            Some((sender, word)) => match sockets::ask(self.fd(), sender, word) {
                Ok(()) => Step::Hello(hello),
                Err(error) => {
                    let why = format!("it does not take a client's words: {error}");
                    Step::Failed(Failure::Unreachable, Some(why))
                }
            },
        }
    }
}
