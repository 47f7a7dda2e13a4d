//! The bytes of a `config.json`, from a file or from standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use mpsgate_oci::spec::SpecError;

/// Largest document that is read, in bytes. Those of Kubernetes pods have some ten KiB.
pub(super) const MAX_BYTES: u64 = 16 << 20;

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
    /// Longer than any real one.
    #[error("{} is longer than {MAX_BYTES} bytes", name(file))]
    TooLong {
        /// The file, `-` for standard input.
        file: PathBuf,
    },
    /// It looks like a code of mpsgate's and is none.
    #[error("{text} is no code of this version")]
    Code {
        /// What was asked for.
        text: String,
    },
    /// Empty, cut off, not UTF-8, not JSON, or not an object.
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
            Self::TooLong { .. } | Self::Content { .. } => {
                "is it the right file? a fresh one to compare with: runc spec".to_owned()
            }
        }
    }
}

fn name(file: &Path) -> String {
    if is_stdin(file) { "standard input".to_owned() } else { file.display().to_string() }
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// Reads to the end, but never more than [`MAX_BYTES`].
pub(super) fn read(file: &Path) -> Result<Vec<u8>, InputError> {
    let failed = |source| InputError::Read { file: file.to_owned(), source };
    let bytes = if is_stdin(file) {
        read_capped(io::stdin().lock())
    } else {
        File::open(file).and_then(read_capped)
    };
    bytes.map_err(failed)?.ok_or_else(|| InputError::TooLong { file: file.to_owned() })
}

fn read_capped(from: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    // One byte more than allowed tells "too long" from "just fits".
    from.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= MAX_BYTES).then_some(bytes))
}
