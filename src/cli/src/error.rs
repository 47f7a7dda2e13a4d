//! Everything that ends a command, with its exit code and its remedy.

use std::io;

use mpsgate_api::{ApiError, WireRefusal};
use mpsgate_config::ConfigError;
use mpsgate_edge::{EdgeError, ExitCode, Remedy};

use mpsgate_configure::ConfigureError;

mod ask;
mod bundle;
mod cuda;
mod input;
mod node_install;
mod node_remove;
mod run;
mod run_probe;
mod set_up;
mod slurm;
mod usage;

pub use ask::AskError;
pub use bundle::BundleError;
pub use cuda::CudaError;
pub use input::InputError;
pub use node_install::NodeInstallError;
pub use node_remove::NodeRemoveError;
pub use run::RunError;
pub use run_probe::RunProbeError;
pub use set_up::SetUpError;
pub use slurm::SlurmError;
pub use usage::UsageError;

pub(crate) use input::is_stdin;
pub(crate) use node_install::PACKAGED;

use crate::node_snapshot::SnapshotError;

/// Why a command ended without its answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// The settings cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The daemon does not answer.
    #[error(transparent)]
    Daemon(#[from] ApiError),
    /// The daemon's socket is root's.
    #[error("only root may talk to mpsgated")]
    NotRoot {
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The daemon said no.
    #[error("{} [{}]", .0.sentence, .0.code)]
    Refused(WireRefusal),
    /// A control daemon was not asked, or did not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// What is to be explained cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The node snapshot that was named cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// An engine's settings stay as they are.
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    /// An engine's settings cannot be written or put back.
    #[error(transparent)]
    SetUp(#[from] SetUpError),
    /// No support archive.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// CUDA does not answer.
    #[error(transparent)]
    Cuda(CudaError),
    /// No container for `probe`.
    #[error(transparent)]
    RunProbe(#[from] RunProbeError),
    /// The node is not set up from a pod.
    #[error(transparent)]
    NodeInstall(#[from] NodeInstallError),
    /// What is on the node stays there.
    #[error(transparent)]
    NodeRemove(#[from] NodeRemoveError),
    /// What was used is not known.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// `top` has nowhere to draw.
    #[error("mpsgate top needs a terminal, and {0} is none")]
    NoTerminal(&'static str),
    /// The command of `run` was not started.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Slurm is not told what it wants.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    /// The terminal does not do what it is told.
    #[error("cannot draw on the terminal")]
    Terminal(#[source] io::Error),
    /// The answer cannot be written.
    #[error(transparent)]
    Edge(#[from] EdgeError),
}

impl Remedy for CliError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Config(error) => Some(error.hint()),
            Self::Daemon(error) => Some(error.hint().to_owned()),
            Self::NotRoot { .. } => Some("run it with sudo, or as root".to_owned()),
            Self::Refused(refusal) => Some(refusal.hint.clone()).filter(|hint| !hint.is_empty()),
            Self::Ask(error) => error.hint(),
            Self::Input(error) => Some(error.hint()),
            Self::Snapshot(error) => Some(error.hint()),
            Self::Configure(error) => Some(error.hint()),
            Self::SetUp(error) => error.hint(),
            Self::Bundle(error) => Some(error.hint()),
            Self::Cuda(error) => Some(error.hint()),
            Self::RunProbe(error) => error.hint(),
            Self::NodeInstall(error) => Some(error.hint()),
            Self::NodeRemove(error) => Some(error.hint()),
            Self::Usage(error) => Some(error.hint()),
            Self::Run(error) => error.hint(),
            Self::Slurm(error) => Some(error.hint()),
            Self::NoTerminal(_) => Some("mpsgate status, or mpsgate status -o json".to_owned()),
            Self::Terminal(_) => Some("mpsgate status; TERM says which terminal it is".to_owned()),
            Self::Edge(error) => error.hint(),
        }
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) | Self::Configure(_) => ExitCode::BadConfig,
            Self::SetUp(SetUpError::ChangedSince { .. }) => ExitCode::No,
            Self::Input(InputError::Code { .. }) | Self::Ask(AskError::NotReading { .. }) => {
                ExitCode::Usage
            }
            Self::Ask(_) => ExitCode::Unavailable,
            Self::Daemon(_) | Self::Cuda(_) => ExitCode::Unavailable,
            Self::Refused(_) => ExitCode::No,
            Self::NoTerminal(_) => ExitCode::Usage,
            Self::Edge(error) => error.exit_code(),
            Self::Run(error) => error.exit_code(),
            Self::NotRoot { .. }
            | Self::Input(_)
            | Self::Snapshot(_)
            | Self::SetUp(_)
            | Self::Bundle(_)
            | Self::RunProbe(_)
            | Self::NodeInstall(_)
            | Self::NodeRemove(_)
            | Self::Usage(_)
            | Self::Slurm(_)
            | Self::Terminal(_) => ExitCode::Failed,
        }
    }
}
