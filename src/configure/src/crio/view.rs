//! What CRI-O makes of its files and its command line: the handlers that there are, and which is
//! the default.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Flags;
use super::handler::{Handler, Origin};
use crate::line_ends::{parent, read};
use crate::toml::{open, plain_table};
use crate::{ConfigureError, Options, Source};

#[derive(Debug)]
pub(super) struct View {
    /// The name, and who named it.
    default: (String, Origin),
    handlers: Vec<Handler>,
    /// What CRI-O takes where no default is named.
    built_in: String,
}

impl View {
    /// All files, in CRI-O's order, then its command line.
    pub(super) fn load(
        source: &dyn Source,
        ours: &Path,
        options: &Options,
        flags: &Flags,
    ) -> Result<Self, ConfigureError> {
        Self::read_all(source, &files(source, ours, flags)?, options, flags)
    }

    /// The same, but for ours.
    pub(super) fn without(
        source: &dyn Source,
        ours: &Path,
        options: &Options,
        flags: &Flags,
    ) -> Result<Self, ConfigureError> {
        let mut files = files(source, ours, flags)?;
        files.retain(|path| path != ours);
        Self::read_all(source, &files, options, flags)
    }

    fn read_all(
        source: &dyn Source,
        files: &[PathBuf],
        options: &Options,
        flags: &Flags,
    ) -> Result<Self, ConfigureError> {
        let built_in = Handler::built_in(options.engine);
        let mut view = Self {
            default: (built_in.name.clone(), Origin::BuiltIn),
            built_in: built_in.name.clone(),
            handlers: vec![built_in],
        };
        for path in files {
            let Some(text) = read(source, path)? else { continue };
            let plain = plain_table(open(path, &text)?.1.as_table());
            view.take(path, &plain, &Origin::File(path.clone()))?;
        }
        for (handler, flag) in flags.handlers() {
            let origin = Origin::Flag(flag);
            view.put(Handler { origin, ..handler });
        }
        if let Some(name) = flags.default_runtime() {
            view.name_default(name, Origin::Flag(format!("--default-runtime {name}")));
        }
        Ok(view)
    }

    /// What CRI-O said itself: `handlers` are all that there are.
    pub(super) fn told(default: String, handlers: Vec<Handler>) -> Self {
        Self { built_in: default.clone(), default: (default, Origin::Dump), handlers }
    }

    fn take(&mut self, path: &Path, plain: &Value, origin: &Origin) -> Result<(), ConfigureError> {
        let Some(runtime) = plain.pointer("/crio/runtime") else { return Ok(()) };
        let wrong = |key: &str, found, wanted| ConfigureError::Type {
            path: path.to_owned(),
            key: key.to_owned(),
            found,
            wanted,
        };
        match runtime.get("default_runtime") {
            None => {}
            Some(Value::String(name)) => self.name_default(name, origin.clone()),
            Some(other) => {
                return Err(wrong("default_runtime", kind(other), "the name of a handler"));
            }
        }
        for (name, table) in
            runtime.get("runtimes").and_then(Value::as_object).into_iter().flatten()
        {
            let Value::Object(table) = table else {
                return Err(wrong(&format!("runtimes.{name}"), kind(table), "a table"));
            };
            self.put(Handler::of(name, table, origin.clone()));
        }
        Ok(())
    }

    /// An empty name means CRI-O's own default, whatever earlier files said.
    fn name_default(&mut self, name: &str, origin: Origin) {
        let name = if name.is_empty() { &self.built_in } else { name };
        self.default = (name.to_owned(), origin);
    }

    /// Whole: what an earlier file said of a handler of that name is gone.
    fn put(&mut self, handler: Handler) {
        self.handlers.retain(|old| old.name != handler.name);
        self.handlers.push(handler);
    }

    pub(super) fn default_name(&self) -> &str {
        &self.default.0
    }

    pub(super) fn default_origin(&self) -> &Origin {
        &self.default.1
    }

    pub(super) fn handlers(&self) -> &[Handler] {
        &self.handlers
    }

    pub(super) fn named(&self, name: &str) -> Option<&Handler> {
        self.handlers.iter().find(|handler| handler.name == name)
    }

    /// A handler; where nobody defines it, one that has but the name.
    pub(super) fn handler(&self, name: &str) -> Handler {
        self.named(name).cloned().unwrap_or_else(|| Handler::bare(name))
    }

    /// The file that says what the default handler is, or the one to say it in.
    pub(super) fn owner(&self, ours: &Path) -> PathBuf {
        match (&self.handler(self.default_name()).origin, &self.default.1) {
            (Origin::File(path), _) | (_, Origin::File(path)) => path.clone(),
            _ => ours.to_owned(),
        }
    }

    /// Whether all that a handler runs is ours.
    pub(super) fn leads(&self, handler: &Handler, options: &Options) -> bool {
        if !handler.strangers(options).is_empty() {
            return false;
        }
        match self.named(self.default_name()) {
            // Who inherits takes type and program of the default.
            Some(default) if handler.inherits && default.name != handler.name => {
                default.runs_a_program() && options.is_shim(&default.program)
            }
            _ => handler.runs_a_program() && options.is_shim(&handler.program),
        }
    }
}

/// The files that CRI-O reads, in its order.
pub(super) fn files(
    source: &dyn Source,
    ours: &Path,
    flags: &Flags,
) -> Result<Vec<PathBuf>, ConfigureError> {
    let mut files: Vec<PathBuf> = main(ours, flags).into_iter().collect();
    files.extend(source.walk(parent(ours))?);
    Ok(files)
}

/// The file that is read before all drop-ins.
pub(super) fn main(ours: &Path, flags: &Flags) -> Option<PathBuf> {
    match flags.main() {
        Some("") => None,
        Some(path) => Some(PathBuf::from(path)),
        None => Some(parent(ours).with_file_name("crio.conf")),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
        _ => "a number or truth value",
    }
}
