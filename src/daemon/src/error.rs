//! Why the daemon does not start, or ends. Refusals of containers are not here: see `policy`.

use std::io;
use std::path::PathBuf;

use mpsgate_config::{ConfigError, ExitCode};
use mpsgate_model::ledger_file::LedgerFileError;

/// What ends the process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The settings cannot be used.
    #[error("the settings cannot be used")]
    Config(#[source] ConfigError),
    /// The log goes nowhere.
    #[error("cannot open the log")]
    Log(#[source] Box<dyn std::error::Error + Send + Sync>),
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

impl DaemonError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Config(error) => error.hint(),
            Self::Log(_) => "start mpsgated with a standard error that can be written".to_owned(),
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
        }
    }

    /// What the process exits with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) => ExitCode::BadConfig,
            _ => ExitCode::Failed,
        }
    }
}

fn parent(path: &std::path::Path) -> String {
    path.parent().unwrap_or(path).display().to_string()
}

/// An error and all its causes, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let part = next.to_string();
        // A transparent variant repeats its source's words.
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = next.source();
    }
    text
}
