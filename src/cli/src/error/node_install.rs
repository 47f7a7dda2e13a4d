//! Why `node-install` did not set the node up.

use std::io;
use std::path::PathBuf;

/// A package's. With a pod's there would be two.
pub(crate) const PACKAGED: &str = "/usr/bin/mpsgated";

/// Why the node is not set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeInstallError {
    /// What is to be copied cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file of the image.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The node's file system cannot be reached.
    #[error("cannot enter the node's mount namespace")]
    Enter(#[source] io::Error),
    /// It is called on the node.
    #[error("this is the node's own mount namespace, not a pod's")]
    OnTheNode,
    /// The node has the package.
    #[error("{PACKAGED} is on this node already: it comes from mpsgate's package")]
    Packaged,
    /// Settings that somebody wrote.
    #[error("{} is not of the chart, so it stays as it is", path.display())]
    ForeignSettings {
        /// The file on the node.
        path: PathBuf,
    },
    /// The engine's restart failed.
    #[error("`{command}` failed")]
    Command {
        /// As it was run on the node.
        command: String,
        /// The system's answer, where it could not be run.
        #[source]
        source: Option<io::Error>,
    },
}

impl NodeInstallError {
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Read { .. } => "the image needs mpsgate's programs in /usr/bin: packaging/container/Containerfile".into(),
            Self::Enter(_) => "the container needs hostPID: true and privileged: true".into(),
            Self::OnTheNode => "mpsgate configure ENGINE --write; mpsgate qualify, without --from-pod".into(),
            Self::Packaged => "keep one: remove the package, or exclude this node from the chart's (nodes with the package need no mpsgated pod)".into(),
            Self::ForeignSettings { path } => format!(
                "take its keys into the chart's values (config), then on the node: mv {0} {0}.before-chart",
                path.display()
            ),
            Self::Command { command, .. } => format!("on the node: {command}"),
        }
    }
}
