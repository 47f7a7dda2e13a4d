//! Why the gate cannot begin, or a container has no door.

use std::io;
use std::path::PathBuf;

use mpsgate_edge::{EdgeError, ExitCode, Remedy};

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The kernel refused something about a file or directory.
    #[error("cannot {action} {path}")]
    Fs {
        /// A verb.
        action: &'static str,
        /// Which one.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The kernel refused something else.
    #[error("cannot {action}")]
    System {
        /// A verb with its object.
        action: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// A container's file is not one of ours.
    #[error("{path} is not used: {why}")]
    File {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another gate has the card.
    #[error("another gate serves this GPU: it holds the lock {path}")]
    Taken {
        /// The lock.
        path: PathBuf,
    },
    /// What a client's words need is not there.
    #[error("the capability {0} is missing, without which no client of another uid can attach")]
    Incapable(caps::Capability),
    /// Whoever keeps the sockets does not give them.
    #[error("the sockets of containers cannot be had from {socket}")]
    Store {
        /// The supervisor's.
        socket: PathBuf,
        /// What it did.
        source: io::Error,
    },
    /// A card's gate could not be started.
    #[error("cannot start {program}")]
    Start {
        /// This program.
        program: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The filter of system calls could not be installed.
    #[error("cannot renounce system calls")]
    Filter(#[source] seccompiler::Error),
    /// A capability could not be given up.
    #[error("cannot give up capabilities")]
    Capabilities(#[from] caps::errors::CapsError),
    /// What every program may fail at.
    #[error(transparent)]
    Edge(#[from] EdgeError),
}

impl Remedy for GateError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Fs { .. } | Self::File { .. } => Some(
                "mpsgated makes these files: systemctl status mpsgated; mpsgate status".to_owned(),
            ),
            Self::System { .. } | Self::Incapable(_) | Self::Filter(_) => {
                Some("start it as root, or as its unit does".to_owned())
            }
            Self::Taken { path } => {
                let path = path.display();
                Some(format!("leave it to mpsgated; fuser -v {path} names the other one"))
            }
            Self::Store { .. } => Some(
                "kubectl logs of the pod mpsgate-holder on this node; mpsgated hold --check"
                    .to_owned(),
            ),
            Self::Start { program, .. } => Some(format!("ls -l {}", program.display())),
            Self::Capabilities(_) => {
                Some("start it as root, or with CAP_SETUID, CAP_SETGID and CAP_SETPCAP".to_owned())
            }
            Self::Edge(error) => error.hint(),
        }
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Edge(error) => error.exit_code(),
            _ => ExitCode::Failed,
        }
    }
}

impl GateError {
    pub(crate) fn fs<E: Into<io::Error>>(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Fs { action, path: path.into(), source: source.into() }
    }

    /// Of a call that concerns no file.
    pub fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action, source: source.into() }
    }
}
