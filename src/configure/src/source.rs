//! Where settings are read from.

use std::io;
use std::path::{Path, PathBuf};

use crate::ConfigureError;

/// A place to read settings from. The real one is the file system; tests have a map.
pub trait Source {
    /// A file's text; `None` where there is no file.
    ///
    /// # Errors
    /// What the system said, also for a file that is not UTF-8.
    fn read(&self, path: &Path) -> io::Result<Option<String>>;
    /// The files of a directory, by name; none where there is no directory.
    fn list(&self, directory: &Path) -> Vec<PathBuf>;
    /// All files below a directory, whatever their names, in the order of Go's `filepath.Walk`: by
    /// name, folder by folder, no link followed. None where there is no directory.
    ///
    /// # Errors
    /// A folder that cannot be read, or what stands in a file's place and is none.
    fn walk(&self, directory: &Path) -> Result<Vec<PathBuf>, ConfigureError>;
    /// Whether a program is there: by its whole path, or by its name where runtimes are looked for.
    fn has_program(&self, program: &str) -> bool;
}
