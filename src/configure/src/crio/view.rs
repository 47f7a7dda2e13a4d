//! What CRI-O makes of its files and its command line: the handlers that there are, and which is
//! the default.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::{Flags, INHERITS, PLATFORMS};
use crate::text::{parent, read};
use crate::toml::{open, plain_table};
use crate::{ConfigureError, Options, Source, Version};

/// From which version crun is built in as the default, and runc no longer.
const CRUN_FROM: Version = Version(1, 31);
/// From which version the built-in handler allows devices, and by which name later.
const DEVICES_FROM: Version = Version(1, 29);
const DEVICES_RENAMED_FROM: Version = Version(1, 35);
/// Types by which CRI-O runs a program at `runtime_path`: with conmon, and with conmon-rs.
const RUN: [&str; 2] = ["oci", "pod"];

/// Who said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// CRI-O has it whatever its settings are.
    BuiltIn,
    /// A file.
    File(PathBuf),
    /// The command line or the environment: the flag with its value.
    Flag(String),
    /// CRI-O's own reading, which does not tell.
    Dump,
    /// Nobody.
    Nowhere,
}

impl Origin {
    pub(super) fn is(&self, path: &Path) -> bool {
        matches!(self, Self::File(file) if file == path)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Handler {
    pub(super) name: String,
    pub(super) program: String,
    pub(super) kind: String,
    pub(super) inherits: bool,
    /// Programs that run in `program`'s place, each with its platform before it.
    pub(super) platforms: Vec<(String, String)>,
    pub(super) table: Map<String, Value>,
    pub(super) origin: Origin,
}

impl Handler {
    pub(super) fn of(name: &str, table: &Map<String, Value>, origin: Origin) -> Self {
        let text =
            |key: &str| table.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let platforms = table.get(PLATFORMS).and_then(Value::as_object).into_iter().flatten();
        Self {
            name: name.to_owned(),
            // Without a path CRI-O looks for the name in $PATH.
            program: text("runtime_path").unwrap_or(name).to_owned(),
            kind: text("runtime_type").unwrap_or("oci").to_owned(),
            inherits: table.get(INHERITS) == Some(&json!(true)),
            platforms: platforms
                .filter_map(|(name, program)| Some((name.clone(), program.as_str()?.to_owned())))
                .collect(),
            table: table.clone(),
            origin,
        }
    }

    /// One of which nothing but its name is known.
    pub(super) fn bare(name: &str) -> Self {
        Self::of(name, &Map::new(), Origin::Nowhere)
    }

    /// The handler that CRI-O has in any case (`defaultRuntimeHandler` in its pkg/config).
    fn built_in(engine: Option<Version>) -> Self {
        let mut annotations = vec!["io.containers.trace-syscall"];
        match engine {
            Some(version) if version < DEVICES_FROM => {}
            Some(version) if version < DEVICES_RENAMED_FROM => {
                annotations.push("io.kubernetes.cri-o.Devices");
            }
            _ => annotations.push("devices.crio.io"),
        }
        let mut table = Map::new();
        table.insert("runtime_path".to_owned(), json!(""));
        table.insert("runtime_type".to_owned(), json!("oci"));
        table.insert("allowed_annotations".to_owned(), json!(annotations));
        table.insert(
            "monitor_env".to_owned(),
            json!(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]),
        );
        let is_runc = engine.is_some_and(|version| version < CRUN_FROM);
        if !is_runc {
            table.insert("container_min_memory".to_owned(), json!("500KiB"));
        }
        Self::of(if is_runc { "runc" } else { "crun" }, &table, Origin::BuiltIn)
    }

    /// Whether CRI-O runs a program for it that ours can stand before.
    pub(super) fn runs_a_program(&self) -> bool {
        RUN.contains(&self.kind.as_str())
    }

    /// Whether CRI-O looks for a program of the handler's name, and there is none.
    pub(super) fn is_without_program(&self, source: &dyn Source) -> bool {
        let is_named = self.table.get("runtime_path").is_some_and(|path| path != "");
        !is_named && !self.inherits && !source.has_program(&self.name)
    }

    /// Programs by platform that are not ours: `PROGRAM for PLATFORM`.
    pub(super) fn strangers(&self, options: &Options) -> Vec<String> {
        let strange =
            |(_, program): &&(String, String)| !program.is_empty() && !options.is_shim(program);
        let said = |(platform, program): &(String, String)| format!("{program} for {platform}");
        self.platforms.iter().filter(strange).map(said).collect()
    }

    /// As it is called where no kind is told.
    pub(super) fn title(&self) -> String {
        if self.origin == Origin::BuiltIn {
            format!("handler {}, which CRI-O has built in,", self.name)
        } else {
            format!("handler {}", self.name)
        }
    }
}

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
