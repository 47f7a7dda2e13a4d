//! The keys at each place of a `config.json`, and the spellings that a runtime accepts for them.
//!
//! runc reads with Go's encoding/json, which accepts a key in any case, and `ſ` for `s` and the
//! Kelvin sign for `k` as well. crun's parser passes on C strings, which end at a NUL. Keys of maps
//! (annotations, sysctl) are data, and the NUL is their only other spelling.

/// A place in a document whose keys are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Root,
    Annotations,
    RootFs,
    Process,
    Env,
    User,
    Capabilities,
    Linux,
    /// Paths that runtimes cover or make read-only.
    Closed,
    Seccomp,
    Resources,
    Devices,
    Device,
    Rules,
    Rule,
    Mounts,
    Mount,
    Namespaces,
    Namespace,
    Mappings,
    Mapping,
    Hooks,
    HookList,
    Hook,
    /// A place that nothing here reads.
    Elsewhere,
}

use Place as P;

const ROOT: &[(&str, Place)] = &[
    ("ociVersion", P::Elsewhere),
    ("process", P::Process),
    ("root", P::RootFs),
    ("hostname", P::Elsewhere),
    ("domainname", P::Elsewhere),
    ("mounts", P::Mounts),
    ("hooks", P::Hooks),
    ("annotations", P::Annotations),
    ("linux", P::Linux),
];
const ROOT_FS: &[(&str, Place)] = &[("path", P::Elsewhere), ("readonly", P::Elsewhere)];
const PROCESS: &[(&str, Place)] = &[
    ("terminal", P::Elsewhere),
    ("user", P::User),
    ("args", P::Elsewhere),
    ("env", P::Env),
    ("cwd", P::Elsewhere),
    ("capabilities", P::Capabilities),
    ("rlimits", P::Elsewhere),
    ("noNewPrivileges", P::Elsewhere),
    ("apparmorProfile", P::Elsewhere),
    ("selinuxLabel", P::Elsewhere),
];
const USER: &[(&str, Place)] =
    &[("uid", P::Elsewhere), ("gid", P::Elsewhere), ("additionalGids", P::Elsewhere)];
const CAPABILITIES: &[(&str, Place)] = &[
    ("bounding", P::Elsewhere),
    ("effective", P::Elsewhere),
    ("inheritable", P::Elsewhere),
    ("permitted", P::Elsewhere),
    ("ambient", P::Elsewhere),
];
const LINUX: &[(&str, Place)] = &[
    ("uidMappings", P::Mappings),
    ("gidMappings", P::Mappings),
    ("sysctl", P::Elsewhere),
    ("resources", P::Resources),
    ("cgroupsPath", P::Elsewhere),
    ("namespaces", P::Namespaces),
    ("devices", P::Devices),
    ("seccomp", P::Seccomp),
    ("rootfsPropagation", P::Elsewhere),
    ("maskedPaths", P::Closed),
    ("readonlyPaths", P::Closed),
    ("mountLabel", P::Elsewhere),
];
const RESOURCES: &[(&str, Place)] = &[
    ("devices", P::Rules),
    ("memory", P::Elsewhere),
    ("cpu", P::Elsewhere),
    ("pids", P::Elsewhere),
    ("unified", P::Elsewhere),
];
const DEVICE: &[(&str, Place)] = &[
    ("path", P::Elsewhere),
    ("type", P::Elsewhere),
    ("major", P::Elsewhere),
    ("minor", P::Elsewhere),
    ("fileMode", P::Elsewhere),
    ("uid", P::Elsewhere),
    ("gid", P::Elsewhere),
];
const RULE: &[(&str, Place)] = &[
    ("allow", P::Elsewhere),
    ("type", P::Elsewhere),
    ("major", P::Elsewhere),
    ("minor", P::Elsewhere),
    ("access", P::Elsewhere),
];
const MOUNT: &[(&str, Place)] = &[
    ("destination", P::Elsewhere),
    ("type", P::Elsewhere),
    ("source", P::Elsewhere),
    ("options", P::Elsewhere),
];
const NAMESPACE: &[(&str, Place)] = &[("type", P::Elsewhere), ("path", P::Elsewhere)];
const MAPPING: &[(&str, Place)] =
    &[("containerID", P::Elsewhere), ("hostID", P::Elsewhere), ("size", P::Elsewhere)];
const HOOKS: &[(&str, Place)] = &[
    ("prestart", P::HookList),
    ("createRuntime", P::HookList),
    ("createContainer", P::HookList),
    ("startContainer", P::HookList),
    ("poststart", P::HookList),
    ("poststop", P::HookList),
];
const HOOK: &[(&str, Place)] = &[
    ("path", P::Elsewhere),
    ("args", P::Elsewhere),
    ("env", P::Elsewhere),
    ("timeout", P::Elsewhere),
];

/// The meaning of a key at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// A known key, and the place below it.
    Known(Place),
    /// Some runtime takes it for this known key.
    OtherSpelling(&'static str, Place),
    /// No runtime takes it for a known key.
    Unknown,
}

impl Place {
    fn keys(self) -> &'static [(&'static str, Self)] {
        match self {
            Self::Root => ROOT,
            Self::RootFs => ROOT_FS,
            Self::Process => PROCESS,
            Self::User => USER,
            Self::Capabilities => CAPABILITIES,
            Self::Linux => LINUX,
            Self::Resources => RESOURCES,
            Self::Device => DEVICE,
            Self::Rule => RULE,
            Self::Mount => MOUNT,
            Self::Namespace => NAMESPACE,
            Self::Mapping => MAPPING,
            Self::Hooks => HOOKS,
            Self::Hook => HOOK,
            _ => &[],
        }
    }

    /// The place of a list's elements.
    pub(super) fn element(self) -> Self {
        match self {
            Self::Devices => Self::Device,
            Self::Rules => Self::Rule,
            Self::Mounts => Self::Mount,
            Self::Namespaces => Self::Namespace,
            Self::Mappings => Self::Mapping,
            Self::HookList => Self::Hook,
            Self::Annotations => Self::Annotations,
            _ => Self::Elsewhere,
        }
    }

    /// The meaning of a key at this place.
    pub(super) fn key(self, key: &str) -> Key {
        let found = self.keys().iter().find(|(name, _)| name.len() <= key.len() && is(key, name));
        match found {
            None => Key::Unknown,
            Some((name, place)) if *name == key => Key::Known(*place),
            Some((name, place)) => Key::OtherSpelling(name, *place),
        }
    }
}

impl Key {
    /// The place below the key, however it is spelled.
    pub(super) fn place(self) -> Place {
        match self {
            Self::Known(place) | Self::OtherSpelling(_, place) => place,
            Self::Unknown => Place::Elsewhere,
        }
    }
}

/// Whether some runtime takes a key for this name.
pub(super) fn is(key: &str, name: &str) -> bool {
    if key.len() == name.len() {
        // A spelling with characters beyond ASCII has more bytes.
        return key.eq_ignore_ascii_case(name);
    }
    key.len() > name.len() && {
        let key = key.split('\0').next().unwrap_or_default();
        key.chars().map(folded).eq(name.chars().map(folded))
    }
}

/// Unicode's simple folding, as far as it ends in ASCII.
fn folded(c: char) -> char {
    match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_what_some_runtime_takes_it_for() {
        for (key, name, same) in [
            ("devices", "devices", true),
            ("DEVICES", "devices", true),
            ("device\u{17f}", "devices", true),
            ("\u{17f}i\u{17f}e", "sise", true),
            ("hoo\u{212a}s", "hooks", true),
            ("HOO\u{212a}\u{17f}", "hooks", true),
            ("devices\0", "devices", true),
            ("Devices\0x", "devices", true),
            ("device", "devices", false),
            ("devicess", "devices", false),
            ("devices ", "devices", false),
            ("d\u{e9}vices", "devices", false),
            ("linu\u{445}", "linux", false),
            ("ﬁleMode", "fileMode", false),
            ("", "env", false),
            ("\0env", "env", false),
        ] {
            assert_eq!(is(key, name), same, "{key:?} {name}");
        }
    }

    #[test]
    fn another_spelling_differs_from_the_name_and_from_a_stranger() {
        assert_eq!(P::Root.key("linux"), Key::Known(P::Linux));
        assert_eq!(P::Root.key("Linux"), Key::OtherSpelling("linux", P::Linux));
        assert_eq!(P::Root.key("linux2"), Key::Unknown);
        assert_eq!(P::Annotations.key("Linux"), Key::Unknown, "a map has no second spelling");
        assert_eq!(P::Resources.key("DEVICE\u{17f}").place(), P::Rules);
        assert_eq!(P::Linux.key("Devices").place(), P::Devices);
        assert_eq!(P::Elsewhere.key("devices").place(), P::Elsewhere);
    }
}
