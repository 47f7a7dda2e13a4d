//! The messages on the socket: a call with its version, and its answers.

use std::path::PathBuf;

use mpsgate_model::{Answer, Cdi, Code, Grant, Refusal, Subject};
use serde::{Deserialize, Serialize};

use crate::{Call, FrameError, GrantStatus, Json, MpsAction, Status};

/// Version of the messages. During an upgrade two versions run on a node, so each side understands
/// its neighbours.
pub const VERSION: u16 = 1;

/// Whether this side understands a peer of version `other`: the two differ by one at most.
#[must_use]
pub fn compatible(other: u16) -> bool {
    other.abs_diff(VERSION) <= 1
}

/// The message of a caller.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Envelope {
    /// The caller's [`VERSION`].
    pub version: u16,
    /// The call.
    pub call: Call,
}

/// In place of a [`Status`], for callers that never ask for it.
pub type NoStatus = serde::de::IgnoredAny;

/// The daemon's answer. A caller that never asks for a [`Status`] does without the code that reads
/// one: 50 kB of each program in a container's start.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<S = Status> {
    /// Progress, not final: what the daemon waits for.
    Progress {
        /// The text, for people.
        doing: String,
    },
    /// The answer to `reserve`.
    Reserved {
        /// The grant.
        grant: Box<Grant>,
        /// What the node's CDI specifications have for the card. It is not part of the grant,
        /// because the ledger would then hold NVIDIA's list of driver files once per container.
        cdi: Box<Cdi>,
    },
    /// The answer to an `mps` that was not confirmed. Nothing was done.
    WouldEnd {
        /// As text: the shim decodes replies, too, and would carry the code for a list that it
        /// never sees.
        list: Json<WouldEnd>,
    },
    /// The answer to `qualify`'s `begin`.
    Asking {
        /// As text, for the same reason.
        asking: Json<Asking>,
    },
    /// The answer to `qualify`'s `answer`.
    Answered {
        /// The answer that was sent, or what is left of it if it does not count.
        answer: Json<Answer>,
    },
    /// The answer to `reload`: one line for each setting that changed; none if nothing did.
    Reloaded {
        /// The settings that apply now, and those that wait, each with what it waits for.
        lines: Vec<String>,
    },
    /// The answer to `resize`.
    Resized {
        /// The container's memory now, and what that means for its processes.
        lines: Vec<String>,
    },
    /// The answer to every other call that was carried out.
    Done {
        /// What changed, for people; empty if nothing did.
        text: String,
    },
    /// The answer to `status`.
    Status(Box<S>),
    /// A refusal, as an answer to any call.
    Refused(WireRefusal),
    /// The caller's version is not a neighbour of the daemon's.
    Version {
        /// The daemon's version.
        daemon: u16,
    },
}

/// A [`Refusal`] on the wire; a code of another version survives as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireRefusal {
    /// Stable code.
    pub code: String,
    /// One sentence.
    pub sentence: String,
    /// The remedy.
    pub hint: String,
}

impl From<Refusal> for WireRefusal {
    fn from(refusal: Refusal) -> Self {
        Self {
            code: refusal.code.as_str().to_owned(),
            sentence: refusal.sentence,
            hint: refusal.hint,
        }
    }
}

impl From<WireRefusal> for Refusal {
    fn from(wire: WireRefusal) -> Self {
        match Code::parse(&wire.code) {
            Some(code) => Self::new(code, wire.sentence, wire.hint),
            None => Self::new(
                Code::DaemonVersion,
                format!("{} [{}]", wire.sentence, wire.code),
                wire.hint,
            ),
        }
    }
}

/// A card that is kept for questions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Asking {
    /// The prefix of the containers' ids.
    pub id: String,
    /// What the answers will be about.
    pub subject: Subject,
    /// The card's index.
    pub card_index: u32,
    /// The path of the control program.
    pub control: PathBuf,
}

/// The processes that would end with a card's MPS.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WouldEnd {
    /// The action of the call.
    pub action: MpsAction,
    /// The card's UUID.
    pub card: String,
    /// The card's index.
    pub card_index: u32,
    /// Reservations and grants on it, as the ledger records them.
    pub grants: Vec<GrantStatus>,
    /// Its MPS servers and their clients, as the control daemon names them.
    pub servers: Vec<ServerClients>,
    /// Why servers and clients could not be listed, if they could not: there may be more.
    pub unknown: Option<String>,
}

/// One MPS server and its clients.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerClients {
    /// Its pid.
    pub pid: u32,
    /// The uid of its clients.
    pub uid: Option<u32>,
    /// Its clients.
    pub clients: Vec<ClientProcess>,
}

/// One CUDA process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientProcess {
    /// Its pid in the host's pid namespace.
    pub pid: u32,
    /// The container or plain process whose grant it uses, by its name; `None` if it belongs to
    /// none with a grant on the card.
    pub container_id: Option<String>,
    /// Its command line, cut short.
    pub command: String,
}

/// Parses an envelope, the version first, so that another version and garbage are different errors.
///
/// # Errors
/// [`FrameError::Version`] for a version that is no neighbour, another error for bytes that are not
/// an envelope.
pub fn parse_envelope(bytes: &[u8]) -> Result<Envelope, FrameError> {
    #[derive(Deserialize)]
    struct Version {
        version: u16,
    }
    let Version { version } = serde_json::from_slice(bytes).map_err(FrameError::Content)?;
    if !compatible(version) {
        return Err(FrameError::Version(version));
    }
    serde_json::from_slice(bytes).map_err(FrameError::Content)
}

#[cfg(test)]
mod tests;
