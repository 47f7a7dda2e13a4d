//! Podman: a drop-in of `containers.conf`, or an OCI hook alone.
//!
//! Later files replace earlier ones key by key, lists whole (containers.conf(5)); so the lists of
//! ours hold what they would be without it.

use std::path::{Path, PathBuf};

use serde_json::Value;
use toml_edit::DocumentMut;

use crate::line_ends::{Frame, check_name, parent, read};
use crate::toml::{lift_comments, list, open, plain_table, set_in, table_in, with_all};
use crate::{Change, ConfigureError, Options, Plan, Report, Source, Way, base};

/// Our drop-in. The directory's files are read by name, so it is the last.
pub const PATH: &str = "/etc/containers/containers.conf.d/zz-mpsgate.conf";
/// The distribution's file, read first.
const VENDOR: &str = "/usr/share/containers/containers.conf";
/// Where our hook goes. Not every Podman looks here by itself (4.3 does not), so `hooks_dir` has to
/// say so.
pub const HOOK: &str = "/etc/containers/oci/hooks.d/mpsgate.json";
/// What `hooks_dir` is where nobody sets it.
const HOOKS_DIR: [&str; 1] = ["/usr/share/containers/oci/hooks.d"];
/// Built into Podman: 4.3, and what newer ones add (containers.conf(5) of containers-common 0.50
/// and 0.62).
const SUPPORTS_JSON: [&str; 6] = ["crun", "runc", "kata", "runsc", "youki", "krun"];
const SUPPORTS_NO_CGROUPS: [&str; 2] = ["crun", "krun"];
const HEAD: &str = "# Written by mpsgate configure podman; --undo takes it away.\n";

/// What to change. `hook`: install this one instead of the runtime.
///
/// # Errors
/// See [`ConfigureError`].
pub fn plan(
    source: &dyn Source,
    path: &Path,
    options: &Options,
    hook: Option<&str>,
) -> Result<Plan, ConfigureError> {
    check_name(&options.name)?;
    let view = View::load(source, path)?;
    match hook {
        Some(hook) => plan_hook(source, path, &view, hook),
        None => plan_runtime(source, path, &view, options),
    }
}

fn plan_runtime(
    source: &dyn Source,
    path: &Path,
    view: &View,
    options: &Options,
) -> Result<Plan, ConfigureError> {
    let default = view.runtime();
    if let Some(name) = default.as_deref().filter(|name| *name != options.name) {
        let program = view.program(name);
        // crun and runc differ in nothing that a container sees, so ours may run either.
        if !options.keep_default && !options.may_lead(&program) && base(&program) != "crun" {
            return Err(options.other_runtime(name, &program));
        }
    }
    let before = read(source, path)?;
    let (frame, mut document) = start(path, before.as_deref())?;
    let comments = if before.is_none() { HEAD.to_owned() } else { lift_comments(&mut document) };
    edit(&mut document, view, options).ok_or_else(|| ConfigureError::Unsafe {
        path: path.to_owned(),
        what: "[engine] is no table".to_owned(),
    })?;
    let after = frame.put_on(&(comments + &document.to_string()));
    let mut notes = Vec::new();
    if !matches!(base(&options.runtime), "crun" | "krun") {
        notes.push(format!("podman run --cgroups=disabled needs crun; {} cannot, so {} is not in runtime_supports_nocgroup", options.runtime, options.name));
    }
    notes.push("this file is for all users of the node; Podman without root gets no grants, because mpsgated is root's".to_owned());
    notes.push("containers made before keep the runtime that they were made with: podman inspect -f '{{.OCIRuntime}}' NAME".to_owned());
    let changes = if before.as_deref() == Some(after.as_str()) {
        Vec::new()
    } else {
        vec![Change { path: path.to_owned(), before, after }]
    };
    Ok(Plan { changes, notes, restart: "nothing: the next podman run reads it (systemctl restart podman, where its service runs)".to_owned() })
}

fn edit(document: &mut DocumentMut, view: &View, options: &Options) -> Option<()> {
    let engine = table_in(document.as_item_mut(), "engine", None)?;
    if !options.keep_default {
        set_in(engine, "runtime", options.name.as_str().into());
    }
    let ours = [options.name.as_str()];
    set_in(
        engine,
        "runtime_supports_json",
        list(&with_all(&view.list("runtime_supports_json", &SUPPORTS_JSON), &ours)),
    );
    // Only where the real runtime can: Podman goes by the name.
    if matches!(base(&options.runtime), "crun" | "krun") {
        set_in(
            engine,
            "runtime_supports_nocgroup",
            list(&with_all(&view.list("runtime_supports_nocgroup", &SUPPORTS_NO_CGROUPS), &ours)),
        );
    }
    let runtimes = table_in(engine, "runtimes", None)?;
    set_in(runtimes, &options.name, list(std::slice::from_ref(&options.shim)));
    Some(())
}

fn plan_hook(
    source: &dyn Source,
    path: &Path,
    view: &View,
    hook: &str,
) -> Result<Plan, ConfigureError> {
    let mut changes = Vec::new();
    let mut put = |path: &Path, before: Option<String>, after: String| {
        if before.as_ref() != Some(&after) {
            changes.push(Change { path: path.to_owned(), before, after });
        }
    };
    put(Path::new(HOOK), read(source, Path::new(HOOK))?, hook.to_owned());
    let directory = HOOK.trim_end_matches("/mpsgate.json");
    let directories = view.list("hooks_dir", &HOOKS_DIR);
    if !has(&directories, directory) {
        let before = read(source, path)?;
        let (frame, mut document) = start(path, before.as_deref())?;
        let comments =
            if before.is_none() { HEAD.to_owned() } else { lift_comments(&mut document) };
        let no_table = || ConfigureError::Unsafe {
            path: path.to_owned(),
            what: "[engine] is no table".to_owned(),
        };
        let engine = table_in(document.as_item_mut(), "engine", None).ok_or_else(no_table)?;
        set_in(engine, "hooks_dir", list(&with_all(&directories, &[directory])));
        put(path, before, frame.put_on(&(comments + &document.to_string())));
    }
    let notes = vec![
        "the runtime does more: podman exec into a container with a grant lacks its variables (hooks/README.md)".to_owned(),
        "Podman without root takes no hooks by itself, and gets no grants".to_owned(),
    ];
    Ok(Plan { changes, notes, restart: "nothing: the next podman run reads it".to_owned() })
}

fn start(path: &Path, before: Option<&str>) -> Result<(Frame, DocumentMut), ConfigureError> {
    before.map_or_else(|| Ok((Frame::default(), DocumentMut::new())), |text| open(path, text))
}

fn has(list: &Value, text: &str) -> bool {
    list.as_array().is_some_and(|list| list.iter().any(|have| have == text))
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
    let mut report = Report::default();
    let hook = Path::new(HOOK);
    let looked_into = hook
        .parent()
        .is_some_and(|dir| has(&view.list("hooks_dir", &HOOKS_DIR), &dir.to_string_lossy()));
    let installed = looked_into && read(source, hook)?.is_some();
    let default = view.runtime();
    let name = default.as_deref().unwrap_or("crun or runc");
    let program = default.as_deref().map_or_else(|| name.to_owned(), |name| view.program(name));
    if default.is_some() && options.is_shim(&program) {
        report.add(name, Way::Through, format!("default runtime {name}: through mpsgate"));
    } else if installed {
        report.add(
            name,
            Way::Through,
            format!("default runtime {name}: runs {program}, after the hook {HOOK} has decided"),
        );
    } else {
        report.add(
            name,
            Way::Bypass,
            format!("default runtime {name}: runs {program} and bypasses mpsgate"),
        );
    }
    for other in view.runtimes().iter().filter(|other| Some(other.as_str()) != default.as_deref()) {
        let program = view.program(other);
        if options.is_shim(&program) {
            report.add(other, Way::Through, format!("runtime {other}: through mpsgate"));
        } else {
            report.add(other, Way::Beyond, format!("runtime {other}: podman --runtime {other} runs {program} and bypasses mpsgate; that is root's choice"));
        }
    }
    Ok(report)
}

/// The files that Podman reads, but for ours.
struct View {
    files: Vec<Value>,
}

impl View {
    fn load(source: &dyn Source, ours: &Path) -> Result<Self, ConfigureError> {
        let directory = parent(ours);
        let main = directory.with_file_name("containers.conf");
        let mut view = Self { files: Vec::new() };
        let parts = source
            .list(directory)
            .into_iter()
            .filter(|path| path.extension().is_some_and(|e| e == "conf") && path != ours);
        for path in [PathBuf::from(VENDOR), main].into_iter().chain(parts) {
            view.read(source, &path)?;
        }
        Ok(view)
    }

    fn read(&mut self, source: &dyn Source, path: &Path) -> Result<(), ConfigureError> {
        if let Some(text) = read(source, path)? {
            self.files.push(plain_table(open(path, &text)?.1.as_table()));
        }
        Ok(())
    }

    /// The last that is said of a key of `[engine]`.
    fn engine(&self, key: &str) -> Option<&Value> {
        self.files.iter().rev().find_map(|file| file.get("engine")?.get(key))
    }

    fn runtime(&self) -> Option<String> {
        self.engine("runtime")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
    }

    /// What a runtime of this name runs: the first of its programs, or the name.
    fn program(&self, name: &str) -> String {
        let defined = self
            .files
            .iter()
            .rev()
            .find_map(|file| file.get("engine")?.get("runtimes")?.get(name)?.get(0)?.as_str());
        defined.unwrap_or(name).to_owned()
    }

    fn runtimes(&self) -> Vec<String> {
        let mut names = Vec::new();
        for file in &self.files {
            for name in file
                .pointer("/engine/runtimes")
                .and_then(Value::as_object)
                .into_iter()
                .flat_map(|table| table.keys())
            {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
        }
        names
    }

    fn list(&self, key: &str, built_in: &[&str]) -> Value {
        self.engine(key).cloned().unwrap_or_else(|| built_in.iter().copied().collect())
    }
}
