//! Why `run` did not start its command.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use mpsgate_edge::{ExitCode, Remedy as _};

use super::CliError;

/// Why the command was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It got no GPU memory.
    #[error(transparent)]
    NotGranted(Box<CliError>),
    /// No names without them.
    #[error("cannot make up a name: the kernel has no random bytes")]
    Random(#[source] io::Error),
    /// There is no such user.
    #[error("there is no user {0:?}")]
    NoUser(String),
    /// It cannot be asked who the user is, or become the user.
    #[error("cannot run as user {user:?}")]
    User {
        /// As it was named.
        user: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The user would share root's terminal.
    #[error("user {0:?} could type into this terminal, as root (TIOCSTI, TIOCLINUX)")]
    Terminal(String),
    /// The cgroup does not hold.
    #[error("{} can be opened, and is no GPU of the grant: the kernel does not close devices to this cgroup", .0.display())]
    Open(PathBuf),
    /// The command is none.
    #[error("cannot execute {:?}", .command)]
    Execute {
        /// Its name.
        command: OsString,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

impl RunError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotGranted(error) => match **error {
                CliError::NotRoot { .. } => Some(
                    "run it as root; or as a user of the group run.group in \
                     /etc/mpsgate/config.toml, which is off by default (docs/run.md)"
                        .to_owned(),
                ),
                ref error => error.hint(),
            },
            Self::Random(_) => Some("name it yourself: --name".to_owned()),
            Self::NoUser(_) => Some("getent passwd".to_owned()),
            Self::User { .. } => Some("run it as root, or without --user".to_owned()),
            Self::Terminal(_) => Some(
                "setsid --wait mpsgate run …, which has no terminal; or, over ssh or in a terminal \
                 emulator, from Linux 6.2 on: sysctl dev.tty.legacy_tiocsti=0"
                    .to_owned(),
            ),
            Self::Open(_) => Some("mpsgate doctor; docs/run.md names what is needed".to_owned()),
            Self::Execute { .. } => None,
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Execute { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                ExitCode::NotFound
            }
            Self::Execute { .. } => ExitCode::NotExecutable,
            _ => ExitCode::NotStarted,
        }
    }
}
