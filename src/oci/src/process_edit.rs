//! Edits of an OCI process object: the file of `exec --process`, or `process` of `config.json`.
//!
//! The document stays JSON: unknown fields survive, in their order.

use serde_json::{Map, Value};

/// Why a process object cannot be edited. It is unchanged then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The document is missing, null, or of another type.
    #[error("the process is {found}, not an object")]
    NotAnObject {
        /// The JSON type found.
        found: &'static str,
    },
    /// `env` is there, but no list.
    #[error("`env` of the process is {found}, not a list")]
    EnvNotAList {
        /// The JSON type found.
        found: &'static str,
    },
}

/// Takes the variables named in `drop` and in `set` out of `env`, then appends `set` in its order.
///
/// Every entry of a name is removed, because runtimes differ in which of several they keep. Entries
/// without `=` and entries that are not text are left as they are: no variable of mpsgate looks
/// like that. A missing or null `env` is made if there is something to set. A second call changes
/// nothing. Returns whether the document changed.
///
/// # Errors
/// [`ProcessError`], with the document unchanged.
pub fn rewrite_env(
    process: &mut Value,
    drop: &[&str],
    set: &[(String, String)],
) -> Result<bool, ProcessError> {
    let found = crate::json_type(process);
    let Value::Object(process) = process else { return Err(ProcessError::NotAnObject { found }) };
    let old = match process.get("env") {
        None | Some(Value::Null) => &[][..],
        Some(Value::Array(entries)) => entries,
        Some(other) => return Err(ProcessError::EnvNotAList { found: crate::json_type(other) }),
    };
    // Sorted, because the names may be as many as the container's own variables.
    let mut names: Vec<&str> = drop.to_vec();
    names.extend(set.iter().map(|(name, _)| name.as_str()));
    names.sort_unstable();
    let is_ours = |entry: &&Value| {
        let name = entry.as_str().and_then(|text| text.split_once('=')).map(|(name, _)| name);
        name.is_some_and(|name| names.binary_search(&name).is_ok())
    };
    let kept = old.iter().filter(|entry| !is_ours(entry)).cloned();
    let ours = set.iter().map(|(name, value)| Value::String(format!("{name}={value}")));
    let new: Vec<Value> = kept.chain(ours).collect();
    if new == old {
        return Ok(false);
    }
    replace(process, "env", Value::Array(new));
    Ok(true)
}

/// Replaces in place, so that the key keeps its position.
fn replace(object: &mut Map<String, Value>, key: &str, value: Value) {
    match object.get_mut(key) {
        Some(slot) => *slot = value,
        None => {
            object.insert(key.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test is to panic")]
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn pairs(set: &[(&str, &str)]) -> Vec<(String, String)> {
        set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn our_values_replace_every_entry_of_their_names_and_come_last() {
        let mut process = json!({"args": ["sh"], "env": ["A=1", "B=2", "A=3", "C=4"], "cwd": "/"});
        let changed = rewrite_env(&mut process, &["B"], &pairs(&[("A", "x=y"), ("Z", "")]));
        assert!(changed.unwrap());
        let expected = r#"{"args":["sh"],"env":["C=4","A=x=y","Z="],"cwd":"/"}"#;
        assert_eq!(process.to_string(), expected);
    }

    #[test]
    fn as_many_names_as_a_document_holds_are_dropped_in_one_pass() {
        let names: Vec<String> = (0..100_000).map(|i| format!("CUDA_MPS_{i}")).collect();
        let entries: Vec<String> = names.iter().map(|name| format!("{name}=1")).collect();
        let mut process = json!({ "env": entries });
        let drop: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(rewrite_env(&mut process, &drop, &pairs(&[("A", "1")])).unwrap());
        assert_eq!(process, json!({ "env": ["A=1"] }));
    }

    #[test]
    fn odd_entries_are_kept_as_they_are() {
        let mut process = json!({"env": ["A", "", "=A", 7, null, "AB=1", "a=1", "A=1"]});
        assert!(rewrite_env(&mut process, &["A"], &[]).unwrap());
        assert_eq!(process, json!({"env": ["A", "", "=A", 7, null, "AB=1", "a=1"]}));
    }

    #[test]
    fn a_missing_or_null_env_is_made_only_for_something_to_set() {
        for text in [r#"{"cwd":"/"}"#, r#"{"env":null,"cwd":"/"}"#] {
            let mut process: Value = serde_json::from_str(text).unwrap();
            assert!(!rewrite_env(&mut process, &["A"], &[]).unwrap());
            assert_eq!(process.to_string(), text);
            assert!(rewrite_env(&mut process, &["A"], &pairs(&[("A", "1")])).unwrap());
            assert_eq!(process["env"], json!(["A=1"]));
        }
    }

    #[test]
    fn a_document_of_the_wrong_shape_is_named_and_left_alone() {
        for (bad, found) in [(json!(null), "null"), (json!([]), "a list"), (json!("x"), "text")] {
            let mut process = bad.clone();
            let error = rewrite_env(&mut process, &[], &pairs(&[("A", "1")])).unwrap_err();
            assert_eq!(error.to_string(), format!("the process is {found}, not an object"));
            assert_eq!(process, bad);
        }
        let mut process = json!({"env": {"A": "1"}});
        let error = rewrite_env(&mut process, &["A"], &[]).unwrap_err();
        assert_eq!(error.to_string(), "`env` of the process is an object, not a list");
    }

    fn any_entry() -> impl Strategy<Value = Value> {
        prop_oneof![
            "[ABC]{1,2}=[a-z=]{0,3}".prop_map(Value::from),
            "[A-C=]{0,3}".prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            Just(Value::Null),
        ]
    }

    fn any_process() -> impl Strategy<Value = Value> {
        let fields = proptest::collection::vec(("[a-z]{1,8}", any::<i64>()), 0..6);
        let env = prop_oneof![
            Just(None),
            Just(Some(Value::Null)),
            proptest::collection::vec(any_entry(), 0..12).prop_map(|list| Some(Value::Array(list))),
        ];
        (fields.clone(), env, fields).prop_map(|(before, env, after)| {
            let mut map = Map::new();
            let add = |fields: Vec<(String, i64)>, map: &mut Map<String, Value>| {
                for (key, value) in fields.into_iter().filter(|(key, _)| key != "env") {
                    map.insert(key, value.into());
                }
            };
            add(before, &mut map);
            if let Some(env) = env {
                map.insert("env".to_owned(), env);
            }
            add(after, &mut map);
            Value::Object(map)
        })
    }

    proptest! {
        #[test]
        fn unknown_fields_survive_order_is_kept_and_twice_is_once(
            process in any_process(),
            names in proptest::collection::vec("[ABC]{1,2}", 0..4),
            set in proptest::collection::vec(("[ABC]{1,2}", "[a-z=]{0,3}"), 0..4),
        ) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let mut once = process.clone();
            let changed = rewrite_env(&mut once, &names, &set).unwrap();
            prop_assert_eq!(changed, once != process);

            // The other fields, in their order.
            let rest = |value: &Value| -> Vec<(String, Value)> {
                let fields = value.as_object().unwrap().clone();
                fields.into_iter().filter(|(key, _)| key != "env").collect()
            };
            prop_assert_eq!(rest(&once), rest(&process));

            // What stays of env is a subsequence of what was there, and ours is its end.
            let list = |value: &Value| value["env"].as_array().cloned().unwrap_or_default();
            let (before, after) = (list(&process), list(&once));
            let kept = &after[..after.len() - set.len()];
            let mut rest_of_before = before.iter();
            prop_assert!(kept.iter().all(|entry| rest_of_before.any(|old| old == entry)));
            let ours: Vec<Value> = set.iter().map(|(n, v)| format!("{n}={v}").into()).collect();
            prop_assert_eq!(&after[kept.len()..], &ours[..]);
            let is_gone = |entry: &Value| {
                let name = entry.as_str().and_then(|text| text.split_once('=')).map(|(n, _)| n);
                name.is_some_and(|n| names.contains(&n) || set.iter().any(|(ours, _)| ours == n))
            };
            prop_assert!(!kept.iter().any(is_gone));
            prop_assert_eq!(kept.len(), before.iter().filter(|entry| !is_gone(entry)).count());

            let mut twice = once.clone();
            prop_assert!(!rewrite_env(&mut twice, &names, &set).unwrap());
            prop_assert_eq!(twice.to_string(), once.to_string());
        }
    }
}
