//! Mounts that bring the node of a managed card into a container. They are searched only where no
//! device cgroup closes the node, which is hardly ever the case.

use std::cell::Cell;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use mpsgate_oci::spec::{MountEntry, Shows, View};
use mpsgate_policy::{MountFact, MountKind, Node};
use nix::sys::stat::{major, minor};
use nix::sys::statvfs::{FsFlags, statvfs};

use crate::mounts::{candidates, layer_candidates};

/// The most entries that are looked at, for all mounts of a container together. `/dev` has some
/// hundred, a large image 200,000.
const ENTRIES_MAX: usize = 1 << 20;
/// The kernel's own file system of nodes: each of its mounts shows the same tree.
const DEV: &str = "/dev";
const DEVTMPFS: &str = "devtmpfs";

/// Binds of such a node, or of a directory with one, overlays of such directories, and mounts of
/// the kernel's own `/dev`. A root counts if its file system opens nodes; engines mount images so
/// that none does.
pub(crate) fn of(view: View<'_>, bundle: &Path, node: &Node) -> Vec<MountFact> {
    let fact = |source: &str, destination: &str| MountFact {
        source: source.to_owned(),
        destination: destination.to_owned(),
        kind: MountKind::Card,
    };
    let left = Cell::new(ENTRIES_MAX);
    let holds = |path: &PathBuf| holds_card(path, node, &left);
    let root_path = view.root().map(|root| root.source);
    let shows_card = |mount: &MountEntry<'_>| match mount.shows() {
        Shows::Source => {
            !mount.source.is_empty() && candidates(mount.source, bundle).iter().any(holds)
        }
        Shows::Layers => mount
            .layers()
            .iter()
            .any(|layer| layer_candidates(layer, bundle, root_path).iter().any(holds)),
        // The kernel's own one with nodes is checked below. The spec shows the unknown ones.
        Shows::Nothing | Shows::Unknown => false,
    };
    let shown = view.mount_entries().filter(shows_card);
    let opens_nodes =
        |path: &Path| statvfs(path).is_ok_and(|found| !found.flags().contains(FsFlags::ST_NODEV));
    let root = view.root().filter(|root| {
        candidates(root.source, bundle).iter().any(|path| opens_nodes(path) && holds(path))
    });
    let root = root.map(|root| fact(root.source, root.destination));
    let own = view.mounts_of(DEVTMPFS).map(|destination| fact(DEVTMPFS, destination));
    shown.map(|mount| fact(mount.source, mount.destination)).chain(own).chain(root).collect()
}

fn holds_card(source: &Path, node: &Node, left: &Cell<usize>) -> bool {
    let Ok(meta) = std::fs::metadata(source) else { return false };
    if !meta.is_dir() {
        return is_card(&meta, node);
    }
    // `/`, or `/dev` by another name.
    let is_above = |directory: &Path| {
        std::fs::metadata(directory)
            .is_ok_and(|above| (above.dev(), above.ino()) == (meta.dev(), meta.ino()))
    };
    Path::new(DEV).ancestors().any(is_above) || may_have_node(source, node, left)
}

/// Whether there is such a node below, or more entries than can be looked at.
fn may_have_node(root: &Path, node: &Node, left: &Cell<usize>) -> bool {
    let mut open: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let Some(less) = left.get().checked_sub(1) else { return true };
            left.set(less);
            // The target of a link counts only if it is in the mount, too: then the walk finds it
            // there.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(kind)
                    if kind.is_char_device()
                        && entry.metadata().is_ok_and(|meta| is_card(&meta, node)) =>
                {
                    return true;
                }
                _ => {}
            }
        }
    }
    false
}

fn is_card(meta: &Metadata, node: &Node) -> bool {
    let number = |part: u64| u32::try_from(part).ok();
    let numbers = number(major(meta.rdev())).zip(number(minor(meta.rdev())));
    meta.file_type().is_char_device()
        && numbers.is_some_and(|(major, minor)| node.manages_device(major, minor))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_model::DeviceNode;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mount_holds_a_card_by_number_below_and_above() {
        // A card with a node that every machine has: /dev/null.
        let null = DeviceNode { path: "/x".to_owned(), major: 1, minor: 3 };
        let node = Node { other_nodes: vec![null], ..Node::unknown() };
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        let plain = deep.join("f");
        std::fs::write(&plain, "").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let holds = |path: &Path| holds_card(path, &node, &Cell::new(ENTRIES_MAX));
        assert!(holds(Path::new("/dev/null")) && holds(Path::new("/dev")) && holds(Path::new("/")));
        assert!(holds(&link), "a bind follows its source's link");
        assert!(!holds(dir.path()) && !holds(&plain) && !holds(Path::new("/dev/zero")));
        assert!(!holds(Path::new("/no/such")));
        let none = format!("lowerdir={}", dir.path().display());
        let spec = json!({ "mounts": [
            { "destination": "/d", "type": "devtmpfs", "source": "devtmpfs" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
            { "destination": "/n", "type": "bind", "source": "/dev/null" },
            { "destination": "/l", "type": "overlay", "source": "overlay", "options": ["lowerdir=/etc:/dev"] },
            { "destination": "/m", "type": "overlay", "source": "overlay", "options": [none] }
        ] });
        let found = of(View::new(&spec), Path::new("/"), &node);
        let destinations: Vec<&str> = found.iter().map(|m| m.destination.as_str()).collect();
        assert_eq!(destinations, ["/n", "/l", "/d"]);
        let relative = json!({ "mounts": [
            { "destination": "/n", "type": "bind", "source": "../../dev/null" },
            { "destination": "/m", "type": "bind", "source": "a" }
        ] });
        let found = of(View::new(&relative), dir.path(), &node);
        let destinations: Vec<&str> = found.iter().map(|m| m.destination.as_str()).collect();
        assert_eq!(destinations, ["/n"], "a relative source begins at the bundle");
        // Two of its four entries do not suffice for the answer.
        let may = |left| may_have_node(dir.path(), &node, &Cell::new(left));
        assert!(!may(4) && may(2));
        let roots = |path: &str| {
            let spec = json!({ "root": { "path": path } });
            of(View::new(&spec), dir.path(), &node).len()
        };
        assert_eq!((roots("/dev"), roots("../../dev")), (1, 1), "a root may hold nodes, too");
        assert_eq!((roots("a"), roots("none")), (0, 0));
    }
}
