//! The events between kubelet and the plugin, for the daemon's log and its metrics.

use std::fmt;
use std::path::PathBuf;

use mpsgate_model::printable::chain;

use crate::{Allocation, Denied, DevicesError, Level, PluginError, SocketEvent};

/// An event of one resource. A repeated failure is reported once.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// An event of the plugin's socket.
    Socket(SocketEvent),
    /// No kubelet runs now.
    NoKubelet(PathBuf),
    /// Kubelet has registered the resource.
    Registered,
    /// Registration or the socket failed; the plugin tries again.
    Failed(PluginError),
    /// Kubelet reads the list.
    Watched {
        /// How many of the devices are healthy.
        healthy: usize,
        /// How many devices the list has.
        all: usize,
    },
    /// Kubelet no longer reads the list; the plugin registers again.
    Lost,
    /// Kubelet registered the resource and then did not ask for the list.
    NotWatched {
        /// How long kubelet had for that, in seconds.
        seconds: u64,
    },
    /// Kubelet sent a request that HTTP/2 refuses before the service sees it.
    Malformed,
    /// The list cannot be made, and nothing is advertised.
    Unlistable(DevicesError),
    /// A container got a token.
    Allocated(Allocation),
    /// A container did not get a token.
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

    /// The remedy, if there is one.
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
