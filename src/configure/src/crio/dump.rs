//! What `crio config` prints: CRI-O's own reading of its files and flags.
//!
//! It is a commented page on every setting. What is at CRI-O's default stands there as a comment,
//! `# key = value`, all handlers together where none differs (pkg/config/template.go). Its examples
//! are comments too, of a handler named `runtime-handler`.

use serde_json::{Map, Value};

use super::handler::{Handler, Origin};
use super::view::View;
use crate::ConfigureError;
use crate::toml::{open_dump, plain_table};

const COMMAND: &str = "crio config";
/// Stands in the page's explanations.
const EXAMPLE: &str = "runtime-handler";

pub(super) fn view(text: &str) -> Result<View, ConfigureError> {
    let failed = |what: &str| ConfigureError::Dump { command: COMMAND, what: what.to_owned() };
    let plain = plain_table(open_dump(COMMAND, text)?.as_table());
    let default = match plain.pointer("/crio/runtime/default_runtime") {
        Some(Value::String(name)) => name.clone(),
        Some(_) => return Err(failed("default_runtime is no text")),
        None => commented(text, "default_runtime")
            .ok_or_else(|| failed("it does not say what default_runtime is"))?,
    };
    let handlers = match plain.pointer("/crio/runtime/runtimes") {
        Some(Value::Object(handlers)) => handlers
            .iter()
            .filter_map(|(name, table)| Some(Handler::of(name, table.as_object()?, Origin::Dump)))
            .collect(),
        Some(_) => return Err(failed("runtimes is no table")),
        None => commented_handlers(text),
    };
    if handlers.is_empty() {
        return Err(failed("it names no handler"));
    }
    Ok(View::told(default, handlers))
}

/// A line without the sign of a comment.
fn bare(line: &str) -> Option<&str> {
    line.strip_prefix('#').map(str::trim)
}

/// The text that `# key = "text"` sets.
fn text_of(line: &str, key: &str) -> Option<String> {
    let value = bare(line)?.strip_prefix(key)?.trim_start().strip_prefix('=')?.trim();
    Some(value.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}

fn commented(text: &str, key: &str) -> Option<String> {
    text.lines().filter_map(|line| text_of(line, key)).next_back()
}

/// Handlers at their defaults: name, program and type are all that is asked of them.
fn commented_handlers(text: &str) -> Vec<Handler> {
    let mut handlers: Vec<(String, Map<String, Value>)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let header = bare(line)
            .and_then(|line| line.strip_prefix("[crio.runtime.runtimes."))
            .and_then(|line| line.strip_suffix(']'));
        if let Some(name) = header {
            inside = name != EXAMPLE;
            if inside {
                handlers.push((name.trim_matches('"').to_owned(), Map::new()));
            }
        } else if !line.starts_with('#') && !line.trim().is_empty() {
            inside = false;
        } else if inside && let Some((_, table)) = handlers.last_mut() {
            for key in ["runtime_path", "runtime_type"] {
                if let Some(value) = text_of(line, key) {
                    table.insert(key.to_owned(), Value::from(value));
                }
            }
        }
    }
    handlers.into_iter().map(|(name, table)| Handler::of(&name, &table, Origin::Dump)).collect()
}
