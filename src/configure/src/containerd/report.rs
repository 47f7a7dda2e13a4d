//! Which handlers reach mpsgate.

use std::path::Path;

use serde_json::Value;

use super::MERGES_FROM;
use super::handler::Handler;
use super::view::View;
use crate::line_ends::read;
use crate::{ConfigureError, Options, Report, Source, Way, base};

/// Where NVIDIA's toolkit keeps its settings.
const TOOLKIT: &str = "/etc/nvidia-container-runtime/config.toml";

/// The plugins without which containerd has no handlers, as formats 1, 2 and 3 name them.
const CRI_PLUGINS: [&str; 3] = ["cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];

/// Where the handlers lead, by the files.
///
/// # Errors
/// See [`ConfigureError`].
pub fn check(
    source: &dyn Source,
    path: &Path,
    options: &Options,
) -> Result<Report, ConfigureError> {
    let merges = options.engine.is_some_and(|version| version >= MERGES_FROM);
    let view = View::load(source, path, merges, options)?;
    Ok(Report { files: view.sources(), ..report(source, &view, options)? })
}

/// Where the handlers lead, by `text`, which `containerd --config FILE config dump` printed:
/// containerd's own reading of all files. `path` names the settings in errors.
///
/// # Errors
/// See [`ConfigureError`].
pub fn check_dump(
    source: &dyn Source,
    path: &Path,
    text: &str,
    options: &Options,
) -> Result<Report, ConfigureError> {
    let dump = Dump(dumped(text)?);
    // Which files those were is ours to find: a dump names them in some versions only.
    let merges = options.engine.is_some_and(|version| version >= MERGES_FROM);
    let files = View::load(source, path, merges, options);
    let files = files.map_or_else(|_| vec![path.to_owned()], |view| view.sources());
    Ok(Report { files, ..report(source, &View::load(&dump, path, false, options)?, options)? })
}

/// Whether `text`, which `config dump` printed, leaves the CRI on: Docker's package brings settings
/// that switch it off.
///
/// # Errors
/// Where it is no TOML.
pub fn serves_cri(text: &str) -> Result<bool, ConfigureError> {
    let (_, document) = crate::toml::open(Path::new("config dump"), &dumped(text)?)?;
    let plain = crate::toml::plain_table(document.as_table());
    let disabled = plain.get("disabled_plugins").and_then(Value::as_array);
    let is_off = |name: &Value| name.as_str().is_some_and(|name| CRI_PLUGINS.contains(&name));
    Ok(!disabled.is_some_and(|disabled| disabled.iter().any(is_off)))
}

/// The settings in what `config dump` printed, without warnings before them and without the
/// imports, which it has already followed.
fn dumped(text: &str) -> Result<String, ConfigureError> {
    let lines =
        text.lines().filter(|line| !line.starts_with("time=") && !line.starts_with("imports ="));
    let text = lines.collect::<Vec<_>>().join("\n");
    crate::toml::open_dump("containerd config dump", &text)?;
    Ok(text)
}

struct Dump(String);

impl Source for Dump {
    fn read(&self, _: &Path) -> std::io::Result<Option<String>> {
        Ok(Some(self.0.clone()))
    }

    fn list(&self, _: &Path) -> Vec<std::path::PathBuf> {
        Vec::new()
    }

    fn walk(&self, _: &Path) -> Result<Vec<std::path::PathBuf>, ConfigureError> {
        Ok(Vec::new())
    }

    fn has_program(&self, _: &str) -> bool {
        true
    }
}

fn report(source: &dyn Source, view: &View, options: &Options) -> Result<Report, ConfigureError> {
    let default = view.default_name();
    let mut handlers = view.handlers();
    if default == "runc" && !handlers.iter().any(|handler| handler.name == default) {
        handlers.push(Handler::built_in());
    }
    handlers.sort_by_key(|handler| handler.name != default);
    let mut report = Report::default();
    if handlers.first().is_none_or(|handler| handler.name != default) {
        report.add(&default, Way::Bypass, format!("default handler {default} is not defined: pods without a runtime class do not start"));
    }
    for handler in &handlers {
        let kind = if handler.name == default { "default handler" } else { "handler" };
        let name = format!("{kind} {}", handler.name);
        if !handler.is_runc_type() {
            let (way, end) = if handler.name == default {
                (Way::Bypass, ", and it is the default")
            } else {
                (Way::Beyond, "")
            };
            report.add(
                &handler.name,
                way,
                format!("{name}: is of type {}; mpsgate cannot stand before it{end}", handler.kind),
            );
        } else if options.is_shim(&handler.program) {
            if handler.has_annotations() {
                report.add(&handler.name, Way::Through, format!("{name}: through mpsgate"));
            } else {
                let text = format!(
                    "{name}: through mpsgate, but pod_annotations and container_annotations do not name {:?}, so a pod cannot ask for a GPU",
                    crate::ANNOTATIONS
                );
                report.add(&handler.name, Way::Bypass, text);
            }
        } else if base(&handler.program).starts_with("nvidia-container-runtime")
            && toolkit_leads(source, options)?
        {
            report.add(
                &handler.name,
                Way::Through,
                format!("{name}: runs {}, and that runs mpsgate ({TOOLKIT})", handler.program),
            );
        } else {
            report.add(&handler.name, Way::Bypass, options.bypasses(&name, &handler.program));
        }
    }
    Ok(report)
}

/// Whether NVIDIA's runtime runs ours below it: the first entry of its list that exists is taken.
fn toolkit_leads(source: &dyn Source, options: &Options) -> Result<bool, ConfigureError> {
    let path = Path::new(TOOLKIT);
    let Some(text) = read(source, path)? else { return Ok(false) };
    let (_, document) = crate::toml::open(path, &text)?;
    let plain = crate::toml::plain_table(document.as_table());
    let first = plain.pointer("/nvidia-container-runtime/runtimes/0").and_then(Value::as_str);
    Ok(first.is_some_and(|program| options.is_shim(program)))
}
