//! What can go wrong with a socket in kubelet's directory.

use std::io;
use std::path::PathBuf;

/// Why a socket cannot be used. Each cause may pass, and the service tries again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// A file of kubelet's directory cannot be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Others than root may change kubelet's directory, so nothing in it can be trusted.
    #[error("{} is not a directory of root's alone (owner {owner}, mode {mode:04o})", path.display())]
    NotRoots {
        /// The directory.
        path: PathBuf,
        /// Its owner's uid.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// Something other than a socket has the name.
    #[error("{} is not a socket", path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
}

impl SocketError {
    /// What to do.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::File { path, .. } => {
                format!("ls -ld {}; journalctl -u kubelet -n 50", path.display())
            }
            Self::NotRoots { path, .. } => {
                format!("chown root {0} && chmod go-w {0}", path.display())
            }
            Self::NotASocket { path } => {
                format!("look who made it, and remove it: ls -l {}", path.display())
            }
        }
    }
}
