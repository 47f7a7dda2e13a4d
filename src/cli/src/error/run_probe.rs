//! Why `probe` ran no container.

use std::io;
use std::path::PathBuf;

/// Why no container ran.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunProbeError {
    /// The container would outlive us.
    #[error("cannot watch for the signals that end it (SIGHUP, SIGINT, SIGTERM)")]
    Signals(#[source] io::Error),
    /// The container runs our own program.
    #[error("cannot tell where this program lies")]
    Own(#[source] io::Error),
    /// The bundle cannot be written.
    #[error("cannot make the container's bundle in /run")]
    Bundle(#[source] io::Error),
    /// Our runtime cannot be started.
    #[error("cannot start {}", .program.display())]
    Start {
        /// What was to be started.
        program: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Another one asks.
    #[error("another mpsgate qualify is at work")]
    Busy,
    /// A signal ended the waiting.
    #[error("ended by a signal; its container was killed")]
    Ended,
}

impl RunProbeError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Signals(_) => {
                Some("run it on the node itself: a sandbox may forbid sigaction(2)".to_owned())
            }
            Self::Own(_) => Some(
                "/proc/self/exe tells; where /proc is missing: mount -t proc proc /proc".to_owned(),
            ),
            Self::Bundle(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Some("run it with sudo, or as root".to_owned())
            }
            Self::Bundle(_) => Some("df -h /run".to_owned()),
            Self::Start { .. } => Some("mpsgate doctor".to_owned()),
            Self::Busy => Some("it ends within 90 s: mpsgate status".to_owned()),
            Self::Ended => None,
        }
    }
}
