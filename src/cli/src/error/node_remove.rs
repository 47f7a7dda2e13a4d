//! Why `node-remove` left the node as it is.

use std::io;
use std::path::PathBuf;

use mpsgate_config::paths;

use super::node_install::PACKAGED;

/// Why the node stays as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeRemoveError {
    /// The node has the package.
    #[error("{PACKAGED} is on this node: it comes from mpsgate's package")]
    Packaged,
    /// mpsgated answers.
    #[error("mpsgated still runs here, with {cards} cards and {grants} grants")]
    Running {
        /// Cards that it manages.
        cards: usize,
        /// Containers with GPU memory.
        grants: usize,
    },
    /// Containers have GPU memory.
    #[error("containers have GPU memory: {0}")]
    Grants(String),
    /// Cards are not as they were.
    #[error("mpsgated is gone, and these cards have not got their compute mode back: {0}")]
    Leases(String),
    /// Something calls mpsgate-runtime, and nothing could take its place.
    #[error("containers were started through {}, and there is no runtime {}", paths::RUNTIME, .0.display())]
    NoRuntime(PathBuf),
    /// What is to go cannot be read or removed.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

impl NodeRemoveError {
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Packaged => "apt remove mpsgate, or dnf remove mpsgate".into(),
            Self::Running { .. } => {
                "helm uninstall mpsgate first, and wait until its pods are gone".into()
            }
            Self::Grants(_) => "end them first: drain the node; or --force, and their GPU work dies with the holder's pod".into(),
            Self::Leases(_) => {
                "nvidia-smi -i UUID -c DEFAULT for each (its file says the mode of before), then again with --force".into()
            }
            Self::NoRuntime(_) => "install it, or end these containers: mpsgate node-remove --callers".into(),
            Self::File { path, .. } => format!("ls -ld {}", path.display()),
        }
    }
}
