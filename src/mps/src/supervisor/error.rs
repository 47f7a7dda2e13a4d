//! The errors of the holder, and of asking it.

use std::io;
use std::path::PathBuf;

/// An error of the holder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    Fs {
        /// The operation, as a verb.
        action: &'static str,
        /// What it was applied to.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The kernel refuses something that a holder needs.
    #[error("cannot {action}")]
    System {
        /// The step.
        action: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The directory of the socket lets others in.
    #[error("{} belongs to uid {uid} with mode {mode:04o}, it has to be root's with 0700", path.display())]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// Another holder is running.
    #[error("another holder has {}", path.display())]
    Locked {
        /// Its lock.
        path: PathBuf,
    },
    /// No holder answers.
    #[error("no holder of MPS control daemons answers at {}", socket.display())]
    Away {
        /// Its socket.
        socket: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The holder that answers cannot be used.
    #[error("the holder at {} {why}", socket.display())]
    Stranger {
        /// Its socket.
        socket: PathBuf,
        /// What is wrong with it, as the end of a sentence.
        why: String,
    },
    /// A message has another form, or is of another version.
    #[error("what was said is not understood: {why}")]
    Message {
        /// What is wrong with it.
        why: String,
    },
    /// The holder refuses.
    #[error("the holder of MPS control daemons refuses: {why}")]
    Refused {
        /// Its reason.
        why: String,
    },
}

impl HoldError {
    /// The remedy, as a command if possible.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Fs { path, .. } => format!("ls -ld {}", path.display()),
            Self::System { .. } => "the pod needs privileged: true and hostPID: true".into(),
            Self::Unsafe { path, .. } => {
                format!("chown root:root {0}; chmod 700 {0}", path.display())
            }
            Self::Locked { .. } => {
                "one holder is enough for a node: kubectl get po -A -o wide -l app.aliyun.com/name=mps-control-daemon".into()
            }
            Self::Away { .. } => {
                "kubectl get po -A -o wide -l app.aliyun.com/name=mps-control-daemon; on a host: cat /run/mpsgate/hold/hold.log; without one set mps.supervisor to \"auto\"".into()
            }
            Self::Stranger { .. } => {
                "both pods need hostPID: true and hostIPC: true, and root: kubectl get ds -A -o yaml".into()
            }
            Self::Message { .. } => {
                "run the holder and mpsgated from the same version; before its pod is replaced: docs/kubernetes.md, Upgrading".into()
            }
            Self::Refused { .. } => {
                "cat /run/mpsgate/hold/hold.log, or kubectl logs of the holder's pod".into()
            }
        }
    }

    pub(super) fn fs(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Fs { action, path, source }
    }

    pub(super) fn message(why: impl ToString) -> Self {
        Self::Message { why: why.to_string() }
    }
}
