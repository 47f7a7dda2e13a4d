//! Whatever parses: foreign keys stay as they are, and a second call changes nothing.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use std::io;
use std::path::{Path, PathBuf};

use mpsgate_configure::{ConfigureError, Options, Plan, Source, containerd, crio, docker, podman};
use proptest::prelude::*;
use serde_json::{Value, json};
use toml_edit::DocumentMut;

struct One(PathBuf, Option<String>);

impl Source for One {
    fn read(&self, path: &Path) -> io::Result<Option<String>> {
        Ok(self.1.clone().filter(|_| path == self.0))
    }

    fn list(&self, directory: &Path) -> Vec<PathBuf> {
        Some(self.0.clone()).filter(|path| path.parent() == Some(directory)).into_iter().collect()
    }

    fn walk(&self, directory: &Path) -> Result<Vec<PathBuf>, ConfigureError> {
        Ok(self.list(directory))
    }

    fn has_program(&self, _: &str) -> bool {
        true
    }
}

fn options() -> Options {
    Options {
        name: "mpsgate".to_owned(),
        shim: "/usr/bin/mpsgate-runtime".to_owned(),
        runtime: "runc".to_owned(),
        keep_default: false,
        all_handlers: true,
        engine: None,
        before: None,
    }
}

/// The text after `configure`, and that configuring that changes nothing.
fn configured(
    path: &str,
    text: &str,
    plan: impl Fn(&dyn Source, &Path) -> Option<Plan>,
) -> Option<String> {
    let path = Path::new(path);
    let plan_ = plan(&One(path.to_owned(), Some(text.to_owned())), path)?;
    let after =
        plan_.changes.first().map_or_else(|| text.to_owned(), |change| change.after.clone());
    let again = plan(&One(path.to_owned(), Some(after.clone())), path).unwrap();
    assert_eq!(again.changes, [], "a second call changes something");
    Some(after)
}

/// A document as a value, without what is ours in it.
fn foreign_json(text: &str) -> Value {
    let mut value: Value = serde_json::from_str(text).unwrap();
    let object = value.as_object_mut().unwrap();
    object.remove("default-runtime");
    if let Some(runtimes) = object.get_mut("runtimes").and_then(Value::as_object_mut) {
        runtimes.remove("mpsgate");
        for runtime in runtimes.values_mut().filter_map(Value::as_object_mut) {
            runtime.remove("path");
        }
    }
    if object.get("runtimes") == Some(&json!({})) {
        object.remove("runtimes");
    }
    value
}

const OURS: [&str; 12] = [
    "version",
    "mpsgate",
    "runc",
    "default_runtime_name",
    "pod_annotations",
    "container_annotations",
    "BinaryName",
    "runtime_type",
    "runtime",
    "default_runtime",
    "runtime_supports_json",
    "runtime_supports_nocgroup",
];

/// Every key that is not ours, with its text.
fn foreign_toml(text: &str) -> Vec<String> {
    fn look(prefix: &str, table: &dyn toml_edit::TableLike, found: &mut Vec<String>) {
        for (key, item) in table.iter().filter(|(key, _)| !OURS.contains(key)) {
            let name = format!("{prefix}.{key}");
            match item.as_table_like() {
                Some(table) => look(&name, table, found),
                None => found.push(format!("{name}={}", item.to_string().trim())),
            }
        }
    }
    let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    let document: DocumentMut = text.parse().unwrap();
    let mut found = Vec::new();
    look("", document.as_table(), &mut found);
    found
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from)
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            members(inner).prop_map(|pairs| pairs.into_iter().collect())
        ]
    })
}

fn members(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Vec<(String, Value)>> {
    prop::collection::vec(
        (
            prop_oneof!["[a-z\"\\\\é]{1,6}", Just("runtimes".to_owned()), Just("path".to_owned())],
            value,
        ),
        0..5,
    )
}

fn toml_line() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "# [a-z é]{0,12}",
        "[a-z]{1,6}[0-9]{1,4} = [0-9]{1,6} ?(# [a-z]{0,6})?",
        "[a-z]{1,6}[0-9]{1,4}\\.x = \"[a-z\\*/]{0,6}\"",
        "  [a-z]{1,6}[0-9]{1,4} = \\[ 1, 2,\\]",
        "[a-z]{1,6}[0-9]{1,4} = \\{ a = 1, b = '[a-z]{0,3}' \\}",
        "\\[[a-z]{1,6}[0-9]{1,4}\\]",
        Just("[plugins.\"io.containerd.grpc.v1.cri\".cni]".to_owned()),
        Just("[plugins.\"io.containerd.grpc.v1.cri\".containerd]".to_owned()),
        Just("[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"".to_owned()),
        Just("[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n  SystemdCgroup = true".to_owned()),
        Just("[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.other]\nruntime_type = \"io.containerd.runc.v2\"".to_owned()),
        Just("[engine]".to_owned()),
        Just("[crio.runtime]".to_owned()),
    ]
}

/// LF or CRLF, with a byte order mark or not, with a last line end or not.
fn framed(text: String, frame: u8) -> String {
    let text = if frame & 1 == 0 { text } else { text.replace('\n', "\r\n") };
    let text = if frame & 2 == 0 { text } else { format!("\u{feff}{text}") };
    if frame & 4 == 0 { text } else { text.trim_end().to_owned() }
}

type Run<'a> = &'a dyn Fn(&dyn Source, &Path) -> Option<Plan>;

proptest! {
    #[test]
    fn foreign_members_of_json_stay(members in members(json_value()), pretty in any::<bool>()) {
        let value: Value = Value::Object(members.into_iter().collect());
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        if let Some(after) = configured(docker::PATH, &text, |source, path| docker::plan(source, path, &options(), &[]).ok()) {
            let mut before: Value = serde_json::from_str(&text).unwrap();
            // An empty or null section says nothing.
            if before.get("runtimes") == Some(&Value::Null) {
                before.as_object_mut().unwrap().remove("runtimes");
            }
            prop_assert_eq!(foreign_json(&after), foreign_json(&before.to_string()));
        }
    }

    #[test]
    fn foreign_keys_of_toml_stay(lines in prop::collection::vec(toml_line(), 0..14), frame in 0u8..8) {
        let text = framed(format!("version = 2\n{}\n", lines.join("\n")), frame);
        let parses = text.trim_start_matches('\u{feff}').replace("\r\n", "\n").parse::<DocumentMut>().is_ok();
        let runs: [(&str, Run<'_>); 3] = [
            (containerd::PATH, &|source, path| containerd::plan(source, path, &options()).ok()),
            (podman::PATH, &|source, path| podman::plan(source, path, &options(), None).ok()),
            (crio::PATH, &|source, path| crio::plan(source, path, &options(), &crio::Flags::default()).ok()),
        ];
        for (path, plan) in runs {
            if let Some(after) = configured(path, &text, plan) {
                prop_assert!(parses);
                let (before, now) = (foreign_toml(&text), foreign_toml(&after));
                for key in &before {
                    prop_assert!(now.contains(key), "{} of {:?} is gone from {:?}", key, text, after);
                }
                prop_assert_eq!(after.starts_with('\u{feff}'), text.starts_with('\u{feff}'));
                if text.contains("\r\n") {
                    prop_assert_eq!(after.matches('\n').count(), after.matches("\r\n").count());
                }
                for comment in text.lines().filter(|line| line.starts_with('#')) {
                    prop_assert!(after.lines().any(|line| line == comment));
                }
            }
        }
    }
}
