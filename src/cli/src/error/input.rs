//! Why `explain` cannot read what it is to explain.

use std::io;
use std::path::{Path, PathBuf};

use mpsgate_oci::spec::SpecError;

/// Why there is nothing to explain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// Opening or reading failed.
    #[error("cannot read {}", name(file))]
    Read {
        /// The file, `-` for standard input.
        file: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// It looks like a code of mpsgate's and is none.
    #[error("{text} is no code of this version")]
    Code {
        /// What was asked for.
        text: String,
    },
    /// Empty, cut off, not JSON, or not an object: the shim refuses it, and no runtime makes a
    /// container of it.
    #[error("{} is no config.json of a container", name(file))]
    Content {
        /// The file, `-` for standard input.
        file: PathBuf,
        /// What is wrong with it.
        #[source]
        source: SpecError,
    },
}

impl InputError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Read { file, source } if source.kind() == io::ErrorKind::IsADirectory => {
                format!(
                    "name the file in it: mpsgate explain {}",
                    file.join("config.json").display()
                )
            }
            Self::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "engines keep bundles for root only: run it with sudo".to_owned()
            }
            Self::Read { .. } => {
                "a bundle's config.json is there while its container is: find / -xdev \
                                  -name config.json -path '*/ID/*'"
                    .to_owned()
            }
            Self::Code { .. } => "the codes of refusals stand in SECURITY.md; of a file of that name: mpsgate explain ./FILE".to_owned(),
            Self::Content { .. } => {
                "is it the right file? a fresh one to compare with: runc spec".to_owned()
            }
        }
    }
}

fn name(file: &Path) -> String {
    if is_stdin(file) { "standard input".to_owned() } else { file.display().to_string() }
}

pub(crate) fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}
