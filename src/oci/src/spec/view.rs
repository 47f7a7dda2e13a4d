//! What a decision reads of a spec. Lenient: a part that is missing, null or of another type is
//! absent, because the runtime below will evaluate it and a decision must not fail on it.

use serde_json::{Map, Value};

use super::MountEntry;
use super::open::OpenDevices;

/// A read-only look at a parsed `config.json`.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    root: &'a Value,
}

/// One entry of `linux.devices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device<'a> {
    /// Path inside the container.
    pub path: &'a str,
    /// `c`, `u`, `b` or `p`.
    pub kind: &'a str,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Device<'_> {
    /// A character device: runc knows two letters for it, crun takes whatever begins with neither
    /// `b` nor `p`.
    #[must_use]
    pub fn is_character(&self) -> bool {
        !self.kind.starts_with(['b', 'p'])
    }
}

/// One entry of `linux.resources.devices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRule<'a> {
    /// Allow or deny.
    pub allow: bool,
    /// `a`, `b`, `c`; absent means all.
    pub kind: &'a str,
    /// Absent or negative means all.
    pub major: Option<u32>,
    /// Absent or negative means all.
    pub minor: Option<u32>,
    /// Any of `r`, `w`, `m`; absent means all.
    pub access: &'a str,
}

impl DeviceRule<'_> {
    /// Whether the rule is about reading or writing this character device. A rule of type `a` is
    /// about every device, whatever else it says: runc and the kernel's cgroup v1 read no further.
    #[must_use]
    pub fn covers(&self, major: u32, minor: Option<u32>) -> bool {
        self.is_for_all()
            || (self.is_for_characters()
                && self.major.is_none_or(|m| m == major)
                && (minor.is_none() || self.minor.is_none() || self.minor == minor)
                && self.reads_or_writes())
    }

    /// Of type `a`.
    pub(super) fn is_for_all(&self) -> bool {
        self.kind.is_empty() || self.kind.starts_with('a')
    }

    pub(super) fn is_for_characters(&self) -> bool {
        !self.kind.starts_with('b')
    }

    /// Making a node alone (`m`) gives no access.
    fn reads_or_writes(&self) -> bool {
        self.reads() || self.writes()
    }

    pub(super) fn reads(&self) -> bool {
        self.access.is_empty() || self.access.contains('r')
    }

    pub(super) fn writes(&self) -> bool {
        self.access.is_empty() || self.access.contains('w')
    }

    /// The rule of a privileged container: every device.
    #[must_use]
    pub fn allows_all(&self) -> bool {
        self.allow && self.is_for_all() && self.has_no_numbers() && self.reads_or_writes()
    }

    pub(super) fn has_no_numbers(&self) -> bool {
        self.major.is_none() && self.minor.is_none()
    }
}

impl DeviceRule<'_> {
    /// Whether it opens character devices whose major it does not name. For runc a rule of the type
    /// `a` is one for all devices, whatever numbers and letters it has.
    #[must_use]
    pub fn opens_every_major(&self) -> bool {
        let of_characters =
            self.is_for_characters() && self.major.is_none() && self.reads_or_writes();
        self.allow && (self.is_for_all() || of_characters)
    }

    /// The rule with which engines begin: no device.
    #[must_use]
    pub fn denies_all(&self) -> bool {
        !self.allow && self.is_for_all() && self.has_no_numbers() && self.reads() && self.writes()
    }
}

/// One entry of `mounts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mount<'a> {
    /// Path inside the container.
    pub destination: &'a str,
    /// Host path of a bind mount.
    pub source: &'a str,
    /// `bind`, or by its options.
    pub is_bind: bool,
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
    /// Its arguments with `argv[0]`; `None` where one of them is no text.
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
    /// How many.
    pub size: u32,
}

impl IdRange {
    /// The id outside of one inside; `None` where it is not of this range.
    #[must_use]
    pub fn outside_of(&self, inside: u32) -> Option<u32> {
        let offset = inside.checked_sub(self.inside).filter(|offset| *offset < self.size)?;
        self.outside.checked_add(offset)
    }

    /// The id inside of one outside; `None` where it is not of this range.
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
    /// Whether it is the caller's own; `at` says so of the one at a path.
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

    /// Annotations; a value that is no text counts as empty.
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

    /// Whether the rules, taken in order, let the container read or write a character device. A
    /// minor of `None` asks for any device of the major.
    ///
    /// True where any runtime comes to it: see [`OpenDevices`].
    #[must_use]
    pub fn rules_open(&self, major: u32, minor: Option<u32>) -> bool {
        let open = OpenDevices::of(*self, [major], false);
        minor.map_or_else(|| open.is_any_open(major, |_| true), |minor| open.is_open(major, minor))
    }

    /// `mounts`.
    pub fn mounts(&self) -> impl Iterator<Item = Mount<'a>> + use<'a> {
        self.list(&["mounts"]).map(|mount| {
            let text = |key| mount.get(key).and_then(Value::as_str).unwrap_or_default();
            let options = mount.get("options").and_then(Value::as_array).into_iter().flatten();
            let bind = options.filter_map(Value::as_str).any(|o| matches!(o, "bind" | "rbind"));
            Mount {
                destination: text("destination"),
                source: text("source"),
                is_bind: bind || text("type") == "bind",
            }
        })
    }

    /// `mounts`, with all that their options say.
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

    /// Whether a process of the container may come to a capability: by its bounding set, or by its
    /// inheritable or ambient one (capabilities(7), "Transformation of capabilities during
    /// execve").
    #[must_use]
    pub fn may_gain(&self, capability: &str) -> bool {
        ["bounding", "inheritable", "ambient"]
            .into_iter()
            .flat_map(|set| self.list(&["process", "capabilities", set]))
            .any(|c| c.as_str().is_some_and(|c| c.eq_ignore_ascii_case(capability)))
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

    fn namespace(self, kind: &str) -> Namespace<'a> {
        let entry = self
            .list(&["linux", "namespaces"])
            .find(|n| n.get("type").and_then(Value::as_str) == Some(kind));
        match entry.map(|e| e.get("path").and_then(Value::as_str).unwrap_or_default()) {
            None => Namespace::Callers,
            Some("") => Namespace::New,
            Some(path) => Namespace::At(path),
        }
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

/// Reads one entry of `linux.devices`; `None` where it is none.
pub(super) fn device(value: &Value) -> Option<Device<'_>> {
    let number = |key| Number::of(value.get(key));
    let (path, kind) = (value.get("path")?.as_str()?, value.get("type")?.as_str()?);
    Some(device_of(path, kind, number("major"), number("minor")))
}

/// Reads one entry of `linux.resources.devices`; `None` where it is none.
pub(super) fn device_rule(value: &Value) -> Option<DeviceRule<'_>> {
    let text = |key| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let numbers = (Number::of(value.get("major")), Number::of(value.get("minor")));
    rule_of(value.get("allow")?.as_bool()?, text("type"), numbers, text("access"))
}

/// A device as the kernel makes its node: of the numbers that a runtime is given (64 bits with a
/// sign), those bits are left that fit a 32-bit `dev_t`. One that is missing is zero.
pub(super) fn device_of<'a>(
    path: &'a str,
    kind: &'a str,
    major: Number,
    minor: Number,
) -> Device<'a> {
    let bits = |number, bits| match number {
        Number::Is(n) => u32::try_from(n & bits).unwrap_or_default(),
        Number::Absent | Number::Odd => 0,
    };
    Device { path, kind, major: bits(major, 0xfff), minor: bits(minor, 0xf_ffff) }
}

/// A rule of these fields. A number that no device has stands for all where the rule allows; where
/// it denies, the rule counts for nothing.
pub(super) fn rule_of<'a>(
    allow: bool,
    kind: &'a str,
    (major, minor): (Number, Number),
    access: &'a str,
) -> Option<DeviceRule<'a>> {
    let all_or = |number| match number {
        Number::Absent => Some(None),
        Number::Is(n) if n < 0 => Some(None),
        Number::Is(n) if u32::try_from(n).is_ok() => Some(u32::try_from(n).ok()),
        Number::Is(_) | Number::Odd => allow.then_some(None),
    };
    Some(DeviceRule { allow, kind, major: all_or(major)?, minor: all_or(minor)?, access })
}

/// A number of a device or rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Number {
    #[default]
    Absent,
    Is(i64),
    /// Another type, a fraction, or beyond 64 bits.
    Odd,
}

impl Number {
    fn of(value: Option<&Value>) -> Self {
        match value {
            None | Some(Value::Null) => Self::Absent,
            Some(value) => value.as_i64().map_or(Self::Odd, Self::Is),
        }
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
    fn rules_are_taken_in_order() {
        let spec = |rules: Value| json!({"linux": {"resources": {"devices": rules}}});
        let open = |rules| View::new(&spec(rules)).rules_open(195, Some(0));
        assert!(!open(json!([{"allow": false, "access": "rwm"}])));
        assert!(open(json!([{"allow": false}, {"allow": true, "access": "rwm"}])));
        assert!(!open(json!([{"allow": true}, {"allow": false, "type": "c", "major": 195}])));
        assert!(
            !open(json!([{"allow": true, "type": "c", "access": "m"}])),
            "mknod alone opens nothing"
        );
        assert!(open(json!([{"allow": true, "type": "c", "major": 195, "access": "r"}])));
        assert!(open(
            json!([{"allow": true, "type": "c", "major": -1, "minor": -1, "access": "rw"}])
        ));
        assert!(!open(
            json!([{"allow": true, "type": "c", "major": 195, "minor": 1, "access": "rw"}])
        ));
        assert!(!open(json!([{"allow": true, "type": "b", "access": "rw"}])));
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
