//! What must not leave the node, taken out of text and of JSON. Rather too much than too little.

use serde_json::Value;

const GONE: &str = "[redacted]";
/// How a token of the device plugin begins.
const TOKEN: &str = "mpsgate1.";
/// In the name of a variable or a key: its value is nobody's business.
const SECRET_WORDS: [&str; 7] =
    ["token", "secret", "password", "passwd", "credential", "api_key", "auth"];
/// Variables whose values are known to tell nothing: ours and the driver's.
const KNOWN: [&str; 4] = ["CUDA_", "NVIDIA_", "MPSGATE_", "ALIYUN_COM_GPU_MEM"];
/// Settings of units that hold variables or secrets.
const UNIT_KEYS: [&str; 4] =
    ["Environment=", "SetCredential=", "SetCredentialEncrypted=", "PassEnvironment="];

/// A text of lines: logs, settings, units.
pub(super) fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut goes_on = false;
    for line in text.split_inclusive('\n') {
        let (body, end) = line.strip_suffix('\n').map_or((line, ""), |body| (body, "\n"));
        let key = UNIT_KEYS.iter().find(|key| body.trim_start().starts_with(*key));
        if goes_on || key.is_some() {
            // A backslash at the end leads the value on to the next line.
            goes_on = body.ends_with('\\');
            out.push_str(key.copied().unwrap_or_default());
            out.push_str(GONE);
        } else {
            out.push_str(&words(body));
        }
        out.push_str(end);
    }
    out
}

/// A document, key by key. What is no JSON is text.
pub(super) fn json(document: &str) -> String {
    match serde_json::from_str::<Value>(document) {
        Ok(mut value) => {
            walk(&mut value, "");
            let mut out = serde_json::to_string_pretty(&value).unwrap_or_default();
            out.push('\n');
            out
        }
        Err(_) => text(document),
    }
}

fn walk(value: &mut Value, key: &str) {
    let lower = key.to_ascii_lowercase();
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
        Value::String(_) if is_secret(&lower) => *value = GONE.into(),
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

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// One line: tokens, users in addresses, values of variables with a secret's name.
fn words(line: &str) -> String {
    let line = without_tokens(line);
    let line = without_users(&line);
    let mut out = String::with_capacity(line.len());
    for word in line.split_inclusive([' ', '\t', ',', ';']) {
        match word.split_once('=') {
            Some((name, _)) if !name.is_empty() && is_secret(name) => {
                out.push_str(name);
                out.push('=');
                out.push_str(GONE);
                out.extend(word.chars().last().filter(|c| [' ', '\t', ',', ';'].contains(c)));
            }
            _ => out.push_str(word),
        }
    }
    out
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
mod tests {
    use super::*;

    #[test]
    fn secrets_in_text_go_and_the_rest_stays() {
        for (before, after) in [
            ("card 0 is ready", "card 0 is ready"),
            ("token mpsgate1.k1.eyJ9.AbC-_9 of pod p", "token mpsgate1.[redacted] of pod p"),
            ("proxy http://joe:pw@proxy:3128/x", "proxy http://[redacted]@proxy:3128/x"),
            ("http://127.0.0.1:19400/metrics", "http://127.0.0.1:19400/metrics"),
            ("DB_PASSWORD=hunter2 rest", "DB_PASSWORD=[redacted] rest"),
            ("a=1,api_key=xyz,b=2", "a=1,api_key=[redacted],b=2"),
            ("Environment=\"A=b\" C=d", "Environment=[redacted]"),
            ("Environment=A=b \\\n  C=d\nUser=x\n", "Environment=[redacted]\n[redacted]\nUser=x\n"),
            ("SetCredential=key:abc", "SetCredential=[redacted]"),
            ("EnvironmentFile=/run/x", "EnvironmentFile=/run/x"),
        ] {
            assert_eq!(text(before), after);
        }
    }

    #[test]
    fn secrets_in_documents_go_by_their_key() {
        let before = r#"{"env":["CUDA_VISIBLE_DEVICES=0","AWS=abc"],"environment":{"NVIDIA_X":"1","Y":"abc"},
            "grant_token":"abc","note":"see mpsgate1.a.b.c","n":1,"inner":[{"password":"abc"}]}"#;
        let after = json(before);
        assert!(!after.contains("abc") && !after.contains("a.b.c"), "{after}");
        let value: Value = serde_json::from_str(&after).unwrap_or_default();
        assert_eq!(value["env"][0], "CUDA_VISIBLE_DEVICES=0");
        assert_eq!(value["environment"]["NVIDIA_X"], "1");
        assert_eq!((&value["n"], &value["note"]), (&1.into(), &"see mpsgate1.[redacted]".into()));
    }

    #[test]
    fn a_document_that_is_broken_is_taken_as_text() {
        assert_eq!(json("{\"a\": SECRET=1"), "{\"a\": SECRET=[redacted]");
    }
}
