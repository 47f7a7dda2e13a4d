//! Mounts that show the node's processes: those of a procfs, whatever its name. Each procfs has a
//! device of its own, and the node has not mounted a container's own procfs.

use std::collections::HashSet;
use std::path::Path;

use mpsgate_oci::spec::View;
use mpsgate_policy::DRIVER;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use super::{Line, mount_of_file, opened, place};
use crate::facts::inode;

/// Directories of a procfs that the kernel keeps empty for other file systems.
const EMPTY: [&str; 4] = ["fs/nfsd", "openprom", "sys/fs/binfmt_misc", "xen"];

fn is_procfs(line: &&Line) -> bool {
    line.fs_type == "proc"
}

/// Whether a bind of a path shows one of this process's procfs mounts: by the path itself or,
/// `with_below`, by a mount below it. `own`: this process's mounts, read on first use.
pub(crate) fn are_shown<'a>(
    path: &Path,
    with_below: bool,
    own: impl FnOnce() -> &'a [Line],
) -> bool {
    let Some(source) = opened(path) else { return false };
    if fstatfs(&source).is_ok_and(|found| found.filesystem_type() == PROC_SUPER_MAGIC) {
        // A path on no known mount may be any of it.
        let found = mount_of_file(&source, own());
        return found.is_none_or(|(line, place)| !is_drivers(line, &place));
    }
    if !with_below || !source.metadata().is_ok_and(|meta| meta.is_dir()) {
        return false;
    }
    let Some(place) = place(&source) else { return false };
    own().iter().filter(is_procfs).any(|line| line.point.starts_with(&place))
}

/// Whether a place on this mount is the driver's.
fn is_drivers(line: &Line, place: &Path) -> bool {
    let rest = place.strip_prefix(&line.point);
    is_procfs(&line) && rest.is_ok_and(|rest| line.root.join(rest).starts_with(DRIVER))
}

/// One of a container's new mounts that shows a procfs of this process, except for the driver's
/// part.
pub(crate) fn of_node<'a>(new: &'a [Line], own: &[Line]) -> Option<&'a Line> {
    let devices: HashSet<u64> = own.iter().filter(is_procfs).map(|line| line.device).collect();
    new.iter().find(|line| {
        is_procfs(line) && devices.contains(&line.device) && !line.root.starts_with(DRIVER)
    })
}

/// Whether the kernel mounts a procfs for a container of this spec. If this process's mounts cannot
/// be read, the runtime finds out.
pub(crate) fn may_be_mounted(view: View<'_>) -> bool {
    let is_ours = |path: &str| {
        let found = inode(Path::new(path));
        found.is_some() && found == inode(Path::new("/proc/self/ns/user"))
    };
    view.user_namespace().is_callers(is_ours)
        || super::of("self").map_or(true, |own| one_hides_nothing(&own))
}

/// Whether a user namespace may have a procfs of its own: one of this process's must hide nothing
/// (`mnt_already_visible` in the kernel's fs/namespace.c).
fn one_hides_nothing(own: &[Line]) -> bool {
    let hides = |line: &Line, below: &Line| {
        let place = below.point.strip_prefix(&line.point).ok();
        below.parent == line.id
            && !EMPTY.iter().any(|empty| place.is_some_and(|place| place == Path::new(empty)))
    };
    own.iter().filter(is_procfs).any(|line| {
        let is_whole = line.root == Path::new("/") && !line.read_only;
        is_whole && !own.iter().any(|below| hides(line, below))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    fn lines(texts: &[&str]) -> Vec<Line> {
        texts.iter().map(|text| Line::parse(text).unwrap()).collect()
    }

    #[test]
    fn a_procfs_of_ours_is_found_under_every_name_and_above() {
        let own = super::super::of("self").unwrap();
        let shown = |path: &str, with_below| are_shown(Path::new(path), with_below, || &own);
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        let link = link.to_str().unwrap();
        for path in [
            "/proc",
            "/proc/",
            "/proc/1",
            "/proc/self",
            "/proc/self/environ",
            "/proc/sys",
            "/proc/self/root/proc",
            "/sys/../proc",
            link,
        ] {
            assert!(shown(path, false) && shown(path, true), "{path}");
        }
        for above in ["/", "/proc/self/root", "/proc/1/../self/root/"] {
            assert!(shown(above, true) && !shown(above, false), "{above}");
        }
        for path in
            [dir.path().to_str().unwrap(), "/proc/self/root/dev/null", "/dev/null", "/no/such"]
        {
            assert!(!shown(path, false) && !shown(path, true), "{path}");
        }
    }

    #[test]
    fn a_procfs_comes_along_with_what_is_above_it_however_deep() {
        let dir = tempfile::tempdir().unwrap();
        let (above, beside) = (dir.path().join("a/b"), dir.path().join("a/bc"));
        std::fs::create_dir_all(&above).unwrap();
        std::fs::create_dir_all(&beside).unwrap();
        let point = above.join("c/proc");
        let own = lines(&[&format!("9 8 0:5 / {} rw - proc proc rw", point.display())]);
        for path in [dir.path(), &dir.path().join("a"), &above] {
            assert!(are_shown(path, true, || &own), "{path:?}");
            assert!(!are_shown(path, false, || &own), "{path:?}");
        }
        assert!(!are_shown(&beside, true, || &own));
    }

    #[test]
    fn the_drivers_part_of_a_procfs_shows_no_process() {
        for (shown, place, is) in [
            ("/ /proc", "/proc/driver/nvidia", true),
            ("/ /proc", "/proc/driver/nvidia/gpus/0000:01:00.0", true),
            ("/driver /x", "/x/nvidia/params", true),
            ("/driver/nvidia /x", "/x", true),
            ("/ /proc", "/proc/driver", false),
            ("/ /proc", "/proc/driver/nvidia2", false),
            ("/ /proc", "/proc/1", false),
            ("/driver /x", "/x", false),
            ("/1 /proc/driver/nvidia/y", "/proc/driver/nvidia/y", false),
            // Another mount has the number of one that has gone.
            ("/driver/nvidia /x", "/elsewhere", false),
        ] {
            let line = Line::parse(&format!("1 0 0:5 {shown} rw - proc proc rw")).unwrap();
            assert_eq!(is_drivers(&line, Path::new(place)), is, "{shown} {place}");
        }
    }

    #[test]
    fn of_a_containers_procfs_mounts_the_nodes_are_known_by_their_device() {
        let own =
            lines(&["1 0 0:5 / /proc rw - proc proc rw", "2 0 0:6 / /sys rw - sysfs sysfs rw"]);
        let found = |texts: &[&str]| {
            let new = lines(texts);
            of_node(&new, &own).map(|line| line.point.display().to_string())
        };
        let fresh = "9 8 0:77 / /b/rootfs/proc rw - proc proc rw";
        assert_eq!(found(&[fresh, "10 8 0:6 / /b/rootfs/sys rw - sysfs sysfs rw"]), None);
        assert_eq!(
            found(&[fresh, "10 8 0:5 /driver/nvidia/gpus/0 /b/rootfs/p ro - proc proc rw"]),
            None
        );
        for root in ["/", "/1", "/1/task", "/sys", "/driver"] {
            let line = format!("10 9 0:5 {root} /b/rootfs/a/b/x ro,hidepid=2 - proc proc rw");
            assert_eq!(found(&[fresh, &line]).as_deref(), Some("/b/rootfs/a/b/x"), "{root}");
        }
    }

    #[test]
    fn a_user_namespace_gets_a_procfs_where_one_of_ours_hides_nothing() {
        let whole = "1 0 0:5 / /proc rw - proc proc rw";
        let empty = "2 1 0:8 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw";
        let devices = "3 1 0:6 /null /proc/devices rw - devtmpfs d rw";
        for (texts, may) in [
            (&[whole][..], true),
            (&[whole, empty, "4 2 0:9 / /proc/sys/fs/binfmt_misc rw - binfmt_misc b rw"], true),
            (&[whole, "2 0 0:9 / /sys rw - sysfs s rw", "3 2 0:7 / /sys/x rw - tmpfs t rw"], true),
            (&[], false),
            (&[whole, devices], false),
            (&[whole, empty, devices], false),
            (&[whole, "2 1 0:5 /sys /proc/sys ro - proc proc rw"], false),
            (&[whole, "2 1 0:7 / /proc rw - tmpfs t rw"], false),
            (&["1 0 0:5 / /proc ro - proc proc rw"], false),
            (&["1 0 0:5 /sys /x rw - proc proc rw"], false),
            // Another one, at any place.
            (&[whole, devices, "5 0 0:7 / /x rw - proc proc rw"], true),
        ] {
            assert_eq!(one_hides_nothing(&lines(texts)), may, "{texts:?}");
        }
        for spec in [
            serde_json::json!({}),
            serde_json::json!({"linux": {"namespaces": [{"type": "pid"}]}}),
            serde_json::json!({"linux": {"namespaces": [
                {"type": "user", "path": "/proc/self/ns/user"}
            ]}}),
        ] {
            assert!(may_be_mounted(View::new(&spec)), "{spec}: its user namespace is ours");
        }
    }
}
