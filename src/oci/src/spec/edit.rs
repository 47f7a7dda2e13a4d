//! Typed edits of a spec. Each is idempotent: applied twice it changes nothing more.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

mod device_edits;
mod lists;
#[cfg(test)]
mod tests;

pub use device_edits::REPLACED_MAX;
use lists::{child, list, put, retain, text};

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
    /// Mounts the procfs of the container's own PID namespace. A mount at the same destination is
    /// replaced.
    Proc {
        /// Path inside the container.
        destination: String,
    },
    /// Gives the container a PID namespace of its own and replaces any entry that the document has.
    OwnPids,
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
    /// Removes every rule that allows reading or writing devices of a major, except rules for all
    /// majors.
    RemoveRules {
        /// Major number.
        major: u32,
        /// Only rules that open this one, alone or with others; `None` for every rule of the major.
        minor: Option<u32>,
    },
    /// Replaces every rule that opens character devices without naming their major by a list of the
    /// other majors, each rule in its place and with its minor and its letters. If there are more
    /// than [`REPLACED_MAX`] of them, all stay as they are: the list would outgrow the
    /// document.
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
    /// Puts a list in front of all rules that denies everything and then opens all devices except
    /// those of some majors. This is for a runtime that leaves devices open which no rule names:
    /// containers that had those keep them. Does nothing if the first rule denies everything.
    OpenAllBut {
        /// Character majors that stay closed.
        except: Vec<u32>,
    },
    /// Adds supplementary groups of the container's process.
    AddGids(Vec<u32>),
    /// Removes every hook of a program.
    RemoveHooks {
        /// Its path.
        path: String,
    },
    /// Changes an annotation that is there.
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
    /// Another type is where an object or list must be.
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
    Env(#[from] crate::process_edit::ProcessError),
}

/// Makes the edits, in their order within each part of the document. Parts do not depend on each
/// other, so each is walked for its own edits alone, and a run of edits of one kind is made at
/// once: a large document with as many edits takes one pass, not one for each.
///
/// # Errors
/// If the document has another type at a place that an edit needs.
pub fn apply(document: &mut Value, edits: &[Edit]) -> Result<(), EditError> {
    let mut done = Vec::new();
    for part in edits.iter().map(Part::of) {
        if done.contains(&part) {
            continue;
        }
        match part {
            Part::Variables => variables(document, edits)?,
            Part::Annotations => annotations(document, edits),
            Part::Mounts => mounts(document, edits)?,
            Part::Pids => own_pids(list(document, &["linux", "namespaces"])?),
            Part::Devices => device_edits::apply(document, edits)?,
            Part::Hooks => hooks(document, edits)?,
            Part::Groups => groups(document, edits)?,
        }
        done.push(part);
    }
    Ok(())
}

/// A part of the document. Edits of one part read nothing that edits of another part change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Variables,
    Annotations,
    Mounts,
    Pids,
    Devices,
    Hooks,
    Groups,
}

impl Part {
    fn of(edit: &Edit) -> Self {
        match edit {
            Edit::Env { .. } => Self::Variables,
            Edit::Bind { .. } | Edit::Proc { .. } | Edit::RemoveMount { .. } => Self::Mounts,
            Edit::OwnPids => Self::Pids,
            Edit::AddDevice { .. }
            | Edit::RemoveDevice { .. }
            | Edit::RemoveRules { .. }
            | Edit::CloseAllowAll { .. }
            | Edit::OpenAllBut { .. } => Self::Devices,
            Edit::AddHook { .. } | Edit::RemoveHooks { .. } => Self::Hooks,
            Edit::AddGids(_) => Self::Groups,
            Edit::SetAnnotation { .. } | Edit::RemoveAnnotation { .. } => Self::Annotations,
        }
    }
}

fn variables(document: &mut Value, edits: &[Edit]) -> Result<(), EditError> {
    let mut gone: HashSet<&str> = HashSet::new();
    let mut set: Vec<&(String, String)> = Vec::new();
    // By name: the index in `set`. The last setting counts, and none before a drop.
    let mut last: HashMap<&str, usize> = HashMap::new();
    for edit in edits {
        let Edit::Env { drop, set: new } = edit else { continue };
        for name in drop {
            gone.insert(name);
            last.remove(name.as_str());
        }
        for pair in new {
            gone.insert(&pair.0);
            last.insert(&pair.0, set.len());
            set.push(pair);
        }
    }
    let counts = |(at, pair): (usize, &(String, String))| {
        (last.get(pair.0.as_str()) == Some(&at)).then(|| pair.clone())
    };
    let set: Vec<(String, String)> = (0..).zip(set).filter_map(counts).collect();
    let gone: Vec<&str> = gone.into_iter().collect();
    crate::process_edit::rewrite_env(child(document, "process", "process")?, &gone, &set)?;
    Ok(())
}

fn annotations(document: &mut Value, edits: &[Edit]) {
    // `None` removes. A removed annotation stays removed, because only existing ones are changed.
    let mut changes: HashMap<&str, Option<&str>> = HashMap::new();
    for edit in edits {
        match edit {
            Edit::RemoveAnnotation { name } => {
                changes.insert(name, None);
            }
            Edit::SetAnnotation { name, value } => {
                let change = changes.entry(name).or_insert(Some(value));
                *change = change.and(Some(value));
            }
            _ => {}
        }
    }
    let Some(all) = document.get_mut("annotations").and_then(Value::as_object_mut) else { return };
    all.retain(|name, value| match changes.get(name.as_str()) {
        None => true,
        Some(None) => false,
        Some(Some(new)) => {
            *value = json!(new);
            true
        }
    });
}

fn mounts(document: &mut Value, edits: &[Edit]) -> Result<(), EditError> {
    let mut rest = edits.iter().peekable();
    while let Some(edit) = rest.next() {
        match edit {
            Edit::RemoveMount { destination } => {
                let mut gone = HashSet::from([destination.as_str()]);
                while let Some(Edit::RemoveMount { destination }) = rest.peek() {
                    gone.insert(destination);
                    rest.next();
                }
                retain(document, &["mounts"], |m| {
                    text(m, "destination").is_none_or(|found| !gone.contains(found))
                });
            }
            Edit::Bind { .. } => {
                let mut binds = Vec::new();
                let mut next = Some(edit);
                while let Some(Edit::Bind { source, destination, options }) = next {
                    let mount = json!({
                        "destination": destination, "type": "bind", "source": source,
                        "options": options
                    });
                    binds.push((destination.as_str(), mount));
                    next = rest.next_if(|edit| matches!(edit, Edit::Bind { .. }));
                }
                put(list(document, &["mounts"])?, "destination", binds);
            }
            Edit::Proc { destination } => {
                // As every engine writes it.
                let mount = json!({
                    "destination": destination, "type": "proc", "source": "proc",
                    "options": ["nosuid", "noexec", "nodev"]
                });
                let at = destination.as_str();
                put(list(document, &["mounts"])?, "destination", vec![(at, mount)]);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Runtimes refuse two entries of a type, and read an entry without a path as a new namespace.
fn own_pids(namespaces: &mut Vec<Value>) {
    let is_pids = |entry: &Value| text(entry, "type") == Some("pid");
    let at = namespaces.iter().position(is_pids).unwrap_or(namespaces.len());
    namespaces.retain(|entry| !is_pids(entry));
    namespaces.insert(at, json!({ "type": "pid" }));
}

fn hooks(document: &mut Value, edits: &[Edit]) -> Result<(), EditError> {
    for edit in edits {
        match edit {
            Edit::AddHook { stage, path, args, env, timeout_s } => {
                let mut hook = json!({ "path": path, "args": args, "env": env });
                if let (Some(seconds), Some(hook)) = (timeout_s, hook.as_object_mut()) {
                    hook.insert("timeout".to_owned(), json!(seconds));
                }
                let args = json!(args);
                let hooks = list(document, &["hooks", stage.as_str()])?;
                let is_it =
                    |h: &Value| text(h, "path") == Some(path) && h.get("args") == Some(&args);
                let mut new = Some(hook);
                hooks.retain_mut(|old| !is_it(old) || new.take().map(|new| *old = new).is_some());
                hooks.extend(new);
            }
            Edit::RemoveHooks { path } => {
                if let Some(stages) = document.get_mut("hooks").and_then(Value::as_object_mut) {
                    for stage in stages.values_mut().filter_map(Value::as_array_mut) {
                        stage.retain(|hook| text(hook, "path") != Some(path));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn groups(document: &mut Value, edits: &[Edit]) -> Result<(), EditError> {
    let wanted = edits.iter().filter_map(|edit| match edit {
        Edit::AddGids(gids) => Some(gids),
        _ => None,
    });
    for gids in wanted {
        let list = list(document, &["process", "user", "additionalGids"])?;
        for gid in gids.iter().map(|gid| json!(gid)) {
            if !list.contains(&gid) {
                list.push(gid);
            }
        }
    }
    Ok(())
}
