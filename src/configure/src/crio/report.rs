//! Which handlers reach mpsgate.

use std::path::{Path, PathBuf};

use super::handler::Origin;
use super::view::{View, files};
use super::{Flags, PLATFORMS, dump};
use crate::line_ends::parent;
use crate::{ConfigureError, Options, Report, Source, Way};

/// Where containers go, by the files and `flags`.
///
/// # Errors
/// See [`ConfigureError`].
pub fn check(
    source: &dyn Source,
    path: &Path,
    options: &Options,
    flags: &Flags,
) -> Result<Report, ConfigureError> {
    let view = View::load(source, path, options, flags)?;
    Ok(Report { files: read(source, path, flags), ..report(&view, source, options) })
}

/// The files that CRI-O reads, and the folder in which more may appear.
fn read(source: &dyn Source, path: &Path, flags: &Flags) -> Vec<PathBuf> {
    let mut read = files(source, path, flags).unwrap_or_else(|_| vec![path.to_owned()]);
    read.push(parent(path).to_owned());
    read
}

/// Where containers go, by `text`, which `crio … config` printed; `path` and `flags` are those of
/// its files.
///
/// # Errors
/// See [`ConfigureError`].
pub fn check_dump(
    source: &dyn Source,
    path: &Path,
    text: &str,
    options: &Options,
    flags: &Flags,
) -> Result<Report, ConfigureError> {
    let report = report(&dump::view(text)?, source, options);
    Ok(Report { files: read(source, path, flags), ..report })
}

fn report(view: &View, source: &dyn Source, options: &Options) -> Report {
    let default = view.default_name();
    let mut handlers = view.handlers().to_vec();
    handlers.sort_by_key(|handler| handler.name != default);
    // CRI-O drops a handler for which it finds no program.
    handlers.retain(|handler| handler.name == default || !handler.is_without_program(source));
    let mut report = Report::default();
    if view.named(default).is_none() {
        let said = format!("default handler {default} is not defined: CRI-O does not start");
        report.add(default, Way::Bypass, said);
    }
    for handler in &handlers {
        let is_default = handler.name == default;
        let kind = if is_default { "default handler" } else { "handler" };
        let name = format!("{kind} {}", handler.name);
        let strangers = handler.strangers(options);
        let inherits = handler.inherits && !is_default;
        let (way, sentence) = if view.leads(handler, options) {
            let how = if inherits { "as the default, through" } else { "through" };
            (Way::Through, format!("{name}: {how} mpsgate"))
        } else if inherits && strangers.is_empty() {
            (Way::Bypass, format!("{name}: as the default, bypasses mpsgate"))
        } else if !handler.runs_a_program() && is_default {
            let what =
                format!("{name}: is of type {}; mpsgate cannot stand before it", handler.kind);
            (Way::Bypass, format!("{what}, and it is the default"))
        } else if !handler.runs_a_program() {
            (
                Way::Beyond,
                format!("{name}: is of type {}; mpsgate cannot stand before it", handler.kind),
            )
        } else if options.is_shim(&handler.program) || inherits {
            let what = strangers.join(", ");
            (Way::Bypass, format!("{name}: runs {what}, by {PLATFORMS}, and bypasses mpsgate"))
        } else if handler.origin == Origin::BuiltIn && options.engine.is_none() && !is_default {
            // Which one is built in depends on the version.
            (Way::Beyond, options.bypasses(&handler.title(), &handler.program))
        } else {
            (Way::Bypass, options.bypasses(&name, &handler.program))
        };
        report.add(&handler.name, way, sentence);
    }
    report
}
