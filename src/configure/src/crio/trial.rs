//! How `crio config` is asked for its own reading: of the files that are there, and of those that
//! would be.

use std::path::{Path, PathBuf};

use super::Flags;
use super::view::main;
use crate::line_ends::{parent, read};
use crate::overlay::Overlay;
use crate::{Change, ConfigureError, Source};

/// One call of CRI-O's program.
#[derive(Debug, PartialEq, Eq)]
pub struct Reading {
    /// What it is called with.
    pub arguments: Vec<String>,
    /// Files to write before.
    pub files: Vec<(PathBuf, String)>,
}

/// CRI-O's reading of what is there.
///
/// # Errors
/// See [`ConfigureError`].
pub fn reading(
    source: &dyn Source,
    ours: &Path,
    flags: &Flags,
) -> Result<Vec<String>, ConfigureError> {
    // What CRI-O would stop at is said more clearly here.
    source.walk(parent(ours))?;
    arguments(source, ours, flags, parent(ours))
}

/// CRI-O's reading of what would be: all drop-ins below `directory`, in the same order.
///
/// # Errors
/// See [`ConfigureError`].
pub fn trial(
    source: &dyn Source,
    ours: &Path,
    flags: &Flags,
    changes: &[Change],
    directory: &Path,
) -> Result<Reading, ConfigureError> {
    let overlay = Overlay { source, changes };
    let mut files = Vec::new();
    for path in overlay.walk(parent(ours))? {
        let name = path.strip_prefix(parent(ours)).unwrap_or(&path);
        if let Some(text) = read(&overlay, &path)? {
            files.push((directory.join(name), text));
        }
    }
    Ok(Reading { arguments: arguments(source, ours, flags, directory)?, files })
}

fn arguments(
    source: &dyn Source,
    ours: &Path,
    flags: &Flags,
    directory: &Path,
) -> Result<Vec<String>, ConfigureError> {
    // CRI-O takes no main file by an empty name, and stops at one that is named and is not there.
    let main = match main(ours, flags) {
        Some(path) if read(source, &path)?.is_some() => path.to_string_lossy().into_owned(),
        _ => String::new(),
    };
    let mut arguments = vec![format!("--config={main}")];
    arguments.push(format!("--config-dir={}", directory.display()));
    arguments.extend(flags.arguments());
    arguments.push("config".to_owned());
    Ok(arguments)
}
