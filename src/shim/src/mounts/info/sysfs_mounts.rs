//! Mounts that show a GPU's files in sysfs, under whatever name: by these files a GPU can be
//! removed, unbound or mapped, without a device cgroup. Nothing is read unless a source is on a
//! sysfs or has one below it.

use std::cell::LazyCell;
use std::path::{Path, PathBuf};

use mpsgate_oci::spec::{MountEntry, ReadOnly, View};
use mpsgate_policy::{MountFact, MountKind, Node, shows_card_files};
use nix::sys::statfs::SYSFS_MAGIC;

use super::{Line, Own, joined, mount_of};
use crate::facts::node_of_daemon;
use crate::mounts::{candidates, is_on, layer_candidates};

/// The driver's directories of GPUs, by address on the bus.
const GPUS: &str = "/proc/driver/nvidia/gpus";
const DEVICES: &str = "/sys/bus/pci/devices";
const SYSFS: &str = "/sys";
/// The type of a sysfs, in a spec and in the kernel's table of mounts.
const KIND: &str = "sysfs";

/// The PCI directories of GPUs, as paths in a sysfs. `counts` decides by minor; a GPU with an
/// unknown minor counts.
pub(crate) fn of_gpus(counts: impl Fn(u32) -> bool) -> Vec<PathBuf> {
    // Not generic, so that the program has this code once, and not once for each caller.
    fn found(counts: &dyn Fn(u32) -> bool) -> Vec<PathBuf> {
        let minor = |gpu: &Path| -> Option<u32> {
            let text = mpsgate_host::procfs::text(gpu.join("information")).ok()?;
            let minor = text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
            minor.trim().parse().ok()
        };
        let gpus = std::fs::read_dir(GPUS).into_iter().flatten().flatten();
        let gpus = gpus.filter(|gpu| minor(&gpu.path()).is_none_or(counts));
        gpus.filter_map(|gpu| {
            let place = Path::new(DEVICES).join(gpu.file_name()).canonicalize().ok()?;
            Some(Path::new("/").join(place.strip_prefix(SYSFS).ok()?))
        })
        .collect()
    }
    found(&counts)
}

/// Whether a bind of a path shows such files: by the path itself or, `with_below`, by a sysfs that
/// is mounted below it. `own`: this process's mounts.
pub(crate) fn are_shown<'a>(
    path: &Path,
    with_below: bool,
    gpus: impl FnOnce() -> Vec<PathBuf>,
    own: impl FnOnce() -> &'a [Line],
) -> bool {
    if is_on(path, SYSFS_MAGIC) {
        return are_at(path, gpus, own);
    }
    if !with_below || !path.is_dir() {
        return false;
    }
    let Ok(place) = path.canonicalize() else { return false };
    let below = own().iter().filter(|line| line.point.starts_with(&place));
    first(below, gpus).is_some()
}

/// The same for a path on a sysfs, without the mounts below it.
pub(crate) fn are_at<'a>(
    path: &Path,
    gpus: impl FnOnce() -> Vec<PathBuf>,
    own: impl FnOnce() -> &'a [Line],
) -> bool {
    // A path on no known mount may be any of it.
    let found = mount_of(path, own()).filter(|(line, _)| line.fs_type == KIND);
    let Some((line, place)) = found else { return true };
    let rest = place.strip_prefix(&line.point).unwrap_or_else(|_| Path::new(""));
    shows(&joined(&line.root, rest), &gpus())
}

/// The first mount of a sysfs that shows such files.
fn first<'a>(
    mut lines: impl Iterator<Item = &'a Line>,
    gpus: impl FnOnce() -> Vec<PathBuf>,
) -> Option<&'a Line> {
    let gpus = LazyCell::new(gpus);
    lines.find(|line| line.fs_type == KIND && shows(&line.root, &gpus))
}

/// Whether a place in a sysfs shows such files. A file counts by its directory: a bridge's `remove`
/// takes the GPU below with it. A path that this process's sysfs lacks counts as a file.
fn shows(place: &Path, gpus: &[PathBuf]) -> bool {
    let ours = Path::new(SYSFS).join(place.strip_prefix("/").unwrap_or(place));
    let directory = place.parent().filter(|_| !ours.is_dir());
    shows_card_files(directory.unwrap_or(place), gpus)
}

/// The mounts of a container that show files of managed cards, including a writable sysfs of its
/// own. A container that may mount can make its sysfs writable.
pub(crate) fn facts(view: View<'_>, bundle: &Path, node: &Node, own: &Own) -> Vec<MountFact> {
    let managed = || of_gpus(|minor| node.manages_minor(minor));
    let root = view.root().map(|root| root.source);
    let may_mount = view.may_gain("CAP_SYS_ADMIN");
    let fact = |mount: MountEntry<'_>| {
        let is_bind = mount.is_bind() && !mount.source.is_empty();
        let sources = if is_bind { candidates(mount.source, bundle) } else { Vec::new() };
        let layers = mount.layers();
        let layers = layers.iter().flat_map(|layer| layer_candidates(layer, bundle, root));
        let with_below = is_bind && mount.is_recursive();
        let mut shown = sources.into_iter().chain(layers);
        let found = shown.find(|path| are_shown(path, with_below, managed, || own.lines()));
        let is_writable = mount.read_only() == ReadOnly::No;
        let is_own = !mount.is_bind() && mount.kind == KIND && is_writable && !may_mount;
        let source = match found {
            Some(path) if !is_bind => path.to_string_lossy().into_owned(),
            None if !is_own => return None,
            _ => mount.source.to_owned(),
        };
        // Through an overlay a sysfs cannot be written.
        let writes = is_own || (is_bind && is_writable);
        let kind = MountKind::CardFiles { read_only: !writes };
        Some(MountFact { source, destination: mount.destination.to_owned(), kind })
    };
    view.mount_entries().chain(view.root()).filter_map(fact).collect()
}

/// One of a container's new mounts that shows files of a managed card. A whole sysfs is left out:
/// engines mount one at `/sys`, which is the node's own if the container has its network.
pub(crate) fn of_node(new: &[Line]) -> Option<&Line> {
    first(new.iter().filter(|line| line.root != Path::new("/")), || {
        let node = node_of_daemon();
        of_gpus(|minor| node.as_ref().is_none_or(|node| node.manages_minor(minor)))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use serde_json::json;

    use super::*;

    #[test]
    fn files_of_a_card_are_found_under_every_name_and_above_and_no_other_files_are() {
        let online = Path::new("/sys/devices/system/cpu/online");
        if !is_on(Path::new(SYSFS), SYSFS_MAGIC) || !online.exists() {
            mpsgate_testing::skip!("needs a sysfs");
        }
        let own = super::super::of("self").unwrap();
        // As if a card were there.
        let gpus = || vec![PathBuf::from("/devices/system/cpu/cpu0")];
        let shown = |path: &Path, with_below| are_shown(path, with_below, gpus, || &own);
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/sys/devices", &link).unwrap();
        for path in [
            "/sys",
            "/sys/",
            "/sys/devices",
            "/sys/devices/system/cpu/cpu0",
            "/sys/devices/system/cpu/online",
            "/proc/self/root/sys/devices/system",
            link.to_str().unwrap(),
        ] {
            let path = Path::new(path);
            assert!(shown(path, false) && shown(path, true), "{path:?}");
        }
        assert!(shown(Path::new("/"), true) && !shown(Path::new("/"), false));
        for path in ["/sys/class", "/sys/kernel", "/sys/devices/virtual", "/proc", "/no/such"] {
            let path = Path::new(path);
            assert!(!shown(path, false) && !shown(path, true), "{path:?}");
        }
        assert!(!shown(dir.path(), true));
    }

    #[test]
    fn a_sysfs_comes_along_with_what_is_above_it_by_what_it_shows() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap();
        let gpus = || vec![PathBuf::from("/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0")];
        for (root, is) in [
            ("/", true),
            ("/bus/pci/drivers", true),
            ("/devices/pci0000:3a/0000:3a:00.0/remove", true),
            ("/class/net", false),
        ] {
            let text = format!("9 8 0:5 {root} {}/a/sys rw - sysfs sysfs rw", place.display());
            let own = vec![Line::parse(&text).unwrap()];
            let shown = |with_below| are_shown(&place, with_below, gpus, || &own);
            assert_eq!((shown(true), shown(false)), (is, false), "{root}");
        }
    }

    #[test]
    fn a_fact_says_whether_the_mount_itself_is_read_only() {
        if !is_on(Path::new(SYSFS), SYSFS_MAGIC) {
            mpsgate_testing::skip!("needs a sysfs");
        }
        let own = Own::default();
        let kinds = |mount: serde_json::Value| -> Vec<MountKind> {
            let spec = json!({ "mounts": [mount] });
            let facts = facts(View::new(&spec), Path::new("/"), &Node::unknown(), &own);
            facts.into_iter().map(|fact| fact.kind).collect()
        };
        for (options, read_only) in [
            (json!(["bind"]), false),
            (json!(["rbind"]), false),
            (json!(["bind", "ro"]), true),
            (json!(["rbind", "ro"]), true),
        ] {
            let mount = json!({ "destination": "/x", "source": "/sys", "options": options });
            assert_eq!(kinds(mount), [MountKind::CardFiles { read_only }], "{options}");
        }
        let own = json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs" });
        assert_eq!(kinds(own), [MountKind::CardFiles { read_only: false }], "a writable one");
        for other in [
            json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"] }),
            json!({ "destination": "/x", "type": "bind", "source": "/sys/kernel" }),
            json!({ "destination": "/x", "type": "tmpfs", "source": "/sys" }),
        ] {
            assert_eq!(kinds(other.clone()), [], "{other}");
        }
    }

    #[test]
    fn of_a_containers_own_mounts_a_part_of_a_sysfs_counts_and_all_of_one_does_not() {
        let found = |line: &str| of_node(&[Line::parse(line).unwrap()]).is_some();
        assert!(found("9 8 0:5 /bus/pci /b/rootfs/x rw - sysfs sysfs rw"));
        assert!(found("9 8 0:5 /bus/pci/drivers/nvidia /b/rootfs/x ro - sysfs sysfs rw"));
        assert!(!found("9 8 0:5 / /b/rootfs/sys ro - sysfs sysfs ro"));
        assert!(!found("9 8 0:5 /class/net /b/rootfs/x rw - sysfs sysfs rw"));
        assert!(!found("9 8 0:5 /bus/pci /b/rootfs/x rw - tmpfs tmpfs rw"));
    }

    #[test]
    fn of_a_mounted_file_its_directory_counts_and_of_a_directory_itself() {
        if !is_on(Path::new(SYSFS), SYSFS_MAGIC) {
            mpsgate_testing::skip!("needs a sysfs");
        }
        let bridge = "/devices/pci0000:3a/0000:3a:00.0";
        let found = |root: &str| {
            let line = format!("9 8 0:5 {root} /b/rootfs/x rw - sysfs sysfs rw");
            let gpus = || vec![Path::new(bridge).join("0000:3b:00.0")];
            first([Line::parse(&line).unwrap()].iter(), gpus).is_some()
        };
        for file in ["remove", "rescan", "0000:3b:00.0/resource0"] {
            assert!(found(&format!("{bridge}/{file}")), "{file}");
        }
        assert!(found(bridge) && found("/devices/pci0000:3a/uevent"));
        // Directories beside those above a card, which this process's sysfs has, and a file in one.
        for other in ["/devices/virtual", "/devices/system", "/devices/system/cpu/online", "/class"]
        {
            assert!(!found(other), "{other}");
        }
        assert!(!found("/devices/pci0000:3a/0000:3a:01.0/remove"), "another bridge's");
    }
}
