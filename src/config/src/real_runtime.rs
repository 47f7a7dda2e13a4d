//! Which runtime to pass on to, even if the settings as a whole cannot be used.

use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use crate::settings_file::read_trusted;
use crate::{Runtime, keys, paths};

/// `[runtime] path` of a settings file that need not be valid.
///
/// A mistake elsewhere in the file must not stop containers that do not use mpsgate, and must not
/// pass them to another runtime than the operator chose. `None` if no usable value is found.
#[must_use]
pub fn runtime_path_hint(text: &str) -> Option<String> {
    // The parser continues after errors, and reads valid files as usual.
    let (table, errors) = DeTable::parse_recoverable(text);
    // On a line with an error the value is a guess of the parser: half a path is not a path. Lines
    // are compared by offsets, because there may be an error on every line.
    let is_guess = |value: &Range<usize>| {
        let before = text.get(..value.start).unwrap_or_default();
        let behind = text.get(value.end..).unwrap_or_default();
        let first = before.rfind('\n').map_or(0, |at| at + 1);
        let last = behind.find('\n').map_or(text.len(), |at| value.end + at);
        errors
            .iter()
            .any(|error| error.span().is_none_or(|span| span.start <= last && first <= span.end))
    };
    let runtime = table.get_ref().get("runtime").and_then(|value| value.get_ref().as_table());
    match runtime.and_then(path_in) {
        Some((path, span)) if !is_guess(&span) => Some(path),
        None if errors.is_empty() => None,
        _ => path_by_line(text),
    }
}

fn path_in(runtime: &DeTable<'_>) -> Option<(String, Range<usize>)> {
    let value = runtime.get("path")?;
    let path = value.get_ref().as_str()?;
    keys::is_name_or_path(path).then(|| (path.to_owned(), value.span()))
}

/// Reads each line by itself: for files of which, say, an open `"""` swallows the rest.
fn path_by_line(text: &str) -> Option<String> {
    let mut in_runtime = false;
    for line in text.lines() {
        let Ok(table) = DeTable::parse(line) else { continue };
        let table = table.get_ref();
        if line.trim_start().starts_with('[') {
            in_runtime = table.contains_key("runtime");
        } else if in_runtime && let Some((path, _)) = path_in(table) {
            return Some(path);
        }
    }
    None
}

/// The runtime for containers that do not use mpsgate, if the settings cannot be used.
///
/// The file's value if only root could have written the file, else the default. Never an error.
#[must_use]
pub fn runtime_for_pass_through(config_file: &Path) -> PathBuf {
    let bytes = read_trusted(config_file).ok().flatten();
    let hint = bytes.and_then(|bytes| runtime_path_hint(&String::from_utf8_lossy(&bytes)));
    hint.map_or_else(|| Runtime::default().path, PathBuf::from)
}

/// Looks a runtime up: an absolute path is taken as it is, a name is searched in
/// [`paths::RUNTIME_SEARCH`].
///
/// `own` is the caller's executable (`/proc/self/exe`), which is passed over: a shim that is
/// installed under the name of the runtime would pass on to itself for ever. `None` if nothing
/// executable has that name.
#[must_use]
pub fn find_runtime(runtime: &Path, own: Option<&Metadata>) -> Option<PathBuf> {
    find_in(runtime, own, paths::RUNTIME_SEARCH)
}

fn find_in(runtime: &Path, own: Option<&Metadata>, dirs: &[&str]) -> Option<PathBuf> {
    let is_own = |found: &Metadata| {
        own.is_some_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
    };
    let is_program =
        |found: &Metadata| found.is_file() && found.mode() & 0o111 != 0 && !is_own(found);
    if runtime.is_absolute() {
        // A missing program is left to exec, whose error says more.
        let is_other = std::fs::metadata(runtime).map_or(true, |found| !is_own(&found));
        return is_other.then(|| runtime.to_owned());
    }
    let candidates = dirs.iter().map(|dir| Path::new(dir).join(runtime));
    candidates
        .into_iter()
        .find(|path| std::fs::metadata(path).is_ok_and(|found| is_program(&found)))
}

#[cfg(test)]
mod tests;
