//! What goes over the socket: a call with its version, and the answers to it.

use std::path::PathBuf;

use mpsgate_model::{Answer, Cdi, Code, Grant, Refusal, Subject};
use serde::{Deserialize, Serialize};

use crate::{Call, FrameError, GrantStatus, Json, MpsAction, Status};

/// Version of the messages. A node has two versions at work during an upgrade, so each side
/// understands its neighbours.
pub const VERSION: u16 = 1;

/// Whether this side understands a peer of version `other`: at most one apart.
#[must_use]
pub fn compatible(other: u16) -> bool {
    other.abs_diff(VERSION) <= 1
}

/// What every caller sends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Envelope {
    /// The caller's [`VERSION`].
    pub version: u16,
    /// What it wants.
    pub call: Call,
}

/// In place of a [`Status`], for who never asks for it.
pub type NoStatus = serde::de::IgnoredAny;

/// The daemon's answer. Who never asks for a [`Status`] does without the code that reads one: 50 kB
/// of each program in a container's start.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<S = Status> {
    /// Not final: what the daemon waits for.
    Progress {
        /// For people.
        doing: String,
    },
    /// To `reserve`.
    Reserved {
        /// What was given.
        grant: Box<Grant>,
        /// What the node's CDI specifications say that the card needs. Not part of the grant: the
        /// ledger would hold NVIDIA's list of driver files once per container.
        cdi: Box<Cdi>,
    },
    /// To an `mps` that was not confirmed. Nothing was done.
    WouldEnd {
        /// As text: the shim reads replies, too, and would carry the code for a list that it never
        /// sees.
        list: Json<WouldEnd>,
    },
    /// To `qualify`'s `begin`.
    Asking {
        /// As text, for the same reason.
        asking: Json<Asking>,
    },
    /// To `qualify`'s `answer`.
    Answered {
        /// The one that was sent, or what is left of it where it does not count.
        answer: Json<Answer>,
    },
    /// To `reload`: one line for each setting that changed; none where nothing did.
    Reloaded {
        /// What was taken, and what waits for what.
        lines: Vec<String>,
    },
    /// To `resize`.
    Resized {
        /// What the container has now, and what that means for its processes.
        lines: Vec<String>,
    },
    /// To every other call that was carried out.
    Done {
        /// What changed, for people; empty where nothing did.
        text: String,
    },
    /// To `status`.
    Status(Box<S>),
    /// A refusal, in any place.
    Refused(WireRefusal),
    /// The caller's version is too far away.
    Version {
        /// The daemon's.
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
    /// What to do.
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

/// A card that is kept for those who ask it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Asking {
    /// How the ids of the containers have to begin.
    pub id: String,
    /// Of what it is asked.
    pub subject: Subject,
    /// The card's index.
    pub card_index: u32,
    /// Where the control program lies.
    pub control: PathBuf,
}

/// Who dies with a card's MPS.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WouldEnd {
    /// What was asked for.
    pub action: MpsAction,
    /// The card's UUID.
    pub card: String,
    /// The card's index.
    pub card_index: u32,
    /// Reservations and grants on it, as the ledger records them.
    pub grants: Vec<GrantStatus>,
    /// Its MPS servers and their clients, as the control daemon names them.
    pub servers: Vec<ServerClients>,
    /// Why servers and clients could not be listed, where they could not: there may be more.
    pub unknown: Option<String>,
}

/// One MPS server and who uses it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerClients {
    /// Its pid.
    pub pid: u32,
    /// Whose clients it serves.
    pub uid: Option<u32>,
    /// Its clients.
    pub clients: Vec<ClientProcess>,
}

/// One CUDA process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClientProcess {
    /// Its pid, as the host counts.
    pub pid: u32,
    /// The container or plain process whose grant it uses, by its name; `None` where it is of
    /// nobody with a grant on the card.
    pub container_id: Option<String>,
    /// Its command line, cut short.
    pub command: String,
}

/// Reads an envelope; the version first, so that a far one is told from garbage.
///
/// # Errors
/// [`FrameError::Version`] for a version too far away, another one for what is no envelope.
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
