//! The bytes of a `config.json`, from a file or from standard input.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;

use crate::error::{InputError, is_stdin};
use mpsgate_policy::{Bytes, DOCUMENT_MAX};

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
