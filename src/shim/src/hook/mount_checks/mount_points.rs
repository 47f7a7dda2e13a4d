//! The places of a container's mounts, and what its spec has for such a place. The runtime has not
//! yet made the container's root the root: the mounts are below that root on the node.

use std::path::{Path, PathBuf};

use mpsgate_oci::hook_state::HookState;
use mpsgate_oci::spec::{self, Document, ReadOnly};
use mpsgate_policy::inside;

use crate::mounts::info::Line;

pub(super) struct Standing {
    document: Document,
    root: PathBuf,
}

impl Standing {
    /// `None` if no spec is found, or no mount is at the root that it names: runtimes bind the root
    /// on itself.
    pub(super) fn of(state: &HookState, all: &[Line]) -> Option<Self> {
        let named = state.bundle.as_deref().unwrap_or_else(|| Path::new("."));
        [named, Path::new(".")].into_iter().find_map(|bundle| {
            let document = spec::parse(&std::fs::read(bundle.join("config.json")).ok()?).ok()?;
            let root = bundle.join(document.view().root()?.source).canonicalize().ok()?;
            let is_mounted = all.iter().any(|line| line.point == root);
            is_mounted.then_some(Self { document, root })
        })
    }

    /// The place of a mount in the container, without links; `None` if it is outside.
    pub(super) fn place(&self, line: &Line) -> Option<PathBuf> {
        line.point.strip_prefix(&self.root).ok().map(|rest| Path::new("/").join(rest))
    }

    /// Whether the spec has a mount read-only: crun makes it so after the hooks. The last entry for
    /// its place decides, if everything that the spec has for that place is mounted there, and
    /// nothing else: a link may have led one away, and another one there. The image's links stay
    /// until something is mounted over them. So above the place only the root may be mounted, and
    /// sysfs, in which nobody makes a link, before all entries below it. Mounts below have places
    /// of their own.
    pub(super) fn makes_read_only(&self, line: &Line, all: &[Line]) -> bool {
        let Some(place) = self.place(line) else { return false };
        let mounts = self.document.view().mount_entries();
        let mounts: Vec<(PathBuf, ReadOnly)> = mounts
            .map(|mount| (PathBuf::from(&*inside(mount.destination)), mount.read_only()))
            .collect();
        let mut earlier = mounts.as_slice();
        for at in place.ancestors() {
            let is_at = |mount: &(PathBuf, ReadOnly)| mount.0 == at;
            let named = earlier.iter().filter(|mount| is_at(mount)).count();
            let there: Vec<&Line> =
                all.iter().filter(|other| self.place(other).as_deref() == Some(at)).collect();
            let is_fixed = if at == Path::new("/") {
                there.iter().zip(there.iter().skip(1)).all(|(one, next)| one.is_copy_of(next))
            } else {
                there.len() == named
                    && (at == place || there.iter().all(|above| above.fs_type == "sysfs"))
            };
            if !is_fixed {
                return false;
            }
            earlier = earlier.split(is_at).next().unwrap_or_default();
        }
        let last = mounts.iter().rfind(|mount| mount.0 == place);
        last.is_some_and(|mount| mount.1 != ReadOnly::No)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use serde_json::{Value, json};

    use super::*;

    fn line(point: &str) -> Line {
        Line::parse(&format!("9 8 0:26 / {point} rw - cgroup cgroup rw,devices")).unwrap()
    }

    fn standing(mounts: &Value) -> Standing {
        let text = json!({ "root": { "path": "rootfs" }, "mounts": mounts }).to_string();
        Standing { document: spec::parse(text.as_bytes()).unwrap(), root: "/b/rootfs".into() }
    }

    #[test]
    fn a_mount_is_read_only_by_the_last_one_of_the_spec_at_its_whole_path() {
        let bind = |at: &str, options: &[&str]| json!({"destination": at, "type": "bind", "source": "/s", "options": options});
        let tmpfs = json!({"destination": "/m", "type": "tmpfs", "options": ["ro"]});
        let (open, read_only) = (&["rbind"][..], &["rbind", "ro"][..]);
        for (mounts, points, is) in [
            (json!([bind("/x/m", read_only)]), &["/b/rootfs/x/m"][..], true),
            (json!([bind("x//m/", &["rbind", "rro"])]), &["/b/rootfs/x/m"], true),
            // Another mount with the same last name.
            (json!([bind("/x/m", open), tmpfs]), &["/b/rootfs/x/m", "/b/rootfs/m"], false),
            (json!([bind("/x", open), tmpfs]), &["/b/rootfs/x/m", "/b/rootfs/m"], false),
            // The last of two decides.
            (
                json!([bind("/m", read_only), bind("/m", open)]),
                &["/b/rootfs/m", "/b/rootfs/m"],
                false,
            ),
            (
                json!([bind("/m", open), bind("/m", read_only)]),
                &["/b/rootfs/m", "/b/rootfs/m"],
                true,
            ),
            // `/x` is a link to `/` in the image.
            (json!([tmpfs, bind("/x/m", open)]), &["/b/rootfs/m", "/b/rootfs/m"], false),
            // Mounts that a bind brings stay writable.
            (json!([bind("/x", read_only)]), &["/b/rootfs/x/m", "/b/rootfs/x"], false),
            (json!([bind("/m", read_only)]), &["/b/rootfs2/m"], false),
            (json!([bind("/m", read_only)]), &["/m"], false),
            // `/d/a` is a link to `/c` and `/q/r/s/t` one to `/`: the volume covers `/d`.
            (
                json!([
                    bind("/d/a/m", read_only),
                    bind("/q/r/s/t/d", open),
                    bind("/q/r/s/t/d/a/m", open)
                ]),
                &["/b/rootfs/d/a/m", "/b/rootfs/c/m", "/b/rootfs/d"],
                false,
            ),
            // A volume that the spec names may have a link for a moment.
            (
                json!([bind("/d", open), bind("/d/a/m", read_only), bind("/q/d/a/m", open)]),
                &["/b/rootfs/d/a/m", "/b/rootfs/d/c/m", "/b/rootfs/d"],
                false,
            ),
        ] {
            let all: Vec<Line> = points.iter().map(|point| line(point)).collect();
            let found = standing(&mounts).makes_read_only(all.first().unwrap(), &all);
            assert_eq!(found, is, "{mounts} {points:?}");
        }
    }

    #[test]
    fn above_what_is_made_read_only_stand_the_root_and_a_sysfs_that_is_named_before() {
        let root = "7 6 0:50 / /b/rootfs rw - overlay o rw";
        let sysfs = "8 7 0:21 / /b/rootfs/sys ro - sysfs s rw";
        let cgroups = "9 8 0:26 / /b/rootfs/sys/fs/cgroup rw - cgroup2 c rw";
        let copy = "6 5 0:50 / /b/rootfs rw - overlay o rw";
        let volume = "8 7 0:30 / /b/rootfs rw - ext4 d rw";
        let on_sys = "8 7 0:30 / /b/rootfs/sys rw - ext4 d rw";
        let mount = |at: &str| json!({"destination": at, "type": "x", "options": ["ro"]});
        let (sys, fs, below) = (mount("/sys"), mount("/sys/fs"), mount("/sys/fs/cgroup"));
        for (mounts, lines, is) in [
            (json!([sys, below]), &[cgroups, copy, root, sysfs][..], true),
            (json!([below]), &[cgroups, root], true),
            // The image's `/sys/fs` is a link, which the second mount covers.
            (json!([below, sys]), &[cgroups, root, sysfs], false),
            (json!([mount("/q/sys"), below]), &[cgroups, root, sysfs], false),
            (json!([sys, below, sys]), &[cgroups, root, sysfs, sysfs], false),
            (json!([sys, fs, below]), &[cgroups, root, sysfs], false),
            (json!([sys, below]), &[cgroups, root, on_sys], false),
            // A volume covers the root.
            (json!([mount("/q"), below]), &[cgroups, root, volume], false),
        ] {
            let all: Vec<Line> = lines.iter().map(|text| Line::parse(text).unwrap()).collect();
            let found = standing(&mounts).makes_read_only(all.first().unwrap(), &all);
            assert_eq!(found, is, "{mounts} {lines:?}");
        }
    }

    #[test]
    fn the_root_is_known_where_the_spec_names_it_and_something_is_mounted_there() {
        let bundle = tempfile::tempdir().unwrap();
        let real = bundle.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("of/rootfs")).unwrap();
        std::os::unix::fs::symlink("of", real.join("link")).unwrap();
        let state = json!({ "id": "a", "bundle": real }).to_string();
        let state = HookState::parse(state.as_bytes()).unwrap();
        let root = line(real.join("of/rootfs").to_str().unwrap());
        let below = line(real.join("of/rootfs/dev/shm").to_str().unwrap());
        let all = [root.clone(), below.clone()];
        assert!(Standing::of(&state, &all).is_none(), "no spec");
        let spec = json!({ "root": { "path": "link/rootfs" } }).to_string();
        std::fs::write(real.join("config.json"), spec).unwrap();
        let found = Standing::of(&state, &all).unwrap();
        assert_eq!(found.place(&root).as_deref(), Some(Path::new("/")));
        assert_eq!(found.place(&below).as_deref(), Some(Path::new("/dev/shm")));
        assert_eq!(found.place(&line("/dev/shm")), None);
        assert!(Standing::of(&state, &[below]).is_none(), "nothing is mounted there");
    }
}
