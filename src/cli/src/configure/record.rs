//! What `--undo` needs: each file as it was found and as it was written.
//!
//! The record is on disk before the first file is touched. So wherever `--write` is cut off, each
//! file is as it was or as it should be, and undo knows both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mpsgate_configure::{Source, merge_later_edit, parses};
use mpsgate_host::format::{self, FormatError};
use serde::{Deserialize, Serialize};

use super::files::{DISK, Target, make_private_dir, remove, remove_dir, replace, replace_private};
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

    /// Records what will be written. A file that somebody edited since our last writing keeps that
    /// edit in what undo puts back.
    pub(super) fn add(&mut self, targets: &[Target]) -> Result<(), SetUpError> {
        make_private_dir(&self.directory)?;
        for target in targets {
            let index = match self.document.files.iter().position(|entry| entry.path == target.real)
            {
                Some(index) => {
                    if let Now::Edited(_) | Now::Before = self.now(index)? {
                        self.take_in(index)?;
                    }
                    index
                }
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

    /// Takes edits that somebody made since into what undo puts back; the files that have some.
    pub(super) fn take_in_edits(&mut self) -> Result<Vec<PathBuf>, SetUpError> {
        let mut taken = Vec::new();
        for index in 0..self.document.files.len() {
            if let Now::Edited(now) = self.now(index)? {
                self.take_in(index)?;
                replace_private(&self.kept(index, "after"), &now)?;
                taken.push(self.document.files[index].path.clone());
            }
        }
        if !taken.is_empty() {
            self.save()?;
        }
        Ok(taken)
    }

    /// Makes `N.before` what the file would be now without us.
    fn take_in(&mut self, index: usize) -> Result<(), SetUpError> {
        let path = self.document.files[index].path.clone();
        let now = read(&path)?;
        let before = self.text(index, "before")?;
        let merged = match &now {
            None => Some(String::new()),
            Some(now) if *now == before => Some(before.clone()),
            Some(now) => merge_later_edit(&before, &self.text(index, "after")?, now)
                .filter(|text| parses(&path, text)),
        };
        let Some(merged) = merged else {
            return Err(SetUpError::SameLines {
                path,
                kept: self.kept(index, "before"),
                record: self.directory.clone(),
            });
        };
        self.document.files[index].existed =
            now.is_some() && (self.document.files[index].existed || !merged.is_empty());
        replace_private(&self.kept(index, "before"), &merged)
    }

    /// The files as they would be without us; `None` is one that would not be there.
    pub(super) fn without_us(&self) -> Result<BTreeMap<PathBuf, Option<String>>, SetUpError> {
        let mut files = BTreeMap::new();
        for (index, entry) in self.document.files.iter().enumerate() {
            let before = self.text(index, "before")?;
            let text = match self.now(index)? {
                Now::Edited(now) => {
                    merge_later_edit(&before, &self.text(index, "after")?, &now).unwrap_or(before)
                }
                Now::Before | Now::After => before,
            };
            files.insert(entry.path.clone(), (entry.existed || !text.is_empty()).then_some(text));
        }
        Ok(files)
    }

    /// Puts everything back, or nothing; what was done, for people.
    pub(super) fn undo(self, engine: &str) -> Result<String, SetUpError> {
        let mut todo = Vec::new();
        for (index, entry) in self.document.files.iter().enumerate() {
            match self.now(index)? {
                Now::Before => {}
                Now::After => todo.push(index),
                Now::Edited(_) => {
                    return Err(SetUpError::ChangedSince {
                        path: entry.path.clone(),
                        kept: self.kept(index, "before"),
                        engine: engine.to_owned(),
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
