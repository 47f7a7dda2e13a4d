//! Why a token is not accepted, or cannot be checked.

use std::io;
use std::path::{Path, PathBuf};

use crate::{KeyId, KeysError, TokenError};

/// No list of keys that mpsgated writes is larger: a key takes some hundred bytes.
pub(crate) const SIZE_LIMIT: u64 = 64 << 20;

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A system call failed.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Others than mpsgated could have read or written it.
    #[error("{path} is {found}: others than mpsgated may know the keys in it")]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// Its mode, owner or kind.
        found: String,
    },
    /// Larger than any file that mpsgated writes.
    #[error("{path} has {bytes} bytes, at most {SIZE_LIMIT} are read")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The file is not a list of keys.
    #[error("{path} cannot be read")]
    Keys {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        #[source]
        source: KeysError,
    },
    /// The token is not one of this node's.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The token belongs to another container.
    #[error("it was first brought by container {container} of pod {pod}, and is nobody else's")]
    Bound {
        /// That container's name.
        container: String,
        /// That pod's uid.
        pod: String,
    },
    /// The token belongs to a container whose pod is gone.
    #[error("it was first brought by a container whose pod is gone, and is nobody else's")]
    Spent,
    /// The token belongs to a claim that is reserved for another pod.
    #[error("it stands for a claim that is another pod's")]
    OtherPod,
    /// The token was not used while its key's record was open.
    #[error("it was first brought after the record of its key {key} was closed")]
    Closed {
        /// The key.
        key: KeyId,
    },
}

impl StoreError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Io { path, .. } => format!(
                "check that {0} is writable and its disk not full: ls -ld {0}; df -h {0}",
                path.parent().unwrap_or_else(|| Path::new("/var/lib/mpsgate")).display()
            ),
            Self::Exposed { path, .. } => format!(
                "find out who did it; if nobody can have read it, give it back to mpsgated alone (chmod go= {0}), \
                 else make new keys: remove keys.json beside it, restart mpsgated, and create the pods that \
                 have GPU memory anew",
                path.display()
            ),
            Self::TooLarge { path, .. } | Self::Keys { path, .. } => {
                format!(
                    "restore {0}, or make new keys: mv {1} {1}.bad; systemctl restart mpsgated; then create the \
                     pods that have GPU memory anew",
                    path.display(),
                    path.parent().unwrap_or_else(|| Path::new("/var/lib/mpsgate")).display()
                )
            }
            Self::Token(TokenError::Key { .. }) => {
                "create the pod anew, so that it gets a token of this node, and remove mpsgate.io/grant from its \
                 annotations if it is there"
                    .to_owned()
            }
            Self::Token(TokenError::Claims) => {
                "install the newer version on this node again, or create the pod anew".to_owned()
            }
            Self::Closed { .. } => {
                "create the pod anew, so that it gets a token of the present key; records are closed where a line of \
                 them is damaged, and where hundreds of thousands of containers were started since"
                    .to_owned()
            }
            Self::OtherPod => "give each pod a claim of its own, by a ResourceClaimTemplate, and remove \
                               MPSGATE_GRANT_ variables from its containers' env"
                .to_owned(),
            Self::Token(TokenError::Form | TokenError::Mac) | Self::Bound { .. } | Self::Spent => {
                "remove mpsgate.io/grant from the pod's annotations: only the device plugin writes it, for a \
                 container that asks for GPU memory in resources.limits"
                    .to_owned()
            }
        }
    }
}
