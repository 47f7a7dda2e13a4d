//! The first words between a CUDA client and an MPS control daemon, as far as the gate speaks them.
//!
//! Seen by watching our own sockets with NVIDIA's control daemons 535.261.03 and 550.163.01 and
//! NVIDIA's client library of the same versions, without a GPU. Nothing was decompiled or
//! disassembled, and nothing is copied.
//!
//! ```text
//!  client                              daemon        SOCK_SEQPACKET, SO_PASSCRED on both sides
//!     │ ◄──────────── hello, 9 bytes ──── │          on accept
//!     │ ── credentials, 9 bytes ────────► │          with SCM_CREDENTIALS
//!     │ ── word, 4 bytes ───────────────► │          2: "I want a server"
//!     │ ◄─── answer, 9 bytes and a ────── │          once a server is there
//!     │      descriptor                   │          the daemon waits here for
//!     │ ── acknowledgement, 4 bytes ────► │          this, and for nobody else
//! ```
//!
//! A client connects once only to read the hello, closes, and connects again. Closed before the
//! hello, or with a hello of another length, it takes the machine for one without MPS and goes on
//! without a limit; closed at any later point it ends with error 805.

/// Of the daemon's hello. A client looks at the length, and at nothing else of it.
pub(crate) const HELLO: usize = 9;
/// Of the daemon's answer.
pub(crate) const ANSWER: usize = 9;
/// What a client sends with its credentials.
pub(crate) const CREDENTIALS: &[u8; 9] = b"OUTBCRED\0";
/// What a client sends once its server has answered it. The gate sends it at once, so that a client
/// that does not answer keeps nobody waiting.
pub(crate) const ACKNOWLEDGEMENT: [u8; 4] = [0; 4];
/// More than any message of a client. What is longer is cut off, and seen to be.
pub(crate) const LONGEST: usize = 16;

/// What a peer wants of the daemon: its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// A CUDA client: a server. 2.
    Client,
    /// A client under a debugger: cuda-gdb, or one that writes core dumps. 3.
    Debuggee,
    /// Anything else. 1 is a server, 4 every administrative command; a word that the daemon does
    /// not know costs it a descriptor for ever.
    Other(i32),
}

impl Word {
    /// Of the four bytes, in the machine's order.
    pub(crate) fn of(bytes: [u8; 4]) -> Self {
        match i32::from_ne_bytes(bytes) {
            2 => Self::Client,
            3 => Self::Debuggee,
            other => Self::Other(other),
        }
    }

    /// The four bytes.
    pub(crate) fn bytes(self) -> [u8; 4] {
        let number: i32 = match self {
            Self::Client => 2,
            Self::Debuggee => 3,
            Self::Other(number) => number,
        };
        number.to_ne_bytes()
    }
}

/// Who sent a message: the kernel's `SCM_CREDENTIALS`, in our own namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sender {
    /// Its pid; 0 where it is in none that we see.
    pub pid: u32,
    /// Its uid. A process may name each of its real, effective and saved ones.
    pub uid: u32,
    /// Its gid, the same.
    pub gid: u32,
}

/// One message of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    /// Its bytes, at most [`LONGEST`].
    pub bytes: &'a [u8],
    /// Whether there was more: bytes beyond, or descriptors, none of which was taken.
    pub more: bool,
    /// Who sent it.
    pub sender: Option<Sender>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_its_four_bytes() {
        for number in [i32::MIN, -1, 0, 1, 2, 3, 4, 5, 255] {
            let bytes = number.to_ne_bytes();
            assert_eq!(Word::of(bytes).bytes(), bytes);
        }
        assert_eq!(Word::of(2_i32.to_ne_bytes()), Word::Client);
        assert_eq!(Word::of(4_i32.to_ne_bytes()), Word::Other(4));
    }
}
