//! The files as they would be, in a folder of their own, for
//! `containerd --config FILE config dump`.

use std::path::{Path, PathBuf};

use toml_edit::Array;

use super::view::View;
use crate::overlay::Overlay;
use crate::toml::set;
use crate::{Change, ConfigureError, Options, Source};

/// Files to write: the main file, named as `main` is, and those that changed. The main file imports
/// all others by their whole paths, in the order in which containerd reads them.
///
/// # Errors
/// See [`ConfigureError`].
pub fn trial(
    source: &dyn Source,
    main: &Path,
    changes: &[Change],
    directory: &Path,
) -> Result<Vec<(PathBuf, String)>, ConfigureError> {
    let overlay = Overlay { source, changes };
    let view = View::load(&overlay, main, false, &Options::reading())?;
    let mut files = Vec::new();
    let mut imports = Array::new();
    for (index, file) in view.files().iter().enumerate().skip(1) {
        if changes.iter().any(|change| change.path == file.path) {
            let copy = directory.join(format!("{index}.toml"));
            imports.push(copy.to_string_lossy().as_ref());
            files.push((copy, file.frame.put_on(&file.document.to_string())));
        } else {
            imports.push(file.path.to_string_lossy().as_ref());
        }
    }
    if let Some(first) = view.main() {
        let mut document = first.document.clone();
        if !imports.is_empty() {
            set(document.as_table_mut(), "imports", imports.into());
        }
        let name = main.file_name().unwrap_or_default();
        files.push((directory.join(name), first.frame.put_on(&document.to_string())));
    }
    Ok(files)
}
