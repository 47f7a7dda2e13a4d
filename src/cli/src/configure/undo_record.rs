//! What `--undo` needs: each file as it was found and as it was written.
//!
//! The record is on disk before the first file is touched. So wherever `--write` is cut off, each
//! file is as it was or as it should be, and undo knows both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mpsgate_configure::{Change, Source};
use mpsgate_host::format::{self, FormatError};
use serde::{Deserialize, Serialize};

use super::engine_files::{
    DISK, Target, make_private_dir, remove, remove_dir, replace, replace_private,
};
use crate::error::SetUpError;

const FORMAT: u32 = 1;
const FILE: &str = "record.json";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u32,
    files: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    path: PathBuf,
    /// Whether the file was there; its text is in `N.before`.
    existed: bool,
    /// Directories that were made for it, the outermost first.
    directories: Vec<PathBuf>,
}

/// The record of one engine.
#[derive(Debug)]
pub(super) struct Record {
    directory: PathBuf,
    document: Document,
}

/// How a file stands to the record.
enum Now {
    /// As it was before us.
    Before,
    /// As we wrote it.
    After,
    /// Something else.
    Edited(String),
}

impl Record {
    pub(super) fn load(state: &Path, engine: &str) -> Result<Self, SetUpError> {
        let directory = state.join(engine);
        let path = directory.join(FILE);
        let document = match read(&path)? {
            None => Document { format: FORMAT, files: Vec::new() },
            Some(text) => parse(&text, path)?,
        };
        Ok(Self { directory, document })
    }

    /// Records what will be written. Of a file that somebody edited since our last writing nothing
    /// is recorded anew: so undo goes on refusing, as it would lose the edit.
    pub(super) fn add(&mut self, targets: &[Target]) -> Result<(), SetUpError> {
        make_private_dir(&self.directory)?;
        for target in targets {
            let known = self.document.files.iter().position(|entry| entry.path == target.real);
            let index = match known {
                Some(index) if matches!(self.now(index)?, Now::Edited(_)) => continue,
                Some(index) => index,
                None => {
                    let entry = Entry {
                        path: target.real.clone(),
                        existed: target.before.is_some(),
                        directories: target.directories.clone(),
                    };
                    self.document.files.push(entry);
                    let index = self.document.files.len() - 1;
                    replace_private(
                        &self.kept(index, "before"),
                        target.before.as_deref().unwrap_or(""),
                    )?;
                    index
                }
            };
            replace_private(&self.kept(index, "after"), &target.after)?;
        }
        self.save()
    }

    /// What somebody edited since our last writing.
    pub(super) fn edits(&self) -> Result<Vec<Change>, SetUpError> {
        let mut edits = Vec::new();
        for (index, entry) in self.document.files.iter().enumerate() {
            if let Now::Edited(after) = self.now(index)? {
                let before = Some(self.text(index, "after")?);
                edits.push(Change { path: entry.path.clone(), before, after });
            }
        }
        Ok(edits)
    }

    /// The files as they would be without us; `None` is one that would not be there.
    pub(super) fn without_us(&self) -> Result<BTreeMap<PathBuf, Option<String>>, SetUpError> {
        let mut files = BTreeMap::new();
        for (index, entry) in self.document.files.iter().enumerate() {
            let before = self.text(index, "before")?;
            files.insert(entry.path.clone(), entry.existed.then_some(before));
        }
        Ok(files)
    }

    /// Puts everything back, or nothing; what was done, for people.
    pub(super) fn undo(self) -> Result<String, SetUpError> {
        let mut todo = Vec::new();
        for (index, entry) in self.document.files.iter().enumerate() {
            match self.now(index)? {
                Now::Before => {}
                Now::After => todo.push(index),
                Now::Edited(_) => {
                    return Err(SetUpError::ChangedSince {
                        path: entry.path.clone(),
                        written: self.kept(index, "after"),
                        record: self.directory.clone(),
                    });
                }
            }
        }
        let mut text = String::new();
        // What was written last names what was written first: an import, a drop-in.
        for index in todo.into_iter().rev() {
            let entry = &self.document.files[index];
            if entry.existed {
                replace(&entry.path, &self.text(index, "before")?)?;
                text.push_str(&format!("Put back: {}\n", entry.path.display()));
            } else {
                remove(&entry.path, &entry.directories)?;
                text.push_str(&format!("Removed: {}\n", entry.path.display()));
            }
        }
        if !self.document.files.is_empty() {
            remove_dir(&self.directory)?;
            if text.is_empty() {
                text.push_str("Everything was put back already.\n");
            }
        }
        Ok(text)
    }

    fn now(&self, index: usize) -> Result<Now, SetUpError> {
        let entry = &self.document.files[index];
        let now = read(&entry.path)?;
        let before = self.text(index, "before")?;
        Ok(match now {
            None if entry.existed => Now::Edited(String::new()),
            None => Now::Before,
            Some(now) if entry.existed && now == before => Now::Before,
            Some(now) if now == self.text(index, "after")? => Now::After,
            Some(now) => Now::Edited(now),
        })
    }

    fn kept(&self, index: usize, what: &str) -> PathBuf {
        self.directory.join(format!("{index}.{what}"))
    }

    fn text(&self, index: usize, what: &str) -> Result<String, SetUpError> {
        let path = self.kept(index, what);
        let missing =
            || SetUpError::Read { path: path.clone(), source: std::io::ErrorKind::NotFound.into() };
        read(&path)?.ok_or_else(missing)
    }

    fn save(&self) -> Result<(), SetUpError> {
        let path = self.directory.join(FILE);
        let text = serde_json::to_string_pretty(&self.document)
            .map_err(|source| SetUpError::Record { path: path.clone(), source })?;
        replace_private(&path, &text)
    }
}

fn parse(text: &str, path: PathBuf) -> Result<Document, SetUpError> {
    format::read(text.as_bytes(), FORMAT).map_err(|error| match error {
        FormatError::Other { found, known } => SetUpError::RecordFormat { path, found, known },
        FormatError::Content(source) => SetUpError::Record { path, source },
    })
}

fn read(path: &Path) -> Result<Option<String>, SetUpError> {
    DISK.read(path).map_err(|source| SetUpError::Read { path: path.to_owned(), source })
}
