//! CRI-O: a drop-in of `crio.conf`, by its documented schema (crio.conf(5)); no CRI-O was run against it.
//!
//! Later files replace earlier ones key by key; a handler that is named again is replaced whole, so ours
//! repeats all its keys.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use toml_edit::DocumentMut;

use crate::text::{Frame, check_name, parent, read};
use crate::toml::{from_plain, lift_comments, open, plain_table, set_in, table_in};
use crate::{Change, ConfigureError, Options, Plan, Report, Source, Version, Way, base};

/// Our drop-in. Behind NVIDIA's `99-nvidia.toml`.
pub const PATH: &str = "/etc/crio/crio.conf.d/zz-mpsgate.conf";
/// From which version crun is built in as the default.
const CRUN_FROM: Version = Version(1, 31);
const HEAD: &str = "# Written by mpsgate configure crio; --undo takes it away.\n";

/// What to change.
///
/// # Errors
/// See [`ConfigureError`].
pub fn plan(source: &dyn Source, path: &Path, options: &Options) -> Result<Plan, ConfigureError> {
    check_name(&options.name)?;
    let view = View::load(source, path)?;
    let mut notes = Vec::new();
    let default = view.default_name(options);
    let model = view.handler(&default);
    if !model.is_oci() {
        return Err(ConfigureError::Default {
            path: path.to_owned(),
            handler: default,
            why: "is no OCI runtime".to_owned(),
        });
    }
    if !options.keep_default
        && default != options.name
        && !options.may_lead(&model.program)
        && (view.default.is_some() || options.engine.is_some())
    {
        return Err(ConfigureError::OtherRuntime {
            handler: default,
            program: model.program,
            runtime: options.runtime.clone(),
        });
    }
    let before = read(source, path)?;
    let (frame, mut document) = match &before {
        Some(text) => open(path, text)?,
        None => (Frame::default(), DocumentMut::new()),
    };
    let mut handlers = vec![(options.name.clone(), led(&model, options))];
    for handler in view
        .handlers()
        .iter()
        .filter(|handler| !options.keep_default && handler.name != options.name)
    {
        if !handler.is_oci() {
            notes.push(format!(
                "handler {} is of type {}: mpsgate cannot stand before it",
                handler.name, handler.kind
            ));
        } else if options.is_shim(&handler.program) || handler.inherits {
        } else if options.may_lead(&handler.program) {
            handlers.push((handler.name.clone(), led(handler, options)));
        } else {
            notes.push(options.stays(&format!("handler {}", handler.name), &handler.program));
        }
    }
    let comments = if before.is_none() { HEAD.to_owned() } else { lift_comments(&mut document) };
    edit(&mut document, &handlers, options).ok_or_else(|| ConfigureError::Unsafe {
        path: path.to_owned(),
        what: "[crio.runtime] is no table".to_owned(),
    })?;
    let after = frame.put_on(&(comments + &document.to_string()));
    if view.default.is_none() {
        notes.push("a handler that CRI-O has built in (crun from 1.31 on, runc before) goes round mpsgate for pods that name it as runtime class".to_owned());
    }
    let changes = if before.as_deref() == Some(after.as_str()) {
        Vec::new()
    } else {
        vec![Change { path: path.to_owned(), before, after }]
    };
    Ok(Plan {
        changes,
        notes,
        restart: "systemctl restart crio (containers go on running)".to_owned(),
    })
}

/// Keys in the order of crio.conf(5): what was there, with our program.
fn led(model: &Handler, options: &Options) -> Map<String, Value> {
    let mut table = model.table.clone();
    table.insert("runtime_path".to_owned(), options.shim.clone().into());
    table.insert("runtime_type".to_owned(), "oci".into());
    if table.get("runtime_root").and_then(Value::as_str).unwrap_or("").is_empty() {
        // What CRI-O gives its own handlers, by which mpsgated knows who calls.
        let root = if base(&options.runtime) == "crun" { "/run/crun" } else { "/run/runc" };
        table.insert("runtime_root".to_owned(), root.into());
    }
    table
}

fn edit(
    document: &mut DocumentMut,
    handlers: &[(String, Map<String, Value>)],
    options: &Options,
) -> Option<()> {
    let mut runtime = document.as_item_mut();
    for key in ["crio", "runtime"] {
        let is_new = runtime.get(key).is_none();
        runtime = table_in(runtime, key, Some(""))?;
        if let Some(table) = runtime.as_table_mut().filter(|_| is_new) {
            table.set_implicit(true);
        }
    }
    if !options.keep_default {
        set_in(runtime, "default_runtime", options.name.as_str().into());
    }
    let is_new = runtime.get("runtimes").is_none();
    let runtimes = table_in(runtime, "runtimes", Some(""))?;
    if let Some(table) = runtimes.as_table_mut().filter(|_| is_new) {
        table.set_implicit(true);
    }
    for (name, keys) in handlers {
        let handler = table_in(runtimes, name, Some(""))?;
        for (key, value) in keys {
            if let Some(value) = from_plain(value) {
                set_in(handler, key, value);
            }
        }
    }
    Some(())
}

/// Where containers go.
///
/// # Errors
/// See [`ConfigureError`].
pub fn check(
    source: &dyn Source,
    path: &Path,
    options: &Options,
) -> Result<Report, ConfigureError> {
    let mut view = View::load(source, path)?;
    view.read(source, path)?;
    let default = view.default_name(options);
    let mut handlers = view.handlers();
    if !handlers.iter().any(|handler| handler.name == default) {
        handlers.push(view.handler(&default));
    }
    handlers.sort_by_key(|handler| handler.name != default);
    let through = handlers.first().is_some_and(|handler| options.is_shim(&handler.program));
    let mut report = Report::default();
    for handler in &handlers {
        let kind = if handler.name == default { "default handler" } else { "handler" };
        let name = format!("{kind} {}", handler.name);
        if options.is_shim(&handler.program) && handler.is_oci() {
            report.add(&handler.name, Way::Through, format!("{name}: through mpsgate"));
        } else if handler.inherits && through {
            report.add(
                &handler.name,
                Way::Through,
                format!("{name}: as the default, through mpsgate"),
            );
        } else if !handler.is_oci() && handler.name != default {
            report.add(
                &handler.name,
                Way::Beyond,
                format!("{name}: is of type {}; mpsgate cannot stand before it", handler.kind),
            );
        } else {
            report.add(&handler.name, Way::Round, options.goes_round(&name, &handler.program));
        }
    }
    Ok(report)
}

#[derive(Debug)]
struct Handler {
    name: String,
    program: String,
    kind: String,
    inherits: bool,
    table: Map<String, Value>,
}

impl Handler {
    fn of(name: &str, table: &Map<String, Value>) -> Self {
        let text =
            |key: &str| table.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        Self {
            name: name.to_owned(),
            // Without a path CRI-O looks for the name in $PATH.
            program: text("runtime_path").unwrap_or(name).to_owned(),
            kind: text("runtime_type").unwrap_or("oci").to_owned(),
            inherits: table.get("inherit_default_runtime") == Some(&json!(true)),
            table: table.clone(),
        }
    }

    fn is_oci(&self) -> bool {
        self.kind == "oci"
    }
}

struct View {
    default: Option<String>,
    runtimes: Map<String, Value>,
}

impl View {
    /// The files that CRI-O reads, but for ours.
    fn load(source: &dyn Source, ours: &Path) -> Result<Self, ConfigureError> {
        let directory = parent(ours);
        let mut view = Self { default: None, runtimes: Map::new() };
        let parts = source.list(directory).into_iter().filter(|path| path != ours);
        for path in [directory.with_file_name("crio.conf")]
            .into_iter()
            .chain(parts)
            .collect::<Vec<PathBuf>>()
        {
            view.read(source, &path)?;
        }
        Ok(view)
    }

    fn read(&mut self, source: &dyn Source, path: &Path) -> Result<(), ConfigureError> {
        let Some(text) = read(source, path)? else { return Ok(()) };
        let plain = plain_table(open(path, &text)?.1.as_table());
        let Some(runtime) = plain.pointer("/crio/runtime") else { return Ok(()) };
        if let Some(name) =
            runtime.get("default_runtime").and_then(Value::as_str).filter(|name| !name.is_empty())
        {
            self.default = Some(name.to_owned());
        }
        for (name, table) in
            runtime.get("runtimes").and_then(Value::as_object).into_iter().flatten()
        {
            if !table.is_object() {
                return Err(ConfigureError::Type {
                    path: path.to_owned(),
                    key: format!("runtimes.{name}"),
                    found: "a value",
                    wanted: "a table",
                });
            }
            self.runtimes.insert(name.clone(), table.clone());
        }
        Ok(())
    }

    fn default_name(&self, options: &Options) -> String {
        self.default.clone().unwrap_or_else(|| match options.engine {
            Some(version) if version < CRUN_FROM => "runc".to_owned(),
            _ => "crun".to_owned(),
        })
    }

    fn handlers(&self) -> Vec<Handler> {
        self.runtimes
            .iter()
            .filter_map(|(name, table)| Some(Handler::of(name, table.as_object()?)))
            .collect()
    }

    /// A handler; where no file defines it, CRI-O's own.
    fn handler(&self, name: &str) -> Handler {
        match self.runtimes.get(name).and_then(Value::as_object) {
            Some(table) => Handler::of(name, table),
            None => Handler::of(name, &Map::new()),
        }
    }
}
