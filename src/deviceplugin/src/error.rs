//! Errors between kubelet and the plugin.

use std::path::PathBuf;

use mpsgate_kubelet::SocketError;

/// Why there is no list of devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// The list would be larger than a message that kubelet accepts.
    #[error(
        "the node has {devices} devices of {resource}, more than kubelet takes in a message of 4 MiB"
    )]
    TooMany {
        /// The resource's name.
        resource: String,
        /// How many devices there would be.
        devices: u64,
        /// A unit in MiB with which they fit. Zero for cards.
        fits_mib: u64,
    },
}

impl DevicesError {
    /// The remedy.
    #[must_use]
    pub fn hint(&self) -> String {
        let Self::TooMany { fits_mib, .. } = self;
        format!(
            "choose a unit of {fits_mib} MiB or more, and ask for the resource that is named after it"
        )
    }
}

/// Why kubelet and the plugin do not find each other. The plugin tries again after each.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// A socket in kubelet's directory, kubelet's or the plugin's, cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// A process of another user than root listens there.
    #[error("uid {uid} listens on {}, not kubelet", path.display())]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// Its uid.
        uid: u32,
    },
    /// Kubelet refused the registration.
    #[error("kubelet does not register {resource}: {reason}")]
    Refused {
        /// The resource's name.
        resource: String,
        /// Kubelet's words.
        reason: String,
    },
    /// The process on kubelet's socket does not speak gRPC, or broke off.
    #[error("cannot speak to kubelet on {}", path.display())]
    Http {
        /// The socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer.
    #[error("kubelet has not answered on {} for {seconds} s", path.display())]
    Silent {
        /// The socket.
        path: PathBuf,
        /// How long.
        seconds: u64,
    },
}

impl PluginError {
    /// The remedy.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Socket(error) => error.hint(),
            Self::Stranger { path, .. } => format!("ss -xlp | grep {}", path.display()),
            Self::Refused { .. } | Self::Http { .. } | Self::Silent { .. } => {
                "journalctl -u kubelet -n 50".to_owned()
            }
        }
    }
}
