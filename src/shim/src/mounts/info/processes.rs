//! Which mounts show the node's processes: those of a procfs, whatever its name. Each procfs has a
//! device of its own, and a container's is none that the node has mounted.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use mpsgate_policy::DRIVER;
use nix::fcntl::OFlag;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use super::{Line, place};

fn is_procfs(line: &&Line) -> bool {
    line.fs_type == "proc"
}

/// Whether a bind of a path shows one of our procfs mounts: as the path itself or, `with_below`, as
/// a mount below it. `own`: our mounts, which are read where they are needed.
pub(crate) fn are_shown<'a>(
    path: &Path,
    with_below: bool,
    own: impl FnOnce() -> &'a [Line],
) -> bool {
    // Neither read nor waited for, whatever it is. Links are followed as mount(2) does.
    let source = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(path);
    let Ok(source) = source else { return false };
    let is_one = fstatfs(&source).is_ok_and(|found| found.filesystem_type() == PROC_SUPER_MAGIC);
    let has_below = with_below && source.metadata().is_ok_and(|meta| meta.is_dir());
    if !is_one && !has_below {
        return false;
    }
    match place(&source) {
        Some(place) if is_one => !is_drivers(&place, own()),
        Some(place) => own().iter().filter(is_procfs).any(|line| line.point.starts_with(&place)),
        None => is_one,
    }
}

fn is_drivers(place: &Path, own: &[Line]) -> bool {
    let above = own.iter().filter(is_procfs).filter(|line| place.starts_with(&line.point));
    let nearest = above.max_by_key(|line| line.point.as_os_str().len());
    nearest.is_some_and(|line| {
        let rest = place.strip_prefix(&line.point).unwrap_or_else(|_| Path::new(""));
        line.root.join(rest).starts_with(DRIVER)
    })
}

/// Of a container's new mounts one that shows a procfs of ours, but for the driver's part.
pub(crate) fn of_node<'a>(new: &'a [Line], own: &[Line]) -> Option<&'a Line> {
    let devices: HashSet<u64> = own.iter().filter(is_procfs).map(|line| line.device).collect();
    new.iter().find(|line| {
        is_procfs(line) && devices.contains(&line.device) && !line.root.starts_with(DRIVER)
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
        let own = lines(&[
            "1 0 0:5 / /proc rw - proc proc rw",
            "2 1 0:5 /driver /x rw - proc proc rw",
            "3 1 0:5 /1 /proc/driver/nvidia/y rw - proc proc rw",
        ]);
        for (place, is) in [
            ("/proc/driver/nvidia", true),
            ("/proc/driver/nvidia/gpus/0000:01:00.0", true),
            ("/x/nvidia/params", true),
            ("/proc/driver", false),
            ("/proc/driver/nvidia2", false),
            ("/proc/driver/nvidia/y", false),
            ("/proc/1", false),
            ("/elsewhere", false),
        ] {
            assert_eq!(is_drivers(Path::new(place), &own), is, "{place}");
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
}
