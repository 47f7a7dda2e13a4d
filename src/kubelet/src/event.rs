//! What happens to a socket of ours, whatever is said on it, and how much of an operator's
//! attention something wants.

use std::fmt;
use std::path::PathBuf;

/// How much of an operator's attention an event wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Somebody must act.
    Error,
    /// Somebody may.
    Warn,
    /// A state changed.
    Info,
    /// Why.
    Debug,
}

/// One thing that happened to a socket of ours.
#[derive(Debug)]
#[non_exhaustive]
pub enum SocketEvent {
    /// It is there.
    Listening(PathBuf),
    /// It has gone, as when kubelet starts; it is made anew.
    Gone(PathBuf),
    /// Somebody else than root connected.
    Stranger {
        /// Who.
        uid: u32,
    },
    /// A connection that could not be kept up.
    Broken(hyper::Error),
}

impl SocketEvent {
    /// How much attention it wants.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Self::Stranger { .. } => Level::Warn,
            Self::Gone(_) => Level::Info,
            Self::Listening(_) | Self::Broken(_) => Level::Debug,
        }
    }
}

impl fmt::Display for SocketEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening(path) => write!(f, "listens on {}", path.display()),
            Self::Gone(path) => write!(f, "{} has gone", path.display()),
            Self::Stranger { uid } => write!(f, "uid {uid} connected, not kubelet"),
            Self::Broken(error) => write!(f, "connection broken: {error}"),
        }
    }
}
