//! The decided steps as changes of files.

use std::path::PathBuf;

use serde_json::{Map, Value};
use toml_edit::{Array, DocumentMut, Item, Table, value};

use super::handler::{BINARY, Handler, LISTS};
use super::view::{View, plugin};
use super::{DROP_IN, RUNC_TYPE, Steps};
use crate::line_ends::{Frame, parent, read};
use crate::toml::{copy, end, from_plain, lift_comments, list, set, set_in, table_in, with_all};
use crate::{ANNOTATIONS, Change, ConfigureError, Options, Source};

/// Edits the file whose CRI section counts.
pub(super) fn in_place(
    view: &View,
    steps: &Steps,
    options: &Options,
) -> Result<Vec<Change>, ConfigureError> {
    let Some(file) = view.owner_file().filter(|_| !steps.nothing()) else { return Ok(Vec::new()) };
    let mut document = file.document.clone();
    let comments = lift_comments(&mut document);
    if document.get("version").is_none() {
        // A key of the file itself stands before all tables, wherever it is inserted.
        document.insert("version", value(i64::from(file.version)));
    }
    let unsafe_ = || ConfigureError::Unsafe {
        path: file.path.clone(),
        what: "its CRI section is no [table]".to_owned(),
    };
    apply(&mut document, view, plugin(file.version), steps, options).ok_or_else(unsafe_)?;
    let after = file.frame.put_on(&(comments + &document.to_string()));
    Ok(vec![Change { path: file.path.clone(), before: file.before.clone(), after }])
}

fn apply(
    document: &mut DocumentMut,
    view: &View,
    plugin: &str,
    steps: &Steps,
    options: &Options,
) -> Option<()> {
    let end = end(document.as_table());
    let mut section = document.as_item_mut();
    for key in ["plugins", plugin, "containerd"] {
        section = implicit(section, key, end)?;
    }
    if steps.default {
        set_in(section, "default_runtime_name", options.name.as_str().into());
    }
    let runtimes = implicit(section, "runtimes", end)?;
    let like = runtimes.as_table().map(child_indent);
    for (name, program) in &steps.give_back {
        let table = table_in(table_in(runtimes, name, like.as_deref())?, "options", None)?;
        set_in(table, BINARY, program.as_str().into());
    }
    for name in &steps.lead {
        lead(view, runtimes, name, like.as_deref(), options)?;
    }
    if steps.add {
        match runtimes.get(&steps.model).map(copy) {
            Some(copy) => {
                runtimes.as_table_like_mut()?.insert(&options.name, copy);
            }
            None => {
                table_in(runtimes, &options.name, like.as_deref())?;
            }
        }
        lead(view, runtimes, &options.name, like.as_deref(), options)?;
    }
    Some(())
}

/// Gives a handler our program, and the annotations that it lacks.
fn lead(
    view: &View,
    runtimes: &mut Item,
    name: &str,
    like: Option<&str>,
    options: &Options,
) -> Option<()> {
    let handler = table_in(runtimes, name, like)?;
    if handler.get("runtime_type").and_then(Item::as_str).unwrap_or("").is_empty() {
        set_in(handler, "runtime_type", RUNC_TYPE.into());
    }
    let have = view
        .handlers()
        .into_iter()
        .find(|handler| handler.name == name)
        .map(|handler| handler.table);
    for key in LISTS {
        let old =
            handler.get(key).map(crate::toml::plain).or_else(|| have.as_ref()?.get(key).cloned());
        set_in(handler, key, list(&with_all(&old.unwrap_or(Value::Null), &ANNOTATIONS)));
    }
    let options_table = table_in(handler, "options", None)?;
    set_in(options_table, BINARY, options.shim.as_str().into());
    Some(())
}

/// A table on the way; a new one has no header of its own, and what is below it stands at `end`.
fn implicit<'a>(item: &'a mut Item, key: &str, end: isize) -> Option<&'a mut Item> {
    if item.get(key).is_none() && item.is_table() {
        let mut table = Table::new();
        table.set_implicit(true);
        table.set_position(Some(end));
        item.as_table_mut()?.insert(key, Item::Table(table));
    }
    table_in(item, key, None)
}

/// How far the tables below are indented.
fn child_indent(table: &Table) -> String {
    let child = table.iter().find_map(|(_, item)| item.as_table());
    let prefix = child.and_then(|child| child.decor().prefix()?.as_str());
    prefix.unwrap_or("").rsplit('\n').next().unwrap_or("").to_owned()
}

/// Writes what changes into a file of ours that containerd reads last, and has the main file import
/// it where nothing does yet.
pub(super) fn drop_in(
    source: &dyn Source,
    view: &View,
    steps: &Steps,
    options: &Options,
) -> Result<Vec<Change>, ConfigureError> {
    let Some(main) = view.main().filter(|_| !steps.nothing()) else { return Ok(Vec::new()) };
    let (path, import) = place(main)?;
    let mut document = match view.files().iter().find(|file| file.path == path) {
        Some(file) => file.document.clone(),
        None => head(main.version),
    };
    let frame = Frame::default();
    let handlers = view.handlers();
    let table = |name: &str| handlers.iter().find(|handler| handler.name == name);
    let plugin = plugin(main.version);
    for (name, program) in &steps.give_back {
        give_back(&mut document, plugin, name, program);
    }
    for name in &steps.lead {
        // Also the type: a handler that is built in has it nowhere in the files.
        let mut new = Map::new();
        new.insert(
            "runtime_type".to_owned(),
            table(name).map_or(RUNC_TYPE, |handler| &handler.kind).into(),
        );
        write(&mut document, plugin, name, with_ours(new, table(name), options));
    }
    if steps.add {
        let built_in = Handler::built_in();
        let model = table(&steps.model).unwrap_or(&built_in);
        let whole = model.table.as_object().cloned().unwrap_or_default();
        write(&mut document, plugin, &options.name, with_ours(whole, Some(model), options));
    }
    if steps.default {
        let unsafe_ = || ConfigureError::Unsafe {
            path: path.clone(),
            what: "its CRI section is no [table]".to_owned(),
        };
        let mut section = document.as_item_mut();
        for key in ["plugins", plugin, "containerd"] {
            section = implicit(section, key, 0).ok_or_else(unsafe_)?;
        }
        set_in(section, "default_runtime_name", options.name.as_str().into());
    }
    let before = read(source, &path)?;
    let mut changes = vec![Change { path, before, after: frame.put_on(&document.to_string()) }];
    if let Some(import) = import {
        changes.push(with_import(main, import)?);
    }
    Ok(changes)
}

/// The main file with one import more.
fn with_import(main: &super::view::File, import: String) -> Result<Change, ConfigureError> {
    let mut document = main.document.clone();
    let mut imports = main.imports()?;
    imports.push(import);
    let imports: Array = imports.iter().map(String::as_str).collect();
    set(document.as_table_mut(), "imports", imports.into());
    Ok(Change {
        path: main.path.clone(),
        before: main.before.clone(),
        after: main.frame.put_on(&document.to_string()),
    })
}

fn head(version: u8) -> DocumentMut {
    let text = format!(
        "# Written by mpsgate configure containerd; --undo takes it away.\nversion = {version}\n"
    );
    text.parse().unwrap_or_default()
}

fn with_ours(
    mut table: Map<String, Value>,
    model: Option<&Handler>,
    options: &Options,
) -> Map<String, Value> {
    for key in LISTS {
        let old = model.and_then(|model| model.table.get(key)).cloned().unwrap_or(Value::Null);
        table.insert(key.to_owned(), with_all(&old, &ANNOTATIONS).into());
    }
    let inner = table.entry("options").or_insert_with(|| Value::Object(Map::new()));
    if let Some(inner) = inner.as_object_mut() {
        inner.insert(BINARY.to_owned(), options.shim.clone().into());
    }
    table
}

/// Puts a handler's keys into our drop-in.
fn write(document: &mut DocumentMut, plugin: &str, name: &str, keys: Map<String, Value>) {
    let mut item = document.as_item_mut();
    for key in ["plugins", plugin, "containerd", "runtimes"] {
        let Some(next) = implicit(item, key, 0) else { return };
        item = next;
    }
    let Some(handler) = table_in(item, name, Some("")) else { return };
    for (key, value) in keys.iter().filter(|(key, _)| *key != "options") {
        if let Some(value) = from_plain(value) {
            set_in(handler, key, value);
        }
    }
    let Some(table) = table_in(handler, "options", Some("")) else { return };
    for (key, value) in keys.get("options").and_then(Value::as_object).into_iter().flatten() {
        if let Some(value) = from_plain(value) {
            set_in(table, key, value);
        }
    }
}

/// Takes a handler out of our drop-in, so that what stands in another file counts again. Where ours
/// does not have it, another file names mpsgate, and ours overrules that.
fn give_back(document: &mut DocumentMut, plugin: &str, name: &str, program: &str) {
    let mut runtimes = Some(document.as_item_mut());
    for key in ["plugins", plugin, "containerd", "runtimes"] {
        runtimes = runtimes.and_then(|item| item.get_mut(key));
    }
    let ours = runtimes.and_then(|item| item.as_table_like_mut()?.remove(name));
    if ours.is_none() {
        let options = serde_json::json!({ BINARY: program });
        let keys = Map::from_iter([("options".to_owned(), options)]);
        write(document, plugin, name, keys);
    }
}

/// Where our drop-in goes, and the import that is missing. The directory that is imported last is
/// taken, so that ours is read last.
fn place(main: &super::view::File) -> Result<(PathBuf, Option<String>), ConfigureError> {
    let directory = parent(&main.path);
    let imports = main.imports()?;
    let imported = imports.iter().rev().find_map(|pattern| {
        let whole = directory.join(pattern);
        let parent = whole.parent()?.to_owned();
        let plain = !parent.to_string_lossy().contains(['*', '?', '[']);
        (plain && whole.file_name()? == "*.toml").then_some(parent)
    });
    Ok(match imported {
        Some(parent) => (parent.join(DROP_IN), None),
        None => {
            let parent = directory.join("conf.d");
            let import = parent.join("*.toml").to_string_lossy().into_owned();
            (parent.join(DROP_IN), Some(import))
        }
    })
}
