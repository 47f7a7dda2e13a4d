//! What happens between kubelet and us, for the daemon's log and its metrics.

use std::fmt;
use std::path::PathBuf;

use mpsgate_model::printable::chain;

use crate::{Allocation, Denied, DevicesError, Level, PluginError, SocketEvent};

/// One thing that happened to one resource. A failure that repeats itself is told once.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// Something happened to our socket.
    Socket(SocketEvent),
    /// There is no kubelet now.
    NoKubelet(PathBuf),
    /// Kubelet knows the resource.
    Registered,
    /// Registration, or our socket, failed; it is tried again.
    Failed(PluginError),
    /// Kubelet reads the list.
    Watched {
        /// How many devices it was sent, healthy ones and all.
        healthy: usize,
        /// See there.
        all: usize,
    },
    /// Kubelet reads the list no longer; it is registered again.
    Lost,
    /// Kubelet registered the resource and then did not ask for the list.
    NotWatched {
        /// How long it had time, in seconds.
        seconds: u64,
    },
    /// Kubelet asked in a way that HTTP/2 refuses before anybody sees the request.
    Malformed,
    /// Nothing is advertised.
    Unlistable(DevicesError),
    /// A container got a token.
    Allocated(Allocation),
    /// A container did not.
    Denied(Denied),
}

impl Event {
    /// How much attention it wants.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Self::Socket(event) => event.level(),
            Self::Malformed | Self::Unlistable(_) => Level::Error,
            Self::Failed(_) | Self::NotWatched { .. } | Self::Denied(_) => Level::Warn,
            Self::NoKubelet(_)
            | Self::Registered
            | Self::Watched { .. }
            | Self::Lost
            | Self::Allocated(_) => Level::Info,
        }
    }

    /// What to do, where something is to be done.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Failed(error) => Some(error.hint()),
            Self::Unlistable(error) => Some(error.hint()),
            Self::Malformed => Some(
                "kubelets before 1.27 send the path of the socket as :authority, which HTTP/2 does not allow \
                 (kubernetes issue 107093, mended by pull request 112597): upgrade kubelet to 1.27 or newer"
                    .to_owned(),
            ),
            Self::NotWatched { .. } => Some("journalctl -u kubelet -n 50".to_owned()),
            _ => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(event) => write!(f, "{event}"),
            Self::NoKubelet(path) => write!(f, "no kubelet: {} does not exist", path.display()),
            Self::Registered => f.write_str("registered with kubelet"),
            Self::Failed(error) => f.write_str(&chain(error)),
            Self::Watched { healthy, all } => {
                write!(f, "kubelet reads the list: {healthy} of {all} devices are healthy")
            }
            Self::Lost => f.write_str("kubelet reads the list no longer"),
            Self::NotWatched { seconds } => {
                write!(
                    f,
                    "kubelet registered the resource and did not ask for its list for {seconds} s"
                )
            }
            Self::Malformed => f.write_str("kubelet's request was refused as malformed HTTP/2"),
            Self::Unlistable(error) => write!(f, "nothing is advertised: {error}"),
            Self::Allocated(ask) => write!(f, "token given for {ask}"),
            Self::Denied(denied) => write!(f, "container denied: {denied}"),
        }
    }
}
