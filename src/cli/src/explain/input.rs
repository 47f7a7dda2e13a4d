//! The bytes of a `config.json`, from a file or from standard input.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

use mpsgate_oci::spec::SpecError;
use mpsgate_policy::{Bytes, DOCUMENT_MAX};

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

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// What is to be explained.
pub(super) enum Content {
    /// All of it.
    Whole(Vec<u8>),
    /// More than is parsed, in pieces.
    Large(Box<dyn Read>),
}

impl Content {
    pub(super) fn bytes(&mut self) -> Bytes<'_> {
        match self {
            Self::Whole(bytes) => Bytes::Whole(bytes),
            Self::Large(from) => Bytes::Pieces(from),
        }
    }
}

/// Reads what the shim would have in memory.
pub(super) fn read(file: &Path) -> Result<Content, InputError> {
    let failed = |source| InputError::Read { file: file.to_owned(), source };
    let from: Box<dyn Read> = if is_stdin(file) {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(file).map_err(failed)?)
    };
    let mut first = from.take(DOCUMENT_MAX + 1);
    let mut bytes = Vec::new();
    // One byte more than allowed tells "too long" from "just fits".
    first.read_to_end(&mut bytes).map_err(failed)?;
    Ok(if bytes.len() as u64 <= DOCUMENT_MAX {
        Content::Whole(bytes)
    } else {
        Content::Large(Box::new(Cursor::new(bytes).chain(first.into_inner())))
    })
}
