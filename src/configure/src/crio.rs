//! CRI-O: a drop-in of `crio.conf` (crio.conf(5); what is said of CRI-O here was read in its
//! sources, 1.24 to 1.37, and tried on 1.37).
//!
//! `crio.conf` is read first, then every file below `crio.conf.d`, whatever its name, in the order
//! of Go's `filepath.Walk`. Later files replace earlier ones key by key; a handler that is named
//! again is replaced whole, so ours repeat all its keys. The command line counts more than all
//! files.

mod dump;
mod flags;
mod handler;
mod report;
mod trial;
mod view;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use toml_edit::{DocumentMut, Item};

pub use self::flags::Flags;
use self::handler::{Handler, INHERITS, Origin, PLATFORMS};
pub use self::report::{check, check_dump};
pub use self::trial::{Reading, reading, trial};
use self::view::View;
use crate::line_ends::{Frame, check_name, parent, read};
use crate::overlay::Overlay;
use crate::toml::{from_plain, lift_comments, open, set_in, table_in};
use crate::{Change, ConfigureError, Options, Plan, Source, base};

/// Our drop-in. Behind NVIDIA's `99-nvidia.toml`; what is behind it all the same is looked for.
pub const PATH: &str = "/etc/crio/crio.conf.d/zz-mpsgate.conf";

/// The same where the CRI-O that was started so reads its drop-ins.
#[must_use]
pub fn path(flags: &Flags) -> PathBuf {
    let usual = Path::new(PATH);
    match (flags.directory(), usual.file_name()) {
        (Some(directory), Some(name)) => directory.join(name),
        _ => usual.to_owned(),
    }
}
const HEAD: &str = "# Written by mpsgate configure crio; --undo takes it away.\n";

/// A handler's name and its keys.
type Keys = (String, Map<String, Value>);

/// What to change. `flags`: of the CRI-O that reads these files.
///
/// # Errors
/// See [`ConfigureError`].
pub fn plan(
    source: &dyn Source,
    path: &Path,
    options: &Options,
    flags: &Flags,
) -> Result<Plan, ConfigureError> {
    check_name(&options.name)?;
    if let Some(directory) = flags.directory().filter(|directory| *directory != parent(path)) {
        let (directory, ours) = (directory.to_owned(), path.to_owned());
        return Err(ConfigureError::Elsewhere { directory, ours });
    }
    let view = View::without(source, path, options, flags)?;
    let mut notes = Vec::new();
    let handlers = decide(&view, source, path, options, &mut notes)?;
    let before = read(source, path)?;
    let (frame, mut document) = match &before {
        Some(text) => open(path, text)?,
        None => (Frame::default(), DocumentMut::new()),
    };
    let comments = if before.is_none() { HEAD.to_owned() } else { lift_comments(&mut document) };
    edit(&mut document, &handlers, options).ok_or_else(|| ConfigureError::Unsafe {
        path: path.to_owned(),
        what: "[crio.runtime] is no table".to_owned(),
    })?;
    let after = frame.put_on(&(comments + &document.to_string()));
    let changes = if before.as_deref() == Some(after.as_str()) {
        Vec::new()
    } else {
        vec![Change { path: path.to_owned(), before, after }]
    };
    verify(&Overlay { source, changes: &changes }, path, options, flags, &handlers)?;
    Ok(Plan {
        changes,
        notes,
        restart: "systemctl restart crio (containers go on running)".to_owned(),
    })
}

/// The handlers that ours has to name, with their keys.
fn decide(
    view: &View,
    source: &dyn Source,
    path: &Path,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Vec<Keys>, ConfigureError> {
    let model = model(view, path, options)?;
    let mut handlers = vec![(options.name.clone(), copy_of(&model, options))];
    if options.keep_default {
        return Ok(handlers);
    }
    if model.origin != Origin::Nowhere && model.name != options.name {
        say_what_changes(&model, options, notes);
    }
    for handler in view.handlers().iter().filter(|handler| handler.name != options.name) {
        // Nobody runs by it, and one that is installed later would bypass mpsgate.
        let unused = options.engine.is_some() && handler.is_without_program(source);
        if !handler.runs_a_program() {
            notes.push(format!(
                "handler {} is of type {}: mpsgate cannot stand before it",
                handler.name, handler.kind
            ));
        } else if handler.inherits {
            if !handler.strangers(options).is_empty() {
                let mut table = handler.table.clone();
                table.insert(PLATFORMS.to_owned(), Value::Object(shims(handler, options)));
                handlers.push((handler.name.clone(), table));
            }
        } else if options.is_shim(&handler.program) && handler.strangers(options).is_empty() {
        } else if options.is_shim(&handler.program) || options.may_lead(&handler.program) || unused
        {
            if handler.name != model.name && !unused {
                say_what_changes(handler, options, notes);
            }
            handlers.push((handler.name.clone(), led(handler, options)));
        } else {
            notes.push(options.stays(&handler.title(), &handler.program));
        }
    }
    Ok(handlers)
}

/// The default handler, of which ours is a copy.
fn model(view: &View, path: &Path, options: &Options) -> Result<Handler, ConfigureError> {
    let default = view.default_name();
    let model = view.handler(default);
    let unfit = |why: String| ConfigureError::Default {
        path: view.owner(path),
        handler: default.to_owned(),
        why,
        fit: "of runtime_type \"oci\" or \"pod\" as default_runtime, below [crio.runtime]",
    };
    if view.named(default).is_none() && default != options.name {
        return Err(unfit("is not defined".to_owned()));
    }
    if !model.runs_a_program() {
        return Err(unfit(format!("is of type {}, which runs no OCI runtime", model.kind)));
    }
    if let Some(taken) = view.named(&options.name)
        && !options.is_shim(&taken.program)
        && !taken.inherits
        && let Origin::File(file) = &taken.origin
    {
        return Err(ConfigureError::NameTaken {
            path: file.clone(),
            name: options.name.clone(),
            program: taken.program.clone(),
        });
    }
    let leads = options.keep_default
        || default == options.name
        || options.is_shim(&model.program)
        || options.may_lead(&model.program);
    if leads {
        return Ok(model);
    }
    // Which handler is built in is not known without the version.
    if options.engine.is_some() || model.origin != Origin::BuiltIn {
        return Err(options.other_runtime(&model.name, &model.program));
    }
    Ok(Handler::bare(default))
}

/// Who loses running containers by it.
fn say_what_changes(handler: &Handler, options: &Options, notes: &mut Vec<String>) {
    // NVIDIA's runtime runs runc, on the same state.
    let same = options.is_shim(&handler.program)
        || options.is_real(&handler.program)
        || base(&handler.program) == "runc"
            && base(&options.runtime).starts_with("nvidia-container-runtime");
    if !same {
        notes.push(format!(
            "handler {} ran {} and now runs {} through mpsgate, which does not know the containers that run by it: drain the \
             node before CRI-O is restarted",
            handler.name, handler.program, options.runtime
        ));
    }
    let strangers = handler.strangers(options);
    if !strangers.is_empty() {
        notes.push(format!(
            "handler {} ran {} by {PLATFORMS}, and now runs {} through mpsgate there too",
            handler.name,
            strangers.join(", "),
            options.runtime
        ));
    }
}

/// Keys in the order of crio.conf(5): what was there, with our program. No root where none is
/// named: CRI-O's own default then is the root of all handlers, and running containers are looked
/// for below it.
fn led(model: &Handler, options: &Options) -> Map<String, Value> {
    let mut table = model.table.clone();
    table.insert("runtime_path".to_owned(), options.shim.clone().into());
    table.insert("runtime_type".to_owned(), model.kind.clone().into());
    if !model.platforms.is_empty() {
        table.insert(PLATFORMS.to_owned(), Value::Object(shims(model, options)));
    }
    table
}

/// Ours: what `model` is, by itself.
fn copy_of(model: &Handler, options: &Options) -> Map<String, Value> {
    let mut table = led(model, options);
    table.shift_remove(INHERITS);
    table
}

/// The same platforms, each by our program.
fn shims(handler: &Handler, options: &Options) -> Map<String, Value> {
    let ours = |(platform, _): &(String, String)| (platform.clone(), options.shim.clone().into());
    handler.platforms.iter().map(ours).collect()
}

fn edit(document: &mut DocumentMut, handlers: &[Keys], options: &Options) -> Option<()> {
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
    // Ours of before, which nothing leads to mpsgate any more: runtime.path was changed, and their
    // own program counts again.
    let given_back = |name: &str, item: &Item| {
        let program = item.get("runtime_path").and_then(Item::as_str).unwrap_or("");
        options.is_shim(program) && !handlers.iter().any(|(ours, _)| ours == name)
    };
    if let Some(table) = runtimes.as_table_mut().filter(|_| !options.keep_default) {
        table.retain(|name, item| !given_back(name, item));
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

/// Reads the result as CRI-O will, and looks whether ours is what counts.
fn verify(
    source: &dyn Source,
    path: &Path,
    options: &Options,
    flags: &Flags,
    written: &[Keys],
) -> Result<(), ConfigureError> {
    let view = View::load(source, path, options, flags)?;
    let mut outranked: Vec<(&Origin, String)> = Vec::new();
    let default = view.handler(view.default_name());
    if !options.keep_default && !view.leads(&default, options) {
        outranked.push((view.default_origin(), "default_runtime".to_owned()));
    }
    for (name, _) in written {
        let handler = view.handler(name);
        if !view.leads(&handler, options) {
            let origin = view.named(name).map_or(&Origin::Nowhere, |handler| &handler.origin);
            outranked.push((origin, format!("[crio.runtime.runtimes.{name}]")));
        }
    }
    let Some((origin, _)) =
        outranked.iter().find(|(origin, _)| !origin.is(path)).or_else(|| outranked.first())
    else {
        return Ok(());
    };
    let keys: Vec<&str> =
        outranked.iter().filter(|(from, _)| from == origin).map(|(_, key)| key.as_str()).collect();
    Err(match origin {
        Origin::File(by) if by != path => ConfigureError::Outranked {
            by: by.clone(),
            ours: path.to_owned(),
            keys: keys.join(" and "),
        },
        Origin::Flag(flag) => ConfigureError::CrioFlag { flag: flag.clone() },
        _ => ConfigureError::Unsafe {
            path: path.to_owned(),
            what: format!("{} would not be as it should", keys.join(" and ")),
        },
    })
}
