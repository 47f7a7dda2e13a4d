//! containerd: `config.toml` of version 2 or 3, its imports, and the templates of k3s and RKE2.
//!
//! containerd before 2.1 takes a plugin's whole section from the last file that has one; from 2.1
//! on it merges them (measured with `config dump` of 1.6.20, 1.7.24 and 2.1.9). So there a drop-in
//! of ours is read last and says only what changes; before, and where the version is not known, the
//! file whose section counts is edited in place. A handler that is declared takes nothing from the
//! built-in one before 2.0, so ours are always whole.

mod edit;
mod handler;
mod report;
mod template;
mod trial;
mod view;

use std::path::{Path, PathBuf};

use self::handler::Handler;
pub use self::report::{check, check_dump, serves_cri};
pub use self::trial::trial;
use self::view::View;
use crate::command_line::file;
use crate::line_ends::{check_name, read};
use crate::overlay::Overlay;
use crate::{Before, Change, ConfigureError, Options, Plan, Source, Version};

/// Where containerd looks when it is told nothing else.
pub const PATH: &str = "/etc/containerd/config.toml";
/// Where k3s and RKE2 keep the settings of the containerd that they bring along.
pub const DISTRIBUTIONS: [(&str, &str); 2] = [
    ("k3s", "/var/lib/rancher/k3s/agent/etc/containerd"),
    ("rke2", "/var/lib/rancher/rke2/agent/etc/containerd"),
];
/// Our drop-in. Behind NVIDIA's `99-nvidia.toml`, which may name another default.
pub const DROP_IN: &str = "zz-mpsgate.toml";
/// From which version plugin sections of several files are merged.
const MERGES_FROM: Version = Version(2, 1);
/// From which version the newer format is there.
const FORMAT_THREE_FROM: Version = Version(2, 0);
/// The type whose program is an OCI runtime.
const RUNC_TYPE: &str = "io.containerd.runc.v2";

/// The settings file that containerd's command line names.
#[must_use]
pub fn settings(command_line: &[String]) -> Option<PathBuf> {
    file(command_line, &["config", "c"])
}

/// What to change.
///
/// # Errors
/// See [`ConfigureError`].
pub fn plan(source: &dyn Source, path: &Path, options: &Options) -> Result<Plan, ConfigureError> {
    check_name(&options.name)?;
    if path.extension().is_some_and(|e| e == "tmpl") {
        return template::plan(source, path, options);
    }
    refuse_generated(source, path)?;
    let merges = options.engine.is_some_and(|version| version >= MERGES_FROM);
    let view = View::load(source, path, merges, options)?;
    let mut notes = Vec::new();
    let steps = decide(&view, options, &mut notes)?;
    let changes = if merges && view.has_main() {
        edit::drop_in(source, &view, &steps, options)?
    } else {
        edit::in_place(&view, &steps, options)?
    };
    verify(source, path, merges, options, &changes, &steps)?;
    for change in &changes {
        if change.path.file_name().is_some_and(|name| name == "99-nvidia.toml") {
            notes.push(format!(
                "{} is NVIDIA's toolkit's, which writes it anew when its pod starts: then this again. mpsgate configure containerd \
                 --check tells", change.path.display()));
        }
    }
    notes.extend(view.notes(options.engine));
    notes.push(
        "ctr and nerdctl do not read these settings: what root starts with them bypasses mpsgate"
            .to_owned(),
    );
    Ok(Plan {
        changes,
        notes,
        restart: "systemctl restart containerd (containers go on running)".to_owned(),
    })
}

/// What the handlers run, by the files; of files as they were before mpsgate wrote them, what each
/// ran then.
///
/// # Errors
/// See [`ConfigureError`].
pub fn programs(
    source: &dyn Source,
    path: &Path,
    options: &Options,
) -> Result<Before, ConfigureError> {
    let merges = options.engine.is_some_and(|version| version >= MERGES_FROM);
    let view = View::load(source, path, merges, options)?;
    let programs = view.handlers().into_iter().map(|handler| (handler.name, handler.program));
    Ok(Before { default: view.default_name(), programs: programs.collect() })
}

/// What is to become of the handlers.
#[derive(Debug, Default)]
struct Steps {
    /// The handler that ours is a copy of.
    model: String,
    /// Handlers that get our program.
    lead: Vec<String>,
    /// Whether ours is missing.
    add: bool,
    /// Whether ours becomes the default.
    default: bool,
    /// Handlers that get back the program that they ran before mpsgate led them.
    give_back: Vec<(String, String)>,
}

impl Steps {
    fn nothing(&self) -> bool {
        self.lead.is_empty() && !self.add && !self.default && self.give_back.is_empty()
    }
}

fn decide(
    view: &View,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Steps, ConfigureError> {
    let default = view.default_name();
    let handlers = view.handlers();
    check_model(view, &handlers, &default)?;
    let mut steps = Steps { model: default.clone(), ..Steps::default() };
    match handlers.iter().find(|handler| handler.name == options.name) {
        None => steps.add = true,
        Some(handler) if !options.is_shim(&handler.program) => {
            return Err(ConfigureError::NameTaken {
                path: view.owner().to_owned(),
                name: options.name.clone(),
                program: handler.program.clone(),
            });
        }
        Some(handler) if !handler.has_annotations() => steps.lead.push(handler.name.clone()),
        Some(_) => {}
    }
    if options.keep_default {
        return Ok(steps);
    }
    steps.default = default != options.name;
    if !steps.default {
        options.check_default_before()?;
    }
    if steps.default && !handlers.iter().any(|handler| handler.name == default) {
        steps.lead.push(default.clone());
    }
    for handler in handlers.iter().filter(|handler| handler.name != options.name) {
        lead(handler, handler.name == default, options, &mut steps, notes)?;
    }
    Ok(steps)
}

/// Whether the default handler, of which ours is a copy, runs an OCI runtime. The built-in one need
/// not be in the settings.
fn check_model(view: &View, handlers: &[Handler], default: &str) -> Result<(), ConfigureError> {
    let why = match handlers.iter().find(|handler| handler.name == default) {
        Some(model) if !model.is_runc_type() => {
            format!("is of type {}, which runs no OCI runtime", model.kind)
        }
        None if default != "runc" => "is not defined".to_owned(),
        _ => return Ok(()),
    };
    Err(ConfigureError::Default {
        path: view.owner().to_owned(),
        handler: default.to_owned(),
        why,
        fit: "of type io.containerd.runc.v2 as default_runtime_name",
    })
}

/// What becomes of a handler that is not ours.
fn lead(
    handler: &Handler,
    is_default: bool,
    options: &Options,
    steps: &mut Steps,
    notes: &mut Vec<String>,
) -> Result<(), ConfigureError> {
    let Handler { name, kind, program, .. } = handler;
    let title = format!("handler {name}");
    if !handler.is_runc_type() {
        notes.push(format!("{title} is of type {kind}: mpsgate cannot stand before it"));
    } else if options.is_shim(program) {
        if let Some(program) = options.lost(name) {
            notes.push(options.stays(&title, program));
            steps.give_back.push((name.clone(), program.to_owned()));
        } else if !handler.has_annotations() {
            steps.lead.push(name.clone());
        }
    } else if options.may_lead(program) {
        if !options.is_real(program) {
            notes.push(options.ran(&title, program));
        }
        steps.lead.push(name.clone());
    } else if is_default {
        return Err(options.other_runtime(name, program));
    } else {
        notes.push(options.stays(&title, program));
    }
    Ok(())
}

/// Reads the result as containerd will, and looks whether it says what was decided.
fn verify(
    source: &dyn Source,
    path: &Path,
    merges: bool,
    options: &Options,
    changes: &[Change],
    steps: &Steps,
) -> Result<(), ConfigureError> {
    let Some(first) = changes.first() else { return Ok(()) };
    let bad = |what: &str| {
        Err(ConfigureError::Unsafe { path: first.path.clone(), what: what.to_owned() })
    };
    let view = View::load(&Overlay { source, changes }, path, merges, options)?;
    let handlers = view.handlers();
    let leads = |name: &str| {
        handlers.iter().any(|h| {
            h.name == name && options.is_shim(&h.program) && h.is_runc_type() && h.has_annotations()
        })
    };
    if !leads(&options.name) || !steps.lead.iter().all(|name| leads(name)) {
        return bad("a handler would not be as it should");
    }
    let given_back = |(name, program): &(String, String)| {
        handlers.iter().any(|handler| handler.name == *name && handler.program == *program)
    };
    if !steps.give_back.iter().all(given_back) {
        return bad("a handler would not run again what it ran before");
    }
    if steps.default && view.default_name() != options.name {
        return bad("default_runtime_name would not be as it should");
    }
    Ok(())
}

/// k3s and RKE2 write their `config.toml` at every start, and say so in its first lines.
fn refuse_generated(source: &dyn Source, path: &Path) -> Result<(), ConfigureError> {
    let Some(text) = read(source, path)? else { return Ok(()) };
    if !text
        .lines()
        .take(5)
        .any(|line| line.starts_with("# File generated by ") && line.contains("DO NOT EDIT"))
    {
        return Ok(());
    }
    let owner = if path.starts_with(DISTRIBUTIONS[1].1) { "rke2" } else { "k3s" };
    let name =
        if text.contains("version = 3") { "config-v3.toml.tmpl" } else { "config.toml.tmpl" };
    Err(ConfigureError::Generated {
        path: path.to_owned(),
        owner,
        template: path.with_file_name(name),
    })
}
