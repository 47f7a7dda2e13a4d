//! What surrounds a file's text: byte order mark, line ends. Taken off before parsing, put back
//! after.

use std::path::Path;

use crate::{ConfigureError, Source};

const BOM: char = '\u{feff}';

/// How a file's text was written.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Frame {
    bom: bool,
    crlf: bool,
}

impl Frame {
    /// The text with LF at the end of each line, and how it was framed.
    pub(crate) fn take_off(path: &Path, text: &str) -> Result<(Self, String), ConfigureError> {
        let bom = text.starts_with(BOM);
        let body = text.strip_prefix(BOM).unwrap_or(text);
        let (all, windows) = (body.matches('\n').count(), body.matches("\r\n").count());
        // What ends in CR alone would get half of a line end of ours.
        if windows != 0 && windows != all || body.ends_with('\r') {
            return Err(ConfigureError::LineEnds { path: path.to_owned() });
        }
        let mut body = body.replace("\r\n", "\n");
        if !body.is_empty() && !body.ends_with('\n') {
            body.push('\n');
        }
        Ok((Self { bom, crlf: windows != 0 }, body))
    }

    pub(crate) fn has_bom(self) -> bool {
        self.bom
    }

    pub(crate) fn put_on(self, body: &str) -> String {
        let body = if self.crlf { body.replace('\n', "\r\n") } else { body.to_owned() };
        if self.bom { format!("{BOM}{body}") } else { body }
    }
}

/// Line and column in characters, both from 1, of a byte offset.
pub(crate) fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or("");
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// The directory of a file.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

pub(crate) fn read(source: &dyn Source, path: &Path) -> Result<Option<String>, ConfigureError> {
    source.read(path).map_err(|source| ConfigureError::Read { path: path.to_owned(), source })
}

/// Whether a name fits every engine's syntax without quotes.
pub(crate) fn check_name(name: &str) -> Result<(), ConfigureError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let bad = |why| Err(ConfigureError::Name { name: name.to_owned(), why });
    match name {
        "" => bad("it is empty"),
        "runc" => bad("it is the engine's own"),
        _ if !name.chars().all(fits) => {
            bad("it has other characters than letters, digits, - and _")
        }
        _ => Ok(()),
    }
}
