//! One entry of `mounts`, with the effect of its options.

use serde_json::Value;

use super::layers::Layers;

/// What a mount shows of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// Its source.
    Source,
    /// The directories that its options name: an overlay.
    Layers,
    /// Nothing: a file system of the kernel's own, or another machine's.
    Nothing,
    /// Unknown: a disk with a file system, a file system of a process, or any other type.
    Unknown,
}

/// File systems of the kernel's own, which read no source.
const OF_THE_KERNEL: [&str; 20] = [
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "proc",
    "pstore",
    "ramfs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tmpfs",
    "tracefs",
];
const OF_OTHER_MACHINES: [&str; 6] = ["ceph", "cifs", "nfs", "nfs4", "smb3", "smbfs"];

/// Whether a file system of this type is an overlay. The second name is that of Ubuntu's older
/// kernels.
#[must_use]
pub fn is_overlay(kind: &str) -> bool {
    matches!(kind, "overlay" | "overlayfs")
}

impl Shows {
    /// What a mount of this type shows. `is_bind`: its options make it a bind, which comes first.
    /// `is_open`: one of its options is open.
    pub(super) fn of(kind: &str, is_bind: bool, is_open: bool) -> Self {
        if is_bind || kind == "bind" {
            Self::Source
        } else if is_overlay(kind) && !is_open {
            Self::Layers
        } else if OF_THE_KERNEL.contains(&kind) || OF_OTHER_MACHINES.contains(&kind) {
            Self::Nothing
        } else {
            Self::Unknown
        }
    }
}

/// One entry of `mounts`, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry<'a> {
    /// Path inside the container.
    pub destination: &'a str,
    /// Host path of a bind mount.
    pub source: &'a str,
    /// Type of the file system, `bind` for some binds.
    pub kind: &'a str,
    options: Vec<&'a str>,
}

/// How much of a mount is read-only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOnly {
    /// Nothing.
    No,
    /// The mount itself, but not the mounts below that come with it.
    Top,
    /// All of it.
    All,
}

impl<'a> MountEntry<'a> {
    pub(super) fn of(entry: &'a Value) -> Self {
        let text = |key| entry.get(key).and_then(Value::as_str).unwrap_or_default();
        let options = entry.get("options").and_then(Value::as_array).into_iter().flatten();
        Self {
            destination: text("destination"),
            source: text("source"),
            kind: text("type"),
            options: options.filter_map(Value::as_str).collect(),
        }
    }

    /// The root file system: runtimes bind it with all mounts below, and `readonly` makes its top
    /// read-only.
    pub(super) fn of_root(root: &'a Value) -> Option<Self> {
        let source = root.get("path")?.as_str()?;
        let read_only = root.get("readonly").and_then(Value::as_bool) == Some(true);
        let options = if read_only { vec!["rbind", "ro"] } else { vec!["rbind"] };
        Some(Self { destination: "/", source, kind: "bind", options })
    }

    /// What it shows of the host.
    #[must_use]
    pub fn shows(&self) -> Shows {
        let is_open = self.open_option().is_some();
        Shows::of(self.kind, self.has("bind") || self.has("rbind"), is_open)
    }

    /// The option of an overlay that ends in a backslash, so that it is unknown what the overlay
    /// shows.
    #[must_use]
    pub fn open_option(&self) -> Option<&'a str> {
        let mut options = self.options.iter().copied().filter(|_| is_overlay(self.kind));
        options.find(|option| Layers::of(option).is_open)
    }

    /// Whether it shows its source.
    #[must_use]
    pub fn is_bind(&self) -> bool {
        self.shows() == Shows::Source
    }

    /// The directories of the host that an overlay shows.
    #[must_use]
    pub fn layers(&self) -> Vec<String> {
        match self.shows() {
            Shows::Layers => self.options.iter().flat_map(|one| Layers::of(one).paths).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether a bind brings the mounts below its source. It is assumed to if the options do not
    /// say.
    #[must_use]
    pub fn is_recursive(&self) -> bool {
        self.has("rbind") || !self.has("bind")
    }

    /// Of `ro` and `rw` the last counts, as in runc and crun; `rro` includes the mounts below.
    #[must_use]
    pub fn read_only(&self) -> ReadOnly {
        let last =
            |names: [&str; 2]| self.options.iter().rev().find(|o| names.contains(o)).copied();
        if last(["rro", "rrw"]) == Some("rro") {
            ReadOnly::All
        } else if last(["ro", "rw"]) != Some("ro") {
            ReadOnly::No
        } else if self.is_bind() && self.is_recursive() {
            ReadOnly::Top
        } else {
            ReadOnly::All
        }
    }

    /// Whether it has this option, word for word.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.options.contains(&option)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_say_what_comes_with_a_mount_and_what_can_be_written() {
        for (entry, recursive, read_only) in [
            (json!({"options": ["bind"]}), false, ReadOnly::No),
            (json!({"options": ["rbind", "bind"]}), true, ReadOnly::No),
            (json!({"type": "bind"}), true, ReadOnly::No),
            (json!({"options": ["bind", "ro"]}), false, ReadOnly::All),
            (json!({"options": ["rbind", "ro"]}), true, ReadOnly::Top),
            (json!({"options": ["rbind", "ro", "rro"]}), true, ReadOnly::All),
            (json!({"options": ["bind", "ro", "rw"]}), false, ReadOnly::No),
            (json!({"options": ["rbind", "rro", "rrw"]}), true, ReadOnly::No),
        ] {
            let mount = MountEntry::of(&entry);
            assert!(mount.is_bind(), "{entry}");
            assert_eq!(
                (mount.is_recursive(), mount.read_only()),
                (recursive, read_only),
                "{entry}"
            );
        }
        for (entry, shows) in [
            (json!({"type": "overlay", "options": ["lowerdir=/a"]}), Shows::Layers),
            (json!({"type": "overlay", "options": ["lowerdir=/a\\", "b"]}), Shows::Unknown),
            (json!({"type": "overlay", "options": ["rbind"]}), Shows::Source),
            (json!({"type": "tmpfs", "options": ["mode=755"]}), Shows::Nothing),
            (json!({"type": "nfs", "source": "server:/x"}), Shows::Nothing),
            (json!({"type": "ext4", "source": "/dev/sda1"}), Shows::Unknown),
            (json!({"type": "fuse.x", "source": "x"}), Shows::Unknown),
            (json!({}), Shows::Unknown),
        ] {
            assert_eq!(MountEntry::of(&entry).shows(), shows, "{entry}");
        }
        for (kind, option, found) in [
            ("overlay", "lowerdir=/a\\", Some("lowerdir=/a\\")),
            ("overlay", "lowerdir=/a\\\\", None),
            ("ext4", "x\\", None),
        ] {
            let mount = json!({"type": kind, "options": ["ro", option]});
            assert_eq!(MountEntry::of(&mount).open_option(), found, "{mount}");
        }
        let cgroup = json!({"type": "cgroup", "options": ["nosuid", "ro"]});
        let cgroup = MountEntry::of(&cgroup);
        assert!(!cgroup.is_bind() && cgroup.read_only() == ReadOnly::All);
    }
}
