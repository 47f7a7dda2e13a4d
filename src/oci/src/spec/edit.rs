//! Typed edits of a spec. Each is idempotent: applied twice it changes nothing more.

use serde_json::{Map, Value, json};

use super::view::{device, device_rule};

/// When a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookStage {
    /// The old name of `createRuntime`.
    Prestart,
    /// In the runtime's namespaces, before the container's program.
    CreateRuntime,
    /// In the container's namespaces, before its root is entered.
    CreateContainer,
    /// In the container, before its program.
    StartContainer,
    /// After the program was started.
    Poststart,
    /// After the container is deleted.
    Poststop,
}

impl HookStage {
    /// A stage by OCI's name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        use HookStage as S;
        [
            S::Prestart,
            S::CreateRuntime,
            S::CreateContainer,
            S::StartContainer,
            S::Poststart,
            S::Poststop,
        ]
        .into_iter()
        .find(|stage| stage.as_str() == name)
    }

    /// OCI's name of the stage.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prestart => "prestart",
            Self::CreateContainer => "createContainer",
            Self::StartContainer => "startContainer",
            Self::Poststart => "poststart",
            Self::CreateRuntime => "createRuntime",
            Self::Poststop => "poststop",
        }
    }
}

/// One change of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Drops all entries of some variables, then sets others, in this order.
    Env {
        /// Names.
        drop: Vec<String>,
        /// Names and values.
        set: Vec<(String, String)>,
    },
    /// Binds a host directory. A mount at the same destination is replaced.
    Bind {
        /// Host path.
        source: String,
        /// Path inside the container.
        destination: String,
        /// Mount options.
        options: Vec<String>,
    },
    /// Removes every mount at a destination.
    RemoveMount {
        /// Path inside the container.
        destination: String,
    },
    /// Adds a character device: its node and the rule that opens it.
    AddDevice {
        /// Path inside the container.
        path: String,
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
        /// Owner of the node inside the container.
        uid: u32,
    },
    /// Removes the nodes of a character device, whatever their path, but no rule.
    RemoveDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// Removes every rule that allows reading or writing devices of a major, but rules for all
    /// majors.
    RemoveRules {
        /// Major number.
        major: u32,
        /// Only rules that open this one, alone or with others; `None` for every rule of the major.
        minor: Option<u32>,
    },
    /// Replaces rules that allow all devices by an enumerated list without some majors.
    ///
    /// A deny rule after it would be simpler, but crun with systemd refuses one, runc on cgroup v1
    /// cannot punch the hole, and runc with systemd ends in an empty strict policy (measured, runc
    /// 1.1.5 and crun 1.21).
    CloseAllowAll {
        /// Character majors that stay closed.
        except: Vec<u32>,
    },
    /// Appends a hook. One with the same path and arguments is replaced.
    AddHook {
        /// When.
        stage: HookStage,
        /// Program.
        path: String,
        /// Arguments with `argv[0]`.
        args: Vec<String>,
        /// The whole environment: never empty, since engines that re-marshal drop an empty list
        /// and the hook would inherit the runtime's.
        env: Vec<String>,
        /// Seconds after which the runtime kills it.
        timeout_s: Option<u32>,
    },
    /// Adds supplementary groups of the container's process.
    AddGids(Vec<u32>),
    /// Removes every hook of a program.
    RemoveHooks {
        /// Its path.
        path: String,
    },
    /// Gives an annotation that is there another value.
    SetAnnotation {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
    /// Removes an annotation.
    RemoveAnnotation {
        /// Its name.
        name: String,
    },
}

/// Why an edit cannot be made. The document may hold earlier edits and must not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// Something else stands where an object or list must be.
    #[error("{path} is {found}, not {expected}")]
    Type {
        /// Dotted path in the document.
        path: String,
        /// What is there.
        found: &'static str,
        /// What must be.
        expected: &'static str,
    },
    /// `process.env` cannot be edited.
    #[error(transparent)]
    Env(#[from] crate::process::ProcessError),
}

/// Character majors end here: `CHRDEV_MAJOR_MAX` of Linux is 512.
const CHARACTER_MAJORS: u32 = 512;

/// Makes the edits in order.
///
/// # Errors
/// Where the document has another type in a place that an edit needs.
pub fn apply(document: &mut Value, edits: &[Edit]) -> Result<(), EditError> {
    edits.iter().try_for_each(|edit| apply_one(document, edit))
}

fn apply_one(document: &mut Value, edit: &Edit) -> Result<(), EditError> {
    match edit {
        Edit::Env { drop, set } => {
            let process = child(document, "process", "process")?;
            let drop: Vec<&str> = drop.iter().map(String::as_str).collect();
            crate::process::rewrite_env(process, &drop, set)?;
        }
        Edit::Bind { source, destination, options } => {
            let mount = json!({
                "destination": destination, "type": "bind", "source": source, "options": options
            });
            let mounts = list(document, &["mounts"])?;
            replace(mounts, mount, |m| text(m, "destination") == Some(destination));
        }
        Edit::RemoveMount { destination } => {
            retain(document, &["mounts"], |m| text(m, "destination") != Some(destination));
        }
        Edit::AddDevice { path, major, minor, uid } => {
            let node = json!({
                "path": path, "type": "c", "major": major, "minor": minor,
                "fileMode": 0o666, "uid": uid, "gid": 0
            });
            let devices = list(document, &["linux", "devices"])?;
            replace(devices, node, |d| text(d, "path") == Some(path));
            let rule = json!({
                "allow": true, "type": "c", "major": major, "minor": minor, "access": "rw"
            });
            let rules = list(document, &["linux", "resources", "devices"])?;
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        Edit::RemoveDevice { major, minor } => {
            retain(document, &["linux", "devices"], |d| {
                device(d)
                    .is_none_or(|d| !d.is_character() || (d.major, d.minor) != (*major, *minor))
            });
        }
        Edit::RemoveRules { major, minor } => {
            retain(document, &["linux", "resources", "devices"], |r| {
                device_rule(r).is_none_or(|r| {
                    !r.allow || r.major != Some(*major) || !r.covers(*major, *minor)
                })
            });
        }
        Edit::CloseAllowAll { except } => close_allow_all(document, except),
        Edit::AddHook { stage, path, args, env, timeout_s } => {
            let mut hook = json!({ "path": path, "args": args, "env": env });
            if let (Some(seconds), Some(hook)) = (timeout_s, hook.as_object_mut()) {
                hook.insert("timeout".to_owned(), json!(seconds));
            }
            let hooks = list(document, &["hooks", stage.as_str()])?;
            replace(hooks, hook, |h| {
                text(h, "path") == Some(path) && h.get("args") == Some(&json!(args))
            });
        }
        Edit::AddGids(gids) => {
            let list = list(document, &["process", "user", "additionalGids"])?;
            for gid in gids.iter().map(|gid| json!(gid)) {
                if !list.contains(&gid) {
                    list.push(gid);
                }
            }
        }
        Edit::RemoveHooks { path } => {
            if let Some(stages) = document.get_mut("hooks").and_then(Value::as_object_mut) {
                for stage in stages.values_mut().filter_map(Value::as_array_mut) {
                    stage.retain(|hook| text(hook, "path") != Some(path));
                }
            }
        }
        Edit::SetAnnotation { name, value } => {
            let found = document.get_mut("annotations").and_then(|all| all.get_mut(name));
            if let Some(found) = found {
                *found = json!(value);
            }
        }
        Edit::RemoveAnnotation { name } => {
            if let Some(all) = document.get_mut("annotations").and_then(Value::as_object_mut) {
                all.shift_remove(name);
            }
        }
    }
    Ok(())
}

fn close_allow_all(document: &mut Value, except: &[u32]) {
    let Some(rules) =
        document.pointer_mut("/linux/resources/devices").and_then(Value::as_array_mut)
    else {
        return;
    };
    let Some(at) = rules.iter().position(|r| device_rule(r).is_some_and(|r| r.allows_all())) else {
        return;
    };
    rules.retain(|r| !device_rule(r).is_some_and(|r| r.allows_all()));
    let open = (0..CHARACTER_MAJORS)
        .filter(|major| !except.contains(major))
        .map(|major| json!({"allow": true, "type": "c", "major": major, "access": "rwm"}))
        .chain(std::iter::once(json!({"allow": true, "type": "b", "access": "rwm"})));
    rules.splice(at..at, open);
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// Puts `item` in the place of the first that `is_it`, drops the others, else appends.
fn replace(list: &mut Vec<Value>, item: Value, is_it: impl Fn(&Value) -> bool) {
    let mut item = Some(item);
    list.retain_mut(|old| {
        if !is_it(old) {
            return true;
        }
        match item.take() {
            Some(new) => {
                *old = new;
                true
            }
            None => false,
        }
    });
    list.extend(item);
}

/// Keeps items of a list; an absent list stays absent.
fn retain(document: &mut Value, path: &[&str], keep: impl Fn(&Value) -> bool) {
    let found = path.iter().try_fold(document, |value, key| value.get_mut(key));
    if let Some(items) = found.and_then(Value::as_array_mut) {
        items.retain(keep);
    }
}

/// The object member `key`, made where it is absent or null.
fn child<'a>(parent: &'a mut Value, key: &str, path: &str) -> Result<&'a mut Value, EditError> {
    let found = crate::json_type(parent);
    let object = parent.as_object_mut().ok_or_else(|| EditError::Type {
        path: path.rsplit_once('.').map_or("config.json", |(parent, _)| parent).to_owned(),
        found,
        expected: "an object",
    })?;
    let value = object.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    Ok(value)
}

/// The list at a path, made with its parents where they are absent or null.
fn list<'a>(document: &'a mut Value, path: &[&str]) -> Result<&'a mut Vec<Value>, EditError> {
    let mut value = document;
    let mut dotted = String::new();
    for (i, key) in path.iter().enumerate() {
        if i > 0 {
            dotted.push('.');
        }
        dotted.push_str(key);
        let last = i + 1 == path.len();
        value = child(value, key, &dotted)?;
        if last && value.as_object().is_some_and(Map::is_empty) {
            *value = Value::Array(Vec::new());
        }
    }
    let found = crate::json_type(value);
    value.as_array_mut().ok_or(EditError::Type { path: dotted, found, expected: "a list" })
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        reason = "test code fails by panicking"
    )]
    use proptest::prelude::*;

    use super::*;

    fn edited(mut spec: Value, edits: &[Edit]) -> Value {
        apply(&mut spec, edits).unwrap();
        spec
    }

    fn all_edits() -> Vec<Edit> {
        vec![
            Edit::Env { drop: vec!["A".into()], set: vec![("B".into(), "2".into())] },
            Edit::RemoveMount { destination: "/gone".into() },
            Edit::Bind {
                source: "/s".into(),
                destination: "/d".into(),
                options: vec!["bind".into(), "ro".into()],
            },
            Edit::RemoveDevice { major: 195, minor: 1 },
            Edit::RemoveRules { major: 195, minor: None },
            Edit::CloseAllowAll { except: vec![195] },
            Edit::AddDevice { path: "/dev/nvidia0".into(), major: 195, minor: 0, uid: 0 },
            Edit::AddHook {
                stage: HookStage::CreateRuntime,
                path: "/h".into(),
                args: vec!["h".into(), "i".into()],
                env: vec!["PATH=/usr/bin".into()],
                timeout_s: Some(10),
            },
            Edit::AddGids(vec![44]),
            Edit::RemoveHooks { path: "/other".into() },
            Edit::RemoveAnnotation { name: "cdi.k8s.io/x".into() },
        ]
    }

    #[test]
    fn an_empty_spec_gets_every_part_that_an_edit_needs() {
        let spec = edited(json!({}), &all_edits());
        assert_eq!(
            spec,
            json!({
                "process": {"env": ["B=2"], "user": {"additionalGids": [44]}},
                "mounts": [{"destination": "/d", "type": "bind", "source": "/s", "options": ["bind", "ro"]}],
                "linux": {
                    "devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 438, "uid": 0, "gid": 0}],
                    "resources": {"devices": [{"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"}]}
                },
                "hooks": {"createRuntime": [{"path": "/h", "args": ["h", "i"], "env": ["PATH=/usr/bin"], "timeout": 10}]}
            })
        );
    }

    #[test]
    fn nodes_go_by_number_whatever_their_path() {
        let spec = json!({"linux": {"devices": [
            {"path": "/dev/harmless", "type": "c", "major": 195, "minor": 1},
            {"path": "/dev/block", "type": "b", "major": 195, "minor": 1},
            {"path": "/dev/null", "type": "c", "major": 1, "minor": 3},
            {"unknown": true}
        ]}});
        let left = edited(spec, &[Edit::RemoveDevice { major: 195, minor: 1 }]);
        assert_eq!(left["linux"]["devices"].as_array().unwrap().len(), 3);
        assert_eq!(left["linux"]["devices"][0]["path"], "/dev/block");
    }

    #[test]
    fn allow_all_is_enumerated_without_nvidias_majors() {
        let spec = json!({"linux": {"resources": {"devices": [
            {"allow": false, "access": "rwm"}, {"allow": true, "access": "rwm"}
        ]}}});
        let closed = edited(spec, &[Edit::CloseAllowAll { except: vec![195, 507] }]);
        let view = crate::spec::View::new(&closed);
        assert_eq!(view.device_rules().count(), 1 + 510 + 1);
        assert!(view.rules_open(1, Some(3)) && view.rules_open(511, Some(0)));
        assert!(!view.rules_open(195, Some(0)) && !view.rules_open(507, Some(0)));
        assert!(!view.device_rules().any(|r| r.allow && r.major.is_none() && r.kind != "b"));
    }

    #[test]
    fn rules_for_a_major_go_and_mknod_stays() {
        let spec = json!({"linux": {"resources": {"devices": [
            {"allow": true, "type": "c", "access": "m"},
            {"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rw"},
            {"allow": true, "type": "c", "major": 195, "access": "m"},
            {"allow": false, "type": "c", "major": 195, "access": "rwm"}
        ]}}});
        let left = edited(spec, &[Edit::RemoveRules { major: 195, minor: None }]);
        assert_eq!(left["linux"]["resources"]["devices"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn rules_for_one_device_go_and_its_neighbours_stay() {
        let rule = |minor: Value| json!({"allow": true, "type": "c", "major": 226, "minor": minor, "access": "rw"});
        let rules = [rule(json!(128)), rule(json!(129)), rule(json!(null))];
        let spec = json!({"linux": {"resources": {"devices": rules}}});
        let left = edited(spec, &[Edit::RemoveRules { major: 226, minor: Some(128) }]);
        assert_eq!(left["linux"]["resources"]["devices"], json!([rule(json!(129))]));
    }

    #[test]
    fn a_place_that_is_taken_by_another_type_is_an_error() {
        for (spec, text) in [
            (json!({"mounts": "x"}), "mounts is text, not a list"),
            (json!({"linux": 3}), "linux is a number, not an object"),
            (
                json!({"linux": {"resources": {"devices": true}}}),
                "linux.resources.devices is true or false, not a list",
            ),
            (json!({"process": []}), "process is a list, not an object"),
        ] {
            let error = apply(&mut spec.clone(), &all_edits()).unwrap_err();
            assert!(
                error.to_string().contains(text.split(" is ").next().unwrap()),
                "{error} / {text}"
            );
        }
    }

    proptest! {
        #[test]
        fn unknown_fields_survive_and_twice_equals_once(
            extra in "[a-z]{1,8}", value in ".{0,8}", nested in any::<u64>(), env in prop::collection::vec("[A-C]=?[a-z]{0,3}", 0..5)
        ) {
            let spec = json!({
                "ociVersion": "1.9", extra.clone(): {"k": value.clone()},
                "process": {"env": env, "x": nested, "noNewThing": [extra.clone()]},
                "linux": {"namespaces": [{"type": "future"}], "y": {extra.clone(): nested},
                          "resources": {"devices": [{"allow": true, "z": value}]}},
            });
            let once = edited(spec.clone(), &all_edits());
            prop_assert_eq!(once.clone(), edited(once.clone(), &all_edits()));
            if !["process", "linux", "mounts", "hooks"].contains(&extra.as_str()) {
                prop_assert_eq!(&once[&extra], &spec[&extra]);
            }
            prop_assert_eq!(&once["process"]["x"], &spec["process"]["x"]);
            prop_assert_eq!(&once["process"]["noNewThing"], &spec["process"]["noNewThing"]);
            prop_assert_eq!(&once["linux"]["y"], &spec["linux"]["y"]);
            prop_assert_eq!(&once["linux"]["namespaces"], &spec["linux"]["namespaces"]);
            let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            let (before, after) = (keys(&spec), keys(&once));
            prop_assert_eq!(&before[..], &after[..before.len()], "the order of keys");
        }
    }
}
