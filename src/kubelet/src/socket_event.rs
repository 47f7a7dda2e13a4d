//! What happens to a socket in kubelet's directory, whatever its protocol, and how much of an
//! operator's attention an event wants.

use std::fmt;
use std::path::PathBuf;

/// How much of an operator's attention an event wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A person must act.
    Error,
    /// A person may have to act.
    Warn,
    /// A state changed.
    Info,
    /// The reason of a change.
    Debug,
}

/// An event of a socket that mpsgate serves.
#[derive(Debug)]
#[non_exhaustive]
pub enum SocketEvent {
    /// The socket is there.
    Listening(PathBuf),
    /// The socket has gone, as when kubelet starts; it is made anew.
    Gone(PathBuf),
    /// Another user than root connected.
    Stranger {
        /// The user's uid.
        uid: u32,
    },
    /// A connection broke.
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
