//! The settings as containerd reads them: the main file, its imports, and what of them counts.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use toml_edit::DocumentMut;

use super::handler::Handler;
use crate::line_ends::{Frame, parent, read};
use crate::toml::{open, plain_table};
use crate::{ConfigureError, Options, Version};

/// One file.
#[derive(Debug, Clone)]
pub(super) struct File {
    pub(super) path: PathBuf,
    /// `None`: there is no such file.
    pub(super) before: Option<String>,
    pub(super) frame: Frame,
    pub(super) document: DocumentMut,
    plain: Value,
    /// 2 or 3.
    pub(super) version: u8,
}

/// All files, in the order in which containerd reads them.
#[derive(Debug)]
pub(super) struct View {
    files: Vec<File>,
    /// The CRI section that counts.
    section: Value,
    /// Index of the file whose section counts, or into which it belongs.
    owner: usize,
    merges: bool,
    notes: Vec<String>,
    /// Those that were looked into.
    directories: BTreeSet<PathBuf>,
}

/// The name of the CRI plugin that has the handlers.
pub(super) fn plugin(version: u8) -> &'static str {
    if version >= 3 { "io.containerd.cri.v1.runtime" } else { "io.containerd.grpc.v1.cri" }
}

impl View {
    pub(super) fn load(
        source: &dyn crate::Source,
        main: &Path,
        merges: bool,
        options: &Options,
    ) -> Result<Self, ConfigureError> {
        let mut view = Self {
            files: Vec::new(),
            section: Value::Null,
            owner: 0,
            merges,
            notes: Vec::new(),
            directories: BTreeSet::new(),
        };
        let mut queue = VecDeque::from([main.to_owned()]);
        while let Some(path) = queue.pop_front() {
            if view.files.iter().any(|file| file.path == path) {
                continue;
            }
            let before = read(source, &path)?;
            if before.is_none() && !view.files.is_empty() {
                continue;
            }
            let file = File::open(path, before, view.files.first(), options)?;
            for pattern in file.imports()? {
                queue.extend(view.expand(source, &file.path, &pattern));
            }
            view.files.push(file);
        }
        view.settle()?;
        Ok(view)
    }

    /// Files that an import names.
    fn expand(&mut self, source: &dyn crate::Source, file: &Path, pattern: &str) -> Vec<PathBuf> {
        let whole = parent(file).join(pattern);
        let (Some(directory), Some(name)) =
            (whole.parent(), whole.file_name().and_then(|n| n.to_str()))
        else {
            return Vec::new();
        };
        if directory.to_string_lossy().contains(['*', '?', '[']) {
            self.notes.push(format!("{}: the import {pattern:?} has a wildcard in its directory and was not looked into", file.display()));
            return Vec::new();
        }
        if !name.contains(['*', '?', '[']) {
            return vec![whole];
        }
        let fits = |path: &PathBuf| {
            path.file_name()
                .and_then(|n| n.to_str())
                .is_some_and(|n| glob(name.as_bytes(), n.as_bytes()))
        };
        self.directories.insert(directory.to_owned());
        source.list(directory).into_iter().filter(fits).collect()
    }

    fn settle(&mut self) -> Result<(), ConfigureError> {
        let Some(main) = self.files.first() else { return Ok(()) };
        let version = self.files.iter().map(|file| file.version).max().unwrap_or(main.version);
        for file in &self.files {
            if let Some(plugin) = file.disabled_cri() {
                return Err(ConfigureError::CriDisabled { path: file.path.clone(), plugin });
            }
            if file.version != version && file.section(file.version).is_some() {
                let newest = self.files.iter().find(|file| file.version == version).unwrap_or(main);
                return Err(ConfigureError::MixedFormats {
                    path: newest.path.clone(),
                    version,
                    other_path: file.path.clone(),
                    other: file.version,
                });
            }
        }
        let mut section = Value::Object(Map::new());
        for (index, file) in self.files.iter().enumerate() {
            let Some(found) = file.section(version) else { continue };
            if !self.merges {
                section = Value::Object(Map::new());
            }
            merge(&mut section, found);
            self.owner = index;
        }
        self.section = section;
        self.check_types()
    }

    /// Types that the rest relies on.
    fn check_types(&self) -> Result<(), ConfigureError> {
        let wrong = |key: String, found: &Value, wanted| {
            let found = match found {
                Value::Object(_) => "a table",
                Value::String(_) => "a text",
                Value::Array(_) => "a list",
                _ => "a number or truth value",
            };
            Err(ConfigureError::Type { path: self.owner().to_owned(), key, found, wanted })
        };
        if let Some(name) = self
            .section
            .pointer("/containerd/default_runtime_name")
            .filter(|name| !name.is_string())
        {
            return wrong("default_runtime_name".to_owned(), name, "a text");
        }
        for pointer in ["", "/containerd", "/containerd/runtimes"] {
            match self.section.pointer(pointer) {
                Some(value) if !value.is_object() => {
                    return wrong(
                        format!("plugins.CRI{}", pointer.replace('/', ".")),
                        value,
                        "a table",
                    );
                }
                _ => {}
            }
        }
        for (name, table) in self.runtimes() {
            for (pointer, wanted) in [
                ("", "a table"),
                ("/options", "a table"),
                ("/options/BinaryName", "a text"),
                ("/runtime_type", "a text"),
                ("/pod_annotations", "a list"),
                ("/container_annotations", "a list"),
            ] {
                let fits = |value: &Value| match wanted {
                    "a table" => value.is_object(),
                    "a text" => value.is_string(),
                    _ => value.as_array().is_some_and(|list| list.iter().all(Value::is_string)),
                };
                if let Some(value) = table.pointer(pointer).filter(|value| !fits(value)) {
                    return wrong(
                        format!("runtimes.{name}{}", pointer.replace('/', ".")),
                        value,
                        wanted,
                    );
                }
            }
        }
        Ok(())
    }

    fn runtimes(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.section
            .pointer("/containerd/runtimes")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
    }

    pub(super) fn handlers(&self) -> Vec<Handler> {
        self.runtimes().map(|(name, table)| Handler::of(name, table)).collect()
    }

    pub(super) fn default_name(&self) -> String {
        let name = self.section.pointer("/containerd/default_runtime_name").and_then(Value::as_str);
        name.filter(|name| !name.is_empty()).unwrap_or("runc").to_owned()
    }

    pub(super) fn has_main(&self) -> bool {
        self.files.first().is_some_and(|file| file.before.is_some() && !file.document.is_empty())
    }

    pub(super) fn main(&self) -> Option<&File> {
        self.files.first()
    }

    pub(super) fn files(&self) -> &[File] {
        &self.files
    }

    /// The files, and the directories that an import with a wildcard looks into.
    pub(super) fn sources(&self) -> Vec<PathBuf> {
        let mut sources: Vec<PathBuf> = self.files.iter().map(|file| file.path.clone()).collect();
        sources.extend(self.directories.iter().cloned());
        sources
    }

    pub(super) fn owner_file(&self) -> Option<&File> {
        self.files.get(self.owner)
    }

    /// The file whose section counts.
    pub(super) fn owner(&self) -> &Path {
        self.owner_file().map_or_else(|| Path::new(super::PATH), |file| &file.path)
    }

    pub(super) fn notes(&self, engine: Option<Version>) -> Vec<String> {
        let mut notes = self.notes.clone();
        for file in self.files.iter().filter(|file| file.frame.has_bom()) {
            notes.push(format!(
                "{} begins with a byte order mark, which containerd 2 refuses; it is kept",
                file.path.display()
            ));
        }
        if engine.is_none() {
            notes.push("the version of containerd is not known: the file is edited in place, which every version reads alike".to_owned());
        }
        notes
    }
}

impl File {
    fn open(
        path: PathBuf,
        before: Option<String>,
        main: Option<&Self>,
        options: &Options,
    ) -> Result<Self, ConfigureError> {
        let (frame, document) = open(&path, before.as_deref().unwrap_or(""))?;
        let plain = plain_table(document.as_table());
        let version = match plain.get("version") {
            Some(Value::Number(n)) if n.as_u64() == Some(2) => 2,
            Some(Value::Number(n)) if n.as_u64() == Some(3) => 3,
            Some(Value::Number(n)) if n.as_u64() == Some(1) => {
                return Err(ConfigureError::FormatOne { path });
            }
            Some(other) => return Err(ConfigureError::Format { path, version: other.to_string() }),
            // A file that says nothing gets the version that the engine has.
            None if document.is_empty() => match main {
                Some(main) => main.version,
                None if options
                    .engine
                    .is_some_and(|version| version >= super::FORMAT_THREE_FROM) =>
                {
                    3
                }
                None => 2,
            },
            None => match (main, disabled_cri(&plain)) {
                (Some(main), _) => main.version,
                (None, Some(plugin)) => return Err(ConfigureError::CriDisabled { path, plugin }),
                (None, None) => return Err(ConfigureError::FormatOne { path }),
            },
        };
        Ok(Self { path, before, frame, document, plain, version })
    }

    pub(super) fn imports(&self) -> Result<Vec<String>, ConfigureError> {
        let wrong = |found| ConfigureError::Type {
            path: self.path.clone(),
            key: "imports".to_owned(),
            found,
            wanted: "a list of texts",
        };
        match self.plain.get("imports") {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list
                .iter()
                .map(|item| {
                    item.as_str()
                        .map(str::to_owned)
                        .ok_or_else(|| wrong("a list of something else"))
                })
                .collect(),
            Some(_) => Err(wrong("no list")),
        }
    }

    fn section(&self, version: u8) -> Option<&Value> {
        self.plain.get("plugins")?.get(plugin(version))
    }

    fn disabled_cri(&self) -> Option<String> {
        disabled_cri(&self.plain)
    }
}

fn disabled_cri(plain: &Value) -> Option<String> {
    let names = ["cri", plugin(2), plugin(3)];
    let list = plain.get("disabled_plugins").and_then(Value::as_array)?;
    list.iter().filter_map(Value::as_str).find(|name| names.contains(name)).map(str::to_owned)
}

/// As containerd from 2.1 on merges: tables by key, everything else by the later one.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// Go's `filepath.Match` for one name, without classes.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) if glob(rest, name) => true,
        (Some((b'*', _)), Some((_, name))) => glob(pattern, name),
        (Some((b'?', pattern)), Some((_, name))) => glob(pattern, name),
        (Some((a, pattern)), Some((b, name))) if a == b => glob(pattern, name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn an_import_names_files_as_in_go() {
        for (pattern, name, fits) in [
            ("*.toml", "a.toml", true),
            ("*.toml", "a.tomlx", false),
            ("?-*", "a-", true),
            ("x", "y", false),
            ("*", "", true),
        ] {
            assert_eq!(glob(pattern.as_bytes(), name.as_bytes()), fits, "{pattern} {name}");
        }
    }
}
