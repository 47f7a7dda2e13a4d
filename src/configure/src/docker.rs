//! Docker: `daemon.json`, edited in place. JSON has no comments, and dockerd reads no drop-ins.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command_line::file;
use crate::json::{Object, Style, quote};
use crate::line_ends::{Frame, check_name, read};
use crate::{Before, Change, ConfigureError, Options, Plan, Report, Source, Way, base};

/// Where dockerd looks when it is told nothing else.
pub const PATH: &str = "/etc/docker/daemon.json";
/// From which version `dockerd --validate` exists.
pub const VALIDATES_FROM: crate::Version = crate::Version(23, 0);
/// Both settings are among those that dockerd takes at SIGHUP, by its documentation: no container
/// ends.
const RELOAD: &str = "systemctl reload docker";

/// What no setting of Docker's changes.
const BEYOND: [&str; 3] = [
    "whoever may use Docker's socket can still say docker run --runtime=runc: dockerd keeps that name for itself",
    "BuildKit runs runc from $PATH, whatever the default is: docker build bypasses mpsgate and gets no grant",
    "containers made before keep the runtime that they were made with: docker inspect -f '{{.HostConfig.Runtime}}' NAME",
];

/// The settings file that dockerd's command line names.
#[must_use]
pub fn settings(command_line: &[String]) -> Option<PathBuf> {
    file(command_line, &["config-file"])
}

/// What to change. `command_line` is that of the running dockerd, if any: a setting that stands
/// there and in the file keeps it from starting.
///
/// # Errors
/// See [`ConfigureError`].
pub fn plan(
    source: &dyn Source,
    path: &Path,
    options: &Options,
    command_line: &[String],
) -> Result<Plan, ConfigureError> {
    check_name(&options.name)?;
    let before = read(source, path)?;
    let (frame, body) = open(path, before.as_deref())?;
    let root = Object::of(path, &body)?;
    let runtimes = section(path, &root)?;
    let mut notes = Vec::new();
    let default = text_of(path, &root, "default-runtime")?.unwrap_or_else(|| "runc".to_owned());
    let is_ours = default == options.name;
    if !options.keep_default {
        check_default(&runtimes, &default, options)?;
    }
    let edited = led(path, &root, &runtimes, options, &mut notes)?;
    let file = Style::file();
    let mut body = body.clone();
    if edited != runtimes.text {
        body = around(&body, |root| root.with("runtimes", &file, |_| edited.clone()), path)?;
    }
    if !options.keep_default && !is_ours {
        body = around(
            &body,
            |root| root.with("default-runtime", &file, |_| quote(&options.name)),
            path,
        )?;
    }
    let after = frame.put_on(&body);
    let mut changes = Vec::new();
    if before.as_deref() != Some(after.as_str())
        && (edited != runtimes.text || !(options.keep_default || is_ours))
    {
        flags(command_line)?;
        changes.push(Change { path: path.to_owned(), before, after });
    }
    notes.extend(BEYOND.map(str::to_owned));
    Ok(Plan { changes, notes, restart: RELOAD.to_owned() })
}

/// Whether the default runtime, ours or what ours will stand for, may be led through mpsgate.
fn check_default(
    runtimes: &Runtimes<'_>,
    default: &str,
    options: &Options,
) -> Result<(), ConfigureError> {
    if default == options.name {
        return options.check_default_before();
    }
    let program = program(runtimes, default);
    if options.may_lead(&program) || options.is_shim(&program) {
        return Ok(());
    }
    Err(options.other_runtime(default, &program))
}

/// The section of the runtimes as it should be: ours is there, and the others are led through it
/// where they may be.
fn led(
    path: &Path,
    root: &Object<'_>,
    runtimes: &Runtimes<'_>,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<String, ConfigureError> {
    let mut edited = runtimes.text.to_owned();
    for (name, entry) in &runtimes.entries {
        let program = entry.program();
        let title = format!("runtime {name}");
        if options.is_shim(&program) {
            if let Some(program) = options.lost(name).filter(|_| *name != options.name) {
                notes.push(options.stays(&title, program));
                edited = with_path(path, &edited, root, name, program)?;
            }
        } else if *name == options.name {
            return Err(ConfigureError::NameTaken {
                path: path.to_owned(),
                name: options.name.clone(),
                program,
            });
        } else if options.keep_default {
            // The others stay as they are.
        } else if entry.path.is_some() && options.may_lead(&program) {
            if !options.is_real(&program) {
                notes.push(options.ran(&title, &program));
            }
            edited = with_path(path, &edited, root, name, &options.shim)?;
        } else {
            notes.push(options.stays(&title, &program));
        }
    }
    if !runtimes.entries.iter().any(|(name, _)| name == &options.name) {
        edited = edit(path, &edited, root, |runtimes, style| {
            Ok(runtimes.with(&options.name, style, |style| {
                style.nested(&[("path", quote(&options.shim))])
            }))
        })?;
    }
    Ok(edited)
}

/// What the runtimes run, by the file; for a file as it was before mpsgate wrote it.
///
/// # Errors
/// See [`ConfigureError`].
pub fn programs(source: &dyn Source, path: &Path) -> Result<Before, ConfigureError> {
    let before = read(source, path)?;
    let (_, body) = open(path, before.as_deref())?;
    let root = Object::of(path, &body)?;
    let programs = section(path, &root)?.entries.into_iter();
    Ok(Before {
        default: text_of(path, &root, "default-runtime")?.unwrap_or_else(|| "runc".to_owned()),
        programs: programs.map(|(name, entry)| (name, entry.program())).collect(),
    })
}

/// The `runtimes` section with another program for one of them.
fn with_path(
    path: &Path,
    text: &str,
    root: &Object<'_>,
    name: &str,
    program: &str,
) -> Result<String, ConfigureError> {
    edit(path, text, root, |runtimes, style| {
        let entry = runtimes.get(name).unwrap_or("{}").to_owned();
        let new = Object::of(path, &entry)
            .map(|o| o.with("path", &runtimes.style(style), |_| quote(program)));
        new.map(|new| runtimes.with(name, style, |_| new.clone()))
    })
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
    let before = read(source, path)?;
    let (_, body) = open(path, before.as_deref())?;
    let root = Object::of(path, &body)?;
    let runtimes = section(path, &root)?;
    let default = text_of(path, &root, "default-runtime")?.unwrap_or_else(|| "runc".to_owned());
    let mut report = Report { files: vec![path.to_owned()], ..Report::default() };
    let program_of_default = program(&runtimes, &default);
    if options.is_shim(&program_of_default) {
        report.add(&default, Way::Through, format!("default runtime {default}: through mpsgate"));
    } else {
        report.add(
            &default,
            Way::Bypass,
            format!("default runtime {default}: runs {program_of_default} and bypasses mpsgate"),
        );
    }
    for (name, entry) in runtimes.entries.iter().filter(|(name, _)| *name != default) {
        let program = entry.program();
        if options.is_shim(&program) {
            report.add(name, Way::Through, format!("runtime {name}: through mpsgate"));
        } else if entry.path.is_none() && !entry.is_runc_shim() {
            report.add(
                name,
                Way::Beyond,
                format!(
                    "runtime {name}: {program} is no OCI runtime; mpsgate cannot stand before it"
                ),
            );
        } else {
            report.add(name, Way::Bypass, options.stays(&format!("runtime {name}"), &program));
        }
    }
    if default != "runc" {
        report.add(
            "runc",
            Way::Beyond,
            "runtime runc: dockerd's own, bypasses mpsgate; nothing in daemon.json can change that",
        );
    }
    Ok(report)
}

/// The `runtimes` section.
struct Runtimes<'a> {
    text: &'a str,
    entries: Vec<(String, Entry)>,
}

struct Entry {
    path: Option<String>,
    kind: Option<String>,
    binary: Option<String>,
}

impl Entry {
    fn is_runc_shim(&self) -> bool {
        self.kind.as_deref() == Some("io.containerd.runc.v2")
    }

    fn program(&self) -> String {
        match (&self.path, &self.binary, &self.kind) {
            (Some(path), _, _) => path.clone(),
            (None, Some(binary), _) => binary.clone(),
            (None, None, Some(kind)) if !self.is_runc_shim() => kind.clone(),
            _ => "runc".to_owned(),
        }
    }
}

fn open(path: &Path, before: Option<&str>) -> Result<(Frame, String), ConfigureError> {
    let (frame, body) = Frame::take_off(path, before.unwrap_or(""))?;
    if frame.has_bom() {
        return Err(ConfigureError::ByteOrderMark { path: path.to_owned() });
    }
    // An empty file is none to dockerd from 23 on; before, dockerd did not start with it.
    Ok((frame, if body.trim().is_empty() { "{}\n".to_owned() } else { body }))
}

fn section<'a>(path: &Path, root: &Object<'a>) -> Result<Runtimes<'a>, ConfigureError> {
    let text = root.get("runtimes").filter(|text| *text != "null").unwrap_or("{}");
    let wrong = |key: &str, found| ConfigureError::Type {
        path: path.to_owned(),
        key: key.to_owned(),
        found,
        wanted: "an object",
    };
    let Value::Object(values) = value(text) else {
        return Err(wrong("runtimes", kind(&value(text))));
    };
    // Duplicate keys are an error here too.
    Object::of(path, text)?;
    let mut entries = Vec::new();
    for (name, entry) in values {
        if !entry.is_object() {
            return Err(wrong(&format!("runtimes.{name}"), kind(&entry)));
        }
        let text = |pointer: &str| {
            entry
                .pointer(pointer)
                .and_then(Value::as_str)
                .map(str::to_owned)
                .filter(|s| !s.is_empty())
        };
        entries.push((
            name,
            Entry {
                path: text("/path"),
                kind: text("/runtimeType"),
                binary: text("/options/BinaryName"),
            },
        ));
    }
    Ok(Runtimes { text, entries })
}

/// What a runtime of this name runs; dockerd's own `runc` where nobody defines it.
fn program(runtimes: &Runtimes<'_>, name: &str) -> String {
    runtimes
        .entries
        .iter()
        .find(|(have, _)| have == name)
        .map_or_else(|| name.to_owned(), |(_, entry)| entry.program())
}

fn text_of(path: &Path, root: &Object<'_>, key: &str) -> Result<Option<String>, ConfigureError> {
    match root.get(key).map(value) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(other) => Err(ConfigureError::Type {
            path: path.to_owned(),
            key: key.to_owned(),
            found: kind(&other),
            wanted: "a text",
        }),
    }
}

/// Edits the text of the runtimes section, which stands in `root` in its style.
fn edit(
    path: &Path,
    text: &str,
    root: &Object<'_>,
    by: impl Fn(&Object<'_>, &Style) -> Result<String, ConfigureError>,
) -> Result<String, ConfigureError> {
    let style = root.style(&Style::file());
    by(&Object::of(path, text)?, &style)
}

/// Edits the object of a file and keeps the space around it.
fn around(
    body: &str,
    by: impl Fn(&Object<'_>) -> String,
    path: &Path,
) -> Result<String, ConfigureError> {
    let object = Object::of(path, body)?;
    let new = by(&object);
    let trimmed = body.trim();
    Ok(body.replacen(trimmed, &new, 1))
}

fn flags(command_line: &[String]) -> Result<(), ConfigureError> {
    let ours = |flag: &&String| {
        ["--default-runtime", "--add-runtime"].contains(&flag.split('=').next().unwrap_or(""))
    };
    match command_line.iter().find(ours) {
        None => Ok(()),
        Some(flag) => Err(ConfigureError::Flag {
            flag: base(flag.split('=').next().unwrap_or(flag)).to_owned(),
        }),
    }
}

/// A part of a document that was parsed as a whole.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
