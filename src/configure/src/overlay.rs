//! The files as they would be: changes that are not written yet, over the files that are there.

use std::path::{Path, PathBuf};

use crate::{Change, ConfigureError, Source};

pub(crate) struct Overlay<'a> {
    pub(crate) source: &'a dyn Source,
    pub(crate) changes: &'a [Change],
}

impl Overlay<'_> {
    /// With those files that are new, and `belong`.
    fn with_new(&self, mut files: Vec<PathBuf>, belong: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
        files.extend(
            self.changes.iter().map(|change| change.path.clone()).filter(|path| belong(path)),
        );
        files.sort();
        files.dedup();
        files
    }
}

impl Source for Overlay<'_> {
    fn read(&self, path: &Path) -> std::io::Result<Option<String>> {
        match self.changes.iter().find(|change| change.path == path) {
            Some(change) => Ok(Some(change.after.clone())),
            None => self.source.read(path),
        }
    }

    fn list(&self, directory: &Path) -> Vec<PathBuf> {
        self.with_new(self.source.list(directory), |path| path.parent() == Some(directory))
    }

    fn walk(&self, directory: &Path) -> Result<Vec<PathBuf>, ConfigureError> {
        Ok(self.with_new(self.source.walk(directory)?, |path| path.starts_with(directory)))
    }

    fn has_program(&self, program: &str) -> bool {
        self.source.has_program(program)
    }
}
