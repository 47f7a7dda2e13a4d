//! Why the daemon does not start, or ends. Refusals of containers are not here: see `policy`.

use std::io;
use std::path::PathBuf;

use mpsgate_config::ConfigError;
use mpsgate_edge::{EdgeError, ExitCode, Remedy};
use mpsgate_model::ledger_file::LedgerFileError;
pub(crate) use mpsgate_model::printable::chain;
use mpsgate_mps::LaunchError;
use mpsgate_mps::supervisor::HoldError;

/// What ends the process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The settings cannot be used.
    #[error("the settings cannot be used")]
    Config(#[source] ConfigError),
    /// The log or an answer goes nowhere.
    #[error(transparent)]
    Edge(EdgeError),
    /// `mpsgated hold` ended.
    #[error(transparent)]
    Hold(HoldError),
    /// `mpsgated launch` has started no control daemon.
    #[error(transparent)]
    Launch(LaunchError),
    /// One of our directories cannot be made.
    #[error("cannot {action} {}", path.display())]
    Directory {
        /// What was tried.
        action: &'static str,
        /// On which directory.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Something else than our directory stands in its place.
    #[error("{} is {found}, not a directory of root's that only root can write", path.display())]
    Planted {
        /// The directory.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// The ledger cannot be read, or another daemon has it.
    #[error("the ledger cannot be used")]
    Ledger(#[source] LedgerFileError),
    /// The list of enabled cards cannot be read.
    #[error("{} cannot be read", path.display())]
    Managed {
        /// The list.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
    /// The socket cannot be made.
    #[error("cannot {action} {}", path.display())]
    Socket {
        /// What was tried.
        action: &'static str,
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The runtime or a signal handler cannot be made.
    #[error("cannot {action}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A task ended that should not have, or panicked.
    #[error("the task that {task} ended: {why}")]
    Task {
        /// What it does.
        task: String,
        /// How it ended.
        why: String,
    },
}

impl Remedy for DaemonError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Config(error) => error.hint(),
            Self::Edge(error) => return error.hint(),
            Self::Hold(error) => error.hint(),
            Self::Launch(error) => error.hint(),
            Self::Directory { path, .. } => {
                format!(
                    "mpsgated needs root and a writable parent: ls -ld {0}; df {0}",
                    parent(path)
                )
            }
            Self::Planted { path, .. } => {
                format!("find out who made it, then move it away: ls -ld {}", path.display())
            }
            Self::Ledger(error) => error.hint(),
            Self::Managed { path, .. } => format!(
                "install the mpsgate that wrote it, where that was a newer one; or move it away and name the cards again: mv {0} {0}.bad; mpsgate enable GPU",
                path.display()
            ),
            Self::Socket { path, .. } => format!("ls -l {}", path.display()),
            Self::System { .. } => "ulimit -n; dmesg | tail".to_owned(),
            Self::Task { .. } => {
                "journalctl -u mpsgated -n 50; please report it with these lines".to_owned()
            }
        })
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) => ExitCode::BadConfig,
            Self::Edge(error) => error.exit_code(),
            Self::Hold(HoldError::Away { .. }) => ExitCode::Unavailable,
            _ => ExitCode::Failed,
        }
    }
}

fn parent(path: &std::path::Path) -> String {
    path.parent().unwrap_or(path).display().to_string()
}
