//! The parts of a spec that a decision reads. A part that is missing, null or of another type is
//! absent, because the runtime below will evaluate it and a decision must not fail on it.

use serde_json::{Map, Value};

use super::capability::capability;
use super::device::{Device, DeviceRule, device, device_rule};
use super::mount_entry::{MountEntry, Shows};

/// A read-only look at a parsed `config.json`.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    root: &'a Value,
}

/// One entry of `mounts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mount<'a> {
    /// Path inside the container.
    pub destination: &'a str,
    /// Host path of a bind mount.
    pub source: &'a str,
    /// What the mount shows of the host.
    pub shows: Shows,
}

impl Mount<'_> {
    /// Whether the mount shows its source.
    #[must_use]
    pub fn is_bind(&self) -> bool {
        self.shows == Shows::Source
    }
}

/// One hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook<'a> {
    /// `prestart`, `createRuntime`, …
    pub stage: &'a str,
    /// Program.
    pub path: &'a str,
    args: Option<&'a Value>,
}

impl Hook<'_> {
    /// Its arguments with `argv[0]`; `None` if one of them is not text.
    #[must_use]
    pub fn arguments(&self) -> Option<Vec<&str>> {
        self.args?.as_array()?.iter().map(Value::as_str).collect()
    }
}

/// A range of ids of a user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// First id inside.
    pub inside: u32,
    /// First id outside.
    pub outside: u32,
    /// How many ids.
    pub size: u32,
}

impl IdRange {
    /// The id outside for one inside; `None` if it is not in this range.
    #[must_use]
    pub fn outside_of(&self, inside: u32) -> Option<u32> {
        let offset = inside.checked_sub(self.inside).filter(|offset| *offset < self.size)?;
        self.outside.checked_add(offset)
    }

    /// The id inside for one outside; `None` if it is not in this range.
    #[must_use]
    pub fn inside_of(&self, outside: u32) -> Option<u32> {
        let offset = outside.checked_sub(self.outside).filter(|offset| *offset < self.size)?;
        self.inside.checked_add(offset)
    }
}

/// A namespace of the container as the spec asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace<'a> {
    /// No entry: the caller's own.
    Callers,
    /// An entry without a path: a new one.
    New,
    /// An entry with a path: the one there.
    At(&'a str),
}

impl Namespace<'_> {
    /// Whether it is the caller's own namespace; `at` decides for a namespace at a path.
    #[must_use]
    pub fn is_callers(self, at: impl FnOnce(&str) -> bool) -> bool {
        match self {
            Self::Callers => true,
            Self::New => false,
            Self::At(path) => at(path),
        }
    }
}

impl<'a> View<'a> {
    /// Looks at a parsed document.
    #[must_use]
    pub fn new(root: &'a Value) -> Self {
        Self { root }
    }

    fn at(self, path: &[&str]) -> Option<&'a Value> {
        path.iter().try_fold(self.root, |value, key| value.get(key))
    }

    fn list(self, path: &[&str]) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.at(path).and_then(Value::as_array).into_iter().flatten()
    }

    /// The annotations. A value that is not text counts as empty.
    pub fn annotations(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let object: Option<&Map<String, Value>> =
            self.at(&["annotations"]).and_then(Value::as_object);
        object.into_iter().flatten().map(|(k, v)| (k.as_str(), v.as_str().unwrap_or_default()))
    }

    /// One annotation.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<&'a str> {
        self.at(&["annotations"])?.get(name)?.as_str()
    }

    /// `process.env` as pairs, in order; an entry without `=` has an empty value.
    pub fn env(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.list(&["process", "env"])
            .filter_map(Value::as_str)
            .map(|entry| entry.split_once('=').unwrap_or((entry, "")))
    }

    /// One variable; of duplicates the last wins, as in runc and the NVIDIA toolkit.
    #[must_use]
    pub fn env_value(&self, name: &str) -> Option<&'a str> {
        let entries = self.at(&["process", "env"]).and_then(Value::as_array)?;
        entries.iter().rev().find_map(|entry| match entry.as_str()?.strip_prefix(name)? {
            "" => Some(""),
            rest => rest.strip_prefix('='),
        })
    }

    /// `linux.devices`.
    pub fn devices(&self) -> impl Iterator<Item = Device<'a>> + use<'a> {
        self.list(&["linux", "devices"]).filter_map(device)
    }

    /// `linux.resources.devices`, in order.
    pub fn device_rules(&self) -> impl Iterator<Item = DeviceRule<'a>> + use<'a> {
        self.list(&["linux", "resources", "devices"]).filter_map(device_rule)
    }

    /// `mounts`.
    pub fn mounts(&self) -> impl Iterator<Item = Mount<'a>> + use<'a> {
        self.mount_entries().map(|entry| Mount {
            destination: entry.destination,
            source: entry.source,
            shows: entry.shows(),
        })
    }

    /// `mounts`, with all of their options.
    pub fn mount_entries(&self) -> impl Iterator<Item = MountEntry<'a>> + use<'a> {
        self.list(&["mounts"]).map(MountEntry::of)
    }

    /// The root file system, as the bind that runtimes make of it.
    #[must_use]
    pub fn root(&self) -> Option<MountEntry<'a>> {
        MountEntry::of_root(self.at(&["root"])?)
    }

    /// Destinations of mounts of one kind of file system.
    pub fn mounts_of(self, kind: &str) -> impl Iterator<Item = &'a str> {
        let of_kind = move |mount: &&Value| mount.get("type").and_then(Value::as_str) == Some(kind);
        let destination = |mount: &'a Value| mount.get("destination").and_then(Value::as_str);
        self.list(&["mounts"]).filter(of_kind).filter_map(destination)
    }

    /// All hooks.
    pub fn hooks(&self) -> impl Iterator<Item = Hook<'a>> + use<'a> {
        let stages = self.at(&["hooks"]).and_then(Value::as_object).into_iter().flatten();
        stages.flat_map(|(stage, list)| {
            list.as_array().into_iter().flatten().filter_map(move |hook| {
                let path = hook.get("path")?.as_str()?;
                Some(Hook { stage, path, args: hook.get("args") })
            })
        })
    }

    /// Whether a process of the container may get a capability: by its bounding set, or by its
    /// inheritable or ambient one (capabilities(7), "Transformation of capabilities during
    /// execve").
    #[must_use]
    pub fn may_gain(&self, name: &str) -> bool {
        self.capabilities().any(|text| capability(text) == Some(name))
    }

    /// Every capability that a process of the container may get, as it is written.
    pub fn capabilities(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let view = *self;
        let sets = ["bounding", "inheritable", "ambient"].into_iter();
        sets.flat_map(move |set| view.list(&["process", "capabilities", set]))
            .filter_map(Value::as_str)
    }

    /// `linux.maskedPaths` and `linux.readonlyPaths`: paths that runtimes cover or make read-only
    /// after all mounts.
    pub fn closed_paths(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let view = *self;
        let lists = ["maskedPaths", "readonlyPaths"].into_iter();
        lists.flat_map(move |list| view.list(&["linux", list])).filter_map(Value::as_str)
    }

    /// The IPC namespace.
    #[must_use]
    pub fn ipc_namespace(&self) -> Namespace<'a> {
        self.namespace("ipc")
    }

    /// The user namespace.
    #[must_use]
    pub fn user_namespace(&self) -> Namespace<'a> {
        self.namespace("user")
    }

    /// The PID namespace.
    #[must_use]
    pub fn pid_namespace(&self) -> Namespace<'a> {
        self.namespace("pid")
    }

    /// The cgroup namespace.
    #[must_use]
    pub fn cgroup_namespace(&self) -> Namespace<'a> {
        self.namespace("cgroup")
    }

    /// runc refuses several entries of a kind; crun joins those with a path, the last one last.
    fn namespace(self, kind: &str) -> Namespace<'a> {
        let entries = self.list(&["linux", "namespaces"]);
        let entries = entries.filter(|n| n.get("type").and_then(Value::as_str) == Some(kind));
        let paths = entries.map(|n| n.get("path").and_then(Value::as_str).unwrap_or_default());
        paths.fold(Namespace::Callers, |before, path| match (before, path) {
            (Namespace::At(path), "") => Namespace::At(path),
            (_, "") => Namespace::New,
            (_, path) => Namespace::At(path),
        })
    }

    /// `process.user.uid`, zero where it is absent.
    #[must_use]
    pub fn uid(&self) -> u32 {
        let uid = self.at(&["process", "user", "uid"]).and_then(Value::as_u64);
        uid.and_then(|uid| u32::try_from(uid).ok()).unwrap_or_default()
    }

    /// `linux.cgroupsPath`.
    #[must_use]
    pub fn cgroup_path(&self) -> Option<&'a str> {
        self.at(&["linux", "cgroupsPath"])?.as_str()
    }

    /// `linux.uidMappings`; they count where there is a user namespace.
    pub fn uid_mappings(&self) -> impl Iterator<Item = IdRange> + use<'a> {
        self.list(&["linux", "uidMappings"]).filter_map(|mapping| {
            Some(IdRange {
                inside: number(mapping.get("containerID"))?,
                outside: number(mapping.get("hostID"))?,
                size: number(mapping.get("size"))?,
            })
        })
    }
}

fn number(value: Option<&Value>) -> Option<u32> {
    value.and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_spec_of_nulls_shows_nothing() {
        for spec in [
            json!({}),
            json!({"process": null, "linux": null, "mounts": null, "annotations": null, "hooks": null}),
            json!({"process": {"env": null, "user": 3}, "linux": [], "mounts": {}, "hooks": []}),
        ] {
            let view = View::new(&spec);
            assert_eq!(view.env().count() + view.devices().count() + view.mounts().count(), 0);
            assert_eq!(view.annotations().count() + view.hooks().count(), 0);
            assert_eq!(view.ipc_namespace(), Namespace::Callers);
            assert_eq!((view.uid(), view.uid_mappings().count()), (0, 0));
        }
    }

    #[test]
    fn a_namespace_is_the_callers_without_an_entry_or_under_another_name() {
        for (namespace, asked, is) in [
            (Namespace::Callers, false, true),
            (Namespace::New, true, false),
            (Namespace::At("/n"), true, true),
            (Namespace::At("/n"), false, false),
        ] {
            assert_eq!(namespace.is_callers(|path| path == "/n" && asked), is, "{namespace:?}");
        }
    }

    #[test]
    fn the_last_duplicate_variable_wins() {
        let spec = json!({"process": {"env": ["A=1", "B", "A=2=3", 4]}});
        assert_eq!(View::new(&spec).env_value("A"), Some("2=3"));
        assert_eq!(View::new(&spec).env_value("B"), Some(""));
        assert_eq!(View::new(&spec).env_value("C"), None);
    }

    #[test]
    fn a_range_maps_what_lies_in_it() {
        let spec = json!({"linux": {"uidMappings": [
            {"containerID": 0, "hostID": 100_000, "size": 1000},
            {"containerID": 1000, "hostID": 1000},
            {"containerID": 5, "hostID": u32::MAX, "size": 2}
        ]}});
        let ranges: Vec<IdRange> = View::new(&spec).uid_mappings().collect();
        let [first, last] = ranges[..] else { panic!("{ranges:?}") };
        assert_eq!(first.outside_of(0), Some(100_000));
        assert_eq!(first.outside_of(999), Some(100_999));
        assert_eq!(first.outside_of(1000), None);
        assert_eq!((first.inside_of(100_999), first.inside_of(0)), (Some(999), None));
        assert_eq!((last.outside_of(4), last.outside_of(5)), (None, Some(u32::MAX)));
        assert_eq!(last.outside_of(6), None, "beyond the last id");
    }
}
