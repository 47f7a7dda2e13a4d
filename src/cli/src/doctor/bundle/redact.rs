//! What must not leave the node, taken out of text and of JSON. Rather too much than too little.

use mpsgate_model::printable;
use serde_json::Value;

mod unit;

pub(super) use self::unit::unit;

const GONE: &str = "[redacted]";
/// How a token of the device plugin begins.
const TOKEN: &str = "mpsgate1.";
/// Variables whose values are known to tell nothing: ours and the driver's.
const KNOWN: [&str; 4] = ["CUDA_", "NVIDIA_", "MPSGATE_", "ALIYUN_COM_GPU_MEM"];
/// What stands in the parentheses of `pid 7 (…)` in the journal of earlier versions.
const PROCESS: &str = "pid ";
/// How tokens of well-known services begin, and JSON Web Tokens.
const TOKENS: [&str; 12] = [
    "hf_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "sk-",
    "AKIA",
    "xoxb-",
    "xoxp-",
    "npm_",
    "eyJ",
];

/// A text of lines: logs and settings.
pub(super) fn text(text: &str) -> String {
    let mut goes_on = GoesOn::default();
    by_line(text, |body| goes_on.line(body))
}

fn by_line(text: &str, mut each: impl FnMut(&str) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (body, end) = line.strip_suffix('\n').map_or((line, ""), |body| (body, "\n"));
        let (body, end) = body.strip_suffix('\r').map_or((body, end), |body| (body, "\r\n"));
        out.push_str(&each(body));
        out.push_str(end);
    }
    out
}

/// A value that goes on behind the line in which its name stands.
#[derive(Default)]
struct GoesOn {
    /// Until this is found.
    until: Option<&'static str>,
    /// While lines are further to the right than this, or close a bracket.
    deeper: Option<usize>,
    /// The next line, whatever it is.
    next: bool,
}

impl GoesOn {
    fn line(&mut self, body: &str) -> String {
        let gone = || GONE.to_owned();
        if let Some(end) = self.until {
            if body.contains(end) {
                self.until = None;
            }
            return gone();
        }
        if body.contains("-----BEGIN") && !body.contains("-----END") {
            self.until = Some("-----END");
            return gone();
        }
        let indent = body.len() - body.trim_start().len();
        if let Some(of) = self.deeper {
            let line = body.trim();
            if line.is_empty() || indent > of {
                return gone();
            }
            self.deeper = None;
            if line.chars().all(|c| "]}),;".contains(c)) {
                return gone();
            }
        }
        if std::mem::take(&mut self.next) {
            self.next = body.ends_with('\\');
            return gone();
        }
        let Some(name) = secret_name(body) else { return words(body) };
        let value = body.get(name..).unwrap_or_default().trim();
        self.next = value.ends_with('\\');
        self.until = ["\"\"\"", "'''"].into_iter().find(|mark| value.matches(mark).count() == 1);
        let opens = value.ends_with(['[', '{', '(', '|', '>', '=', ':']);
        self.deeper = (opens && self.until.is_none()).then_some(indent);
        words(body)
    }
}

/// A document, key by key. What is no JSON is text.
pub(super) fn json(document: &str) -> String {
    match serde_json::from_str::<Value>(document) {
        Ok(mut value) => {
            walk(&mut value, "");
            let mut out = serde_json::to_string_pretty(&value).unwrap_or_default();
            out.push('\n');
            printable::json(out)
        }
        Err(_) => text(document),
    }
}

fn walk(value: &mut Value, key: &str) {
    let lower = key.to_ascii_lowercase();
    // `key` is what our own documents call a container's name, and that is an object.
    let secret = !is_environment(&lower) && (lower != "key" || value.is_string());
    if secret && secret_name(&lower).is_some() && !value.is_boolean() && !value.is_null() {
        *value = GONE.into();
        return;
    }
    match value {
        Value::Object(members) => {
            let variables = is_environment(&lower);
            for (name, member) in members.iter_mut() {
                if variables && !is_known(name) {
                    *member = GONE.into();
                } else {
                    walk(member, name);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| match item {
            Value::String(variable) if is_environment(&lower) => {
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

fn is_environment(key: &str) -> bool {
    matches!(key, "env" | "environment" | "envs")
}

fn is_known(variable: &str) -> bool {
    KNOWN.iter().any(|known| variable.starts_with(known))
}

/// One line: what stands behind a word that speaks of a secret, to the end; else tokens, users in
/// addresses, and what processes were told.
fn words(line: &str) -> String {
    // First what may itself hold a word that speaks of a secret.
    let line = without_others(line);
    match secret_name(&line) {
        Some(end) => {
            let (name, value) = line.split_at(end);
            let separator: String = value.chars().take_while(|c| " \t=:\"'".contains(*c)).collect();
            let gone = if value.len() > separator.len() { GONE } else { "" };
            name.to_owned() + &separator + gone
        }
        None => line,
    }
}

fn without_others(line: &str) -> String {
    without_arguments(&without_known(&without_users(&without_tokens(line))))
}

/// Words whose value is a secret wherever they stand in a name, and those that must not go on in
/// letters.
const ANYWHERE: [&str; 14] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "secret",
    "token",
    "bearer",
    "credential",
    "authorization",
    "apikey",
    "environment",
    "cookie",
    "private",
    "signature",
];
const AT_THE_END: [&str; 12] =
    ["pass", "pwd", "pswd", "pw", "key", "keys", "auth", "cred", "creds", "otp", "pin", "psk"];
/// Options whose value is a user and his password, or a header.
const OPTIONS: [&str; 6] = ["-u", "-U", "--user", "--proxy-user", "-H", "--header"];
/// Units that our own hints tell to look at.
const OUR_UNITS: [&str; 3] = ["mpsgate", "kubelet", "'mpsgate"];

/// Where the first name of a secret ends, if there is one in a line.
fn secret_name(line: &str) -> Option<usize> {
    // Of the same length, as only ASCII changes.
    let lower = line.to_ascii_lowercase();
    let is_letter = |c: char| c.is_alphabetic();
    let ends = |start: usize| {
        let rest = lower.get(start..).unwrap_or_default();
        let goes_on = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        start + rest.find(|c| !goes_on(c)).unwrap_or(rest.len())
    };
    let anywhere = ANYWHERE
        .iter()
        .flat_map(|word| lower.match_indices(word))
        .map(|(at, word)| at + word.len());
    let at_the_end = AT_THE_END.iter().flat_map(|word| {
        lower.match_indices(word).filter(|(at, word)| {
            let after = lower.get(at + word.len()..).unwrap_or_default();
            let before = lower.get(..*at).unwrap_or_default();
            // `pin`, `pw` and `otp` are ends of many words; the long ones of few.
            let stands =
                word.len() > 3 || *word == "pwd" || *word == "key" || !before.ends_with(is_letter);
            stands && !after.starts_with(is_letter)
        })
    });
    let at_the_end = at_the_end.map(|(at, word)| at + word.len());
    let named = anywhere.chain(at_the_end).min().map(ends);
    let option = OPTIONS.iter().flat_map(|option| {
        line.match_indices(option).filter(|(at, option)| {
            let before = line.get(..*at).unwrap_or_default();
            let after = line.get(at + option.len()..).unwrap_or_default();
            let value = after.trim_start_matches([' ', '\t', '=', '"']);
            let long = option.starts_with("--");
            let is_option = !before
                .ends_with(|c: char| c.is_alphanumeric() || c == '-' || c == '_')
                && (!long || !after.starts_with(|c: char| c.is_alphanumeric() || c == '-'));
            is_option && !value.is_empty() && !OUR_UNITS.iter().any(|unit| value.starts_with(unit))
        })
    });
    let option = option.map(|(at, option)| at + option.len()).min();
    named.into_iter().chain(option).min()
}

/// `pid 7 (name arguments)` without the arguments.
fn without_arguments(line: &str) -> String {
    let mut parts = line.split(PROCESS);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(PROCESS);
        let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = part.split_at(digits);
        let inner = rest.strip_prefix(" (").filter(|_| digits > 0);
        let Some(inner) = inner else {
            out.push_str(part);
            continue;
        };
        let end = inner.find([' ', ')']).unwrap_or(inner.len());
        let (name, after) = inner.split_at(end);
        out.push_str(number);
        out.push_str(" (");
        out.push_str(name);
        if after.starts_with(')') {
            out.push_str(after);
        } else {
            // Where arguments end is not to be seen: they may hold parentheses.
            out.push_str(" [redacted]");
        }
    }
    out
}

/// Words that begin as tokens of well-known services do, and `user:password@host` without a scheme.
fn without_known(line: &str) -> String {
    let stop = |c: char| c.is_whitespace() || "\"',;()[]{}<>=".contains(c);
    line.split_inclusive(stop)
        .map(|part| {
            let word = part.trim_end_matches(stop);
            let end = part.get(word.len()..).unwrap_or_default();
            let known = word.len() > 7 && TOKENS.iter().any(|token| word.starts_with(token));
            match word.rsplit_once('@') {
                _ if known => format!("{GONE}{end}"),
                Some((user, host)) if user.contains(':') && !user.contains("://") => {
                    format!("{GONE}@{host}{end}")
                }
                _ => part.to_owned(),
            }
        })
        .collect()
}

fn without_tokens(line: &str) -> String {
    let mut parts = line.split(TOKEN);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '=');
        out.push_str(TOKEN);
        out.push_str(GONE);
        out.push_str(part.trim_start_matches(is_token));
    }
    out
}

/// `scheme://user:password@host` without what stands before the `@`.
fn without_users(line: &str) -> String {
    let mut parts = line.split("://");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(['/', ' ', '\t', '"', '\'']).unwrap_or(part.len());
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

#[cfg(test)]
mod tests;
