//! What of the files that go into a bundle stays out of it. Nothing is searched for words that
//! speak of secrets: what goes in is chosen by the list in `sources`.

use mpsgate_model::printable;
use serde_json::Value;

mod unit;

pub(super) use self::unit::unit;

const GONE: &str = "[redacted]";
/// How a token of the device plugin begins.
const TOKEN: &str = "mpsgate1.";
/// Variables whose values are known to tell nothing: ours and the driver's.
const KNOWN: [&str; 4] = ["CUDA_", "NVIDIA_", "MPSGATE_", "ALIYUN_COM_GPU_MEM"];

/// A text without the tokens of the device plugin, and without users and passwords in addresses.
pub(super) fn text(text: &str) -> String {
    without_users(&without_tokens(text))
}

/// `scheme://user:password@host` without what stands before the `@`.
fn without_users(text: &str) -> String {
    let mut parts = text.split("://");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(['/', ' ', '\t', '\n', '"', '\'']).unwrap_or(part.len());
        let (authority, rest) = part.split_at(end);
        out.push_str("://");
        match authority.rsplit_once('@') {
            Some((_, host)) => {
                out.push_str(GONE);
                out.push('@');
                out.push_str(host);
            }
            None => out.push_str(authority),
        }
        out.push_str(rest);
    }
    out
}

fn without_tokens(text: &str) -> String {
    let mut parts = text.split(TOKEN);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '=');
        out.push_str(TOKEN);
        out.push_str(GONE);
        out.push_str(part.trim_start_matches(is_token));
    }
    out
}

/// Settings without comments: up to the first `#` of each line, also where that is in a value.
pub(super) fn settings(text: &str) -> String {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim_end());
    lines.filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
}

/// A document of ours, as [`text`] is, and without the values of variables that are not known.
/// `None` for what is no JSON.
pub(super) fn json(document: &str) -> Option<String> {
    let mut value: Value = serde_json::from_str(document).ok()?;
    walk(&mut value, "");
    let mut out = serde_json::to_string_pretty(&value).ok()?;
    out.push('\n');
    Some(printable::json(out))
}

fn walk(value: &mut Value, key: &str) {
    let variables = matches!(key, "env" | "environment" | "envs");
    let is_known = |name: &str| KNOWN.iter().any(|known| name.starts_with(known));
    match value {
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                if variables && !is_known(name) {
                    *member = GONE.into();
                } else {
                    walk(member, name);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| match item {
            Value::String(variable) if variables => {
                let name = variable.split('=').next().unwrap_or_default();
                if !is_known(name) {
                    *variable = format!("{name}={GONE}");
                }
            }
            _ => walk(item, key),
        }),
        Value::String(string) => *string = text(string),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests;
