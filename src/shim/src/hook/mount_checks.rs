//! Checks the mounts again in the container: the path of a source may have been made to lead
//! elsewhere since the runtime's spec was evaluated.

mod mount_points;

use std::cell::{LazyCell, OnceCell};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mpsgate_host::cgroup::{self, Membership};
use mpsgate_model::{Code, Refusal, printable};
use mpsgate_oci::hook_state::HookState;
use mpsgate_policy::{MountKind, Shm};

use self::mount_points::Standing;
use crate::facts::{Inode, inode};
use crate::mounts::info::{self, Line, Located, WRITABLE_CONTROLLERS};
use crate::mounts::{ENTRIES_MAX, OURS, walk, with_layer};

const ONLY_ROOTS: &str = "mount from a path that only root can change, or leave the mount out";
/// The directory of POSIX shared memory.
const SHM: &str = "/dev/shm";

/// The mounts of a container's init.
pub(super) struct Mounts {
    pid: u32,
    all: Vec<Line>,
    own: Vec<Line>,
    /// Mounts that are not the node's own.
    new: Vec<Line>,
    located: Vec<Located>,
    /// Read on first use.
    standing: OnceCell<Option<Standing>>,
}

impl Mounts {
    fn of(pid: u32) -> std::io::Result<Self> {
        let all = info::of(&pid.to_string())?;
        let own = info::of("self")?;
        let namespace = |of: &str| inode(Path::new(&format!("/proc/{of}/ns/mnt")));
        let shares_ours = namespace(&pid.to_string()) == namespace("self");
        let located: Vec<Located> =
            OURS.iter().filter_map(|dir| Located::of(Path::new(dir), &own)).collect();
        let new = info::new_ones(&all, &own, shares_ours, &located).into_iter().cloned().collect();
        Ok(Self { pid, all, own, new, located, standing: OnceCell::new() })
    }

    /// The mounts of a container with a grant, which starts only if all checks are possible.
    pub(super) fn of_granted(pid: u32) -> Result<Self, Refusal> {
        Self::of(pid).map_err(|error| {
            let sentence = format!("its mounts cannot be looked at: {error}");
            Refusal::new(Code::HookState, sentence, "create the container anew")
        })
    }

    /// For one container: the first state that is given counts.
    fn standing(&self, state: &HookState) -> Option<&Standing> {
        self.standing.get_or_init(|| Standing::of(state, &self.all)).as_ref()
    }

    /// What is mounted last at the container's `/dev/shm`, before the runtime makes its root the
    /// root. `servers`: device and inode of the MPS servers' `/dev/shm`, which is this process's,
    /// too.
    pub(super) fn shm(&self, state: &HookState, servers: Option<Inode>) -> Shm {
        let place = Path::new(SHM);
        let ours = Located::of(place, &self.own).filter(|_| inode(place) == servers);
        let Some(ours) = ours else { return Shm::Unknown };
        let standing = self.standing(state);
        let at = |line: &Line| standing.and_then(|standing| standing.place(line));
        let there = self.new.iter().rev().find(|line| at(line).is_some_and(|found| found == place));
        match there {
            Some(line) if ours.place.is_of(line) => Shm::Servers,
            Some(line) => Shm::Other(format!("a {} of its own", printable::value(&line.fs_type))),
            // A mount at another place has come there by a link of the image.
            None if self.new.iter().any(|line| ours.place.is_of(line)) => Shm::Servers,
            None => Shm::Other("no mount".to_owned()),
        }
    }

    /// The place of a mounted procfs of the node.
    pub(super) fn procfs_of_node(&self) -> Option<String> {
        let line = info::procfs_mounts::of_node(&self.new, &self.own)?;
        Some(line.point.display().to_string())
    }

    /// Refuses an overlay with a layer that counts, in the container or below it on the node.
    fn check_overlays(&self, counts: impl Fn(MountKind) -> bool) -> Result<(), Refusal> {
        let overlays: Vec<&Line> = self.new.iter().filter(|line| line.is_overlay()).collect();
        if overlays.is_empty() {
            return Ok(());
        }
        let with_above = counts(MountKind::Ancestor);
        if let Some(line) = with_layer(&overlays, counts) {
            return Err(layered(line));
        }
        self.overlay_of_ours(&overlays, with_above).map_or(Ok(()), |line| Err(exchanged(line)))
    }

    /// Of the container's overlays, one with a layer of mpsgate's directories, or with `with_above`
    /// of a directory above those. The overlay's line has the names from the mount's options, and
    /// not what these led to at that time, so the overlay's content is compared. The root is left
    /// out, because the engine has named its layers, and every container would cost a read of
    /// mpsgate's directories.
    fn overlay_of_ours<'a>(&self, overlays: &[&'a Line], with_above: bool) -> Option<&'a Line> {
        let mut overlays = overlays.iter().filter(|line| !line.is_on_itself(&self.all)).peekable();
        overlays.peek()?;
        let prints = Prints::of(OURS.iter().map(Path::new), with_above);
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        let at = |line: &Line| root.join(line.point.strip_prefix("/").unwrap_or(&line.point));
        overlays.find(|line| prints.are_in(&at(line))).copied()
    }

    /// Checks a container with a grant: of mpsgate's directories it may have only its own door, and
    /// of the cgroups only its own.
    pub(super) fn check_granted(
        &self,
        state: &HookState,
        pid: u32,
        client_dir: &str,
    ) -> Result<(), Refusal> {
        let mut ours = info::ours(&self.new, &self.all, &self.located);
        if let Some(client) = Located::of(Path::new(client_dir), &self.own) {
            // The runtime mounts it once: a second one comes from a source that was made to lead
            // there.
            let own = ours.iter().position(|line| client.place.is_of(line));
            own.map(|at| ours.remove(at));
        }
        if let Some(line) = ours.first() {
            return Err(exchanged(line));
        }
        // A mount outside of the container's root is the node's.
        let is_its = |line: &&Line| {
            self.standing(state).is_none_or(|standing| standing.place(line).is_some())
        };
        if let Some(line) = info::above_ours(&self.new, &self.located).into_iter().find(is_its) {
            return Err(exchanged(line));
        }
        if let Some(line) = info::sysfs_mounts::of_node(&self.new) {
            return Err(Refusal::new(
                Code::DeviceNode,
                format!(
                    "what stands at {} holds files of GPUs in sysfs, which its source did not show when it was looked at",
                    line.point.display()
                ),
                ONLY_ROOTS,
            ));
        }
        // Layers of mpsgate's directories, and of directories above.
        self.check_overlays(|_| true)?;
        self.check_cgroups(state, pid)
    }

    fn check_cgroups(&self, state: &HookState, pid: u32) -> Result<(), Refusal> {
        let own = LazyCell::new(|| cgroup::text_of(pid).unwrap_or_default());
        let becomes_read_only = |line: &Line| {
            self.standing(state).is_some_and(|standing| standing.makes_read_only(line, &self.all))
        };
        let is_open =
            |line: &&Line| controls(line) && !is_own(line, &own) && !becomes_read_only(line);
        match self.new.iter().find(is_open) {
            None => Ok(()),
            Some(line) => Err(Refusal::new(
                Code::Cgroup,
                format!(
                    "its mount at {} lets it write the node's cgroups, which its spec did not show",
                    line.point.display()
                ),
                ONLY_ROOTS,
            )),
        }
    }
}

/// Checks a container without a grant: none of mpsgate's directories may be mounted.
pub(super) fn check(pid: u32) -> Result<(), Refusal> {
    // A failed look stops no container.
    let Ok(mounts) = Mounts::of(pid) else { return Ok(()) };
    let ours = info::ours(&mounts.new, &mounts.all, &mounts.located);
    if let Some(line) = ours.first() {
        return Err(exchanged(line));
    }
    mounts.check_overlays(|kind| kind == MountKind::Ours)
}

/// The identity of a directory entry among others of its name. An overlay shows a layer's own
/// entries, and nobody can set the time of a change.
#[derive(Debug, PartialEq, Eq)]
struct Print {
    changed: (i64, i64),
    mode: u32,
}

impl Print {
    fn of(meta: &Metadata) -> Self {
        Self { changed: (meta.ctime(), meta.ctime_nsec()), mode: meta.mode() }
    }
}

/// The entries of mpsgate's directories, by their names.
struct Prints(HashMap<OsString, Vec<Print>>);

impl Prints {
    /// `with_above`: also the directories themselves, with those above.
    fn of<'a>(directories: impl Iterator<Item = &'a Path>, with_above: bool) -> Self {
        let mut prints: HashMap<OsString, Vec<Print>> = HashMap::new();
        let mut add = |name: OsString, meta: &Metadata| {
            prints.entry(name).or_default().push(Print::of(meta));
        };
        for directory in directories {
            walk(directory, |entry, meta| add(entry.file_name(), meta));
            for above in directory.ancestors().filter(|_| with_above) {
                if let (Some(name), Ok(meta)) = (above.file_name(), above.symlink_metadata()) {
                    add(name.to_owned(), &meta);
                }
            }
        }
        Self(prints)
    }

    /// Whether one of these entries is in a directory, too.
    fn are_in(&self, directory: &Path) -> bool {
        let Ok(entries) = std::fs::read_dir(directory) else { return false };
        entries.flatten().take(ENTRIES_MAX).any(|entry| {
            self.0.get(&entry.file_name()).is_some_and(|known| {
                entry.metadata().is_ok_and(|meta| known.contains(&Print::of(&meta)))
            })
        })
    }
}

fn exchanged(line: &Line) -> Refusal {
    Refusal::new(
        Code::MpsMount,
        format!(
            "what stands at {} is mpsgate's own, or holds it, which its source did not show when it was looked at",
            line.point.display()
        ),
        "mount from a path that only root can change (whoever can write a directory of it may have led it elsewhere), \
         or leave the mount out",
    )
}

fn layered(line: &Line) -> Refusal {
    Refusal::new(
        Code::MpsMount,
        format!(
            "the overlay at {} has a layer that is mpsgate's own, or holds it",
            line.point.display()
        ),
        "leave that layer out, also where the overlay was mounted on the node before",
    )
}

fn controls(line: &Line) -> bool {
    line.is_cgroup()
        && !line.read_only
        && (line.fs_type == "cgroup2" || line.has_any(&WRITABLE_CONTROLLERS))
}

/// Whether a mount shows the container's own cgroup, as in its init's `/proc/PID/cgroup`, and not
/// one above, by which the container would leave its own.
fn is_own(line: &Line, cgroups: &str) -> bool {
    cgroups.lines().filter_map(Membership::parse).any(|member| {
        let is_of_it = if line.fs_type == "cgroup2" {
            member.controllers.is_empty()
        } else {
            let all: Vec<&str> = member.controllers.split(',').collect();
            !member.controllers.is_empty() && line.has_any(&all)
        };
        let below = member.below().filter(|below| !below.as_os_str().is_empty());
        is_of_it && below.is_some_and(|below| line.root.starts_with(Path::new("/").join(below)))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    fn line(root: &str, fs_type: &str, options: &str) -> Line {
        let text = format!("1 0 0:26 {root} /b/rootfs/x rw - {fs_type} cgroup rw,{options}");
        Line::parse(&text).unwrap()
    }

    #[test]
    fn what_shows_an_entry_of_ours_is_known_and_a_copy_of_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, copy) = (dir.path().join("ours"), dir.path().join("copy"));
        for place in [&ours, &copy] {
            std::fs::create_dir_all(place.join("tokens")).unwrap();
        }
        std::fs::write(ours.join("tokens/key"), "k").unwrap();
        let prints = Prints::of([ours.as_path()].into_iter(), false);
        let print = |path: PathBuf| Print::of(&std::fs::metadata(path).unwrap());
        let is_same = |name: &str| print(copy.join(name)) == print(ours.join(name));
        std::fs::write(copy.join("tokens/key"), "k").unwrap();
        // Waits until the kernel's clock has moved on.
        while is_same("tokens") || is_same("tokens/key") {
            std::fs::remove_file(copy.join("tokens/key")).unwrap();
            std::fs::write(copy.join("tokens/key"), "k").unwrap();
        }
        assert!(prints.are_in(&ours) && prints.are_in(&ours.join("tokens")));
        assert!(!prints.are_in(&copy) && !prints.are_in(&copy.join("tokens")));
        assert!(!prints.are_in(dir.path()) && !prints.are_in(Path::new("/no/such")));
        // A directory above has the directory itself, or one above that.
        let with_above = Prints::of([ours.as_path()].into_iter(), true);
        assert!(with_above.are_in(dir.path()) && with_above.are_in(dir.path().parent().unwrap()));
        assert!(with_above.are_in(&ours) && !with_above.are_in(&copy));
    }

    #[test]
    fn what_holds_ours_is_refused_with_a_grant_where_it_stands_in_the_container() {
        let bundle = tempfile::tempdir().unwrap();
        let real = bundle.path().canonicalize().unwrap();
        let root = real.join("rootfs");
        std::fs::create_dir(&root).unwrap();
        let spec = r#"{"root": {"path": "rootfs"}, "mounts": []}"#;
        std::fs::write(real.join("config.json"), spec).unwrap();
        let state = serde_json::json!({ "id": "a", "bundle": real }).to_string();
        let state = HookState::parse(state.as_bytes()).unwrap();
        // The mount of the test's own directory contains it, as if that were mpsgate's.
        let own = info::of("self").unwrap();
        let located = Located::of(&real, &own).unwrap();
        let mut node = own.iter().find(|line| located.is_below(line)).unwrap().clone();
        "ext4".clone_into(&mut node.fs_type);
        let at = |point: PathBuf, shows: &str| {
            let mut line = node.clone();
            line.point = point;
            if !shows.is_empty() {
                line.root = shows.into();
            }
            line
        };
        let check = |lines: &[Line]| {
            let (all, new, located) = (lines.to_vec(), lines.to_vec(), vec![located.clone()]);
            let standing = OnceCell::new();
            let mounts = Mounts { pid: 0, all, own: own.clone(), new, located, standing };
            mounts.check_granted(&state, std::process::id(), "").map_err(|refusal| refusal.code)
        };
        let of_root = at(root.clone(), "/no/such/rootfs");
        let holds = at(root.join("m"), "");
        assert_eq!(check(&[of_root.clone(), holds.clone()]), Err(Code::MpsMount));
        assert_eq!(check(&[of_root.clone(), node.clone()]), Ok(()), "the node's, outside");
        assert_eq!(check(&[at(root.clone(), "")]), Err(Code::MpsMount), "the root itself");
        assert_eq!(check(&[holds]), Err(Code::MpsMount), "no root is known");
        let beside = at(root.join("m"), "/no/such/beside");
        assert_eq!(check(&[of_root, beside]), Ok(()));
    }

    #[test]
    fn an_overlay_is_refused_for_its_layers_and_any_other_is_not() {
        let check = |text: &str, counts: fn(MountKind) -> bool| {
            let new = vec![Line::parse(text).unwrap()];
            let (all, own, located) = (new.clone(), Vec::new(), Vec::new());
            let mounts = Mounts { pid: 0, all, own, new, located, standing: OnceCell::new() };
            mounts.check_overlays(counts).map_err(|refusal| refusal.code)
        };
        let of_ours: fn(MountKind) -> bool = |kind| kind == MountKind::Ours;
        // A path that is missing counts by its name.
        for (root, options) in [
            ("/", "lowerdir=/usr:/run/mpsgate/mps/99"),
            ("/", "lowerdir=/usr,upperdir=/run/mpsgate/mps/99,workdir=/w"),
            ("/mpsgate/mps/99", "lowerdir=/run"),
        ] {
            let text = format!("9 8 0:90 {root} /no/such/x rw - overlay o rw,{options}");
            assert_eq!(check(&text, of_ours), Err(Code::MpsMount), "{root} {options}");
            assert_eq!(check(&text, |_| true), Err(Code::MpsMount), "{root} {options}");
        }
        for (fs_type, options) in [
            ("overlay", "lowerdir=/usr:/usr/bin"),
            ("overlay", "lowerdir=l/AB:l/CD,upperdir=x/diff,workdir=x/work"),
            ("overlay", "lowerdir=/no/such/1/fs:/no/such/2/f"),
            ("tmpfs", "lowerdir=/run/mpsgate/mps/99"),
        ] {
            let text = format!("9 8 0:90 / /no/such/x rw - {fs_type} o rw,{options}");
            assert_eq!(check(&text, |_| true), Ok(()), "{fs_type} {options}");
        }
    }

    #[test]
    fn a_container_may_write_its_own_cgroup_and_named_hierarchies() {
        let v1 = "9:memory:/docker/a\n5:devices:/docker/a\n1:name=systemd:/docker/a\n0::/b\n";
        let is_open = |line: &Line, cgroups: &str| controls(line) && !is_own(line, cgroups);
        for (root, options) in
            [("/", "devices"), ("/docker", "cpu,memory"), ("/docker/ab", "freezer")]
        {
            assert!(is_open(&line(root, "cgroup", options), v1), "{root} {options}");
        }
        for (root, options) in [
            ("/docker/a", "devices"),
            ("/docker/a/below", "memory"),
            ("/", "xattr,name=systemd"),
            ("/", "cpu"),
        ] {
            assert!(!is_open(&line(root, "cgroup", options), v1), "{root} {options}");
        }
        // Under systemd crun puts the processes into a child of the container's scope.
        let v2 = "0::/m.slice/libpod-1.scope/container\n";
        for root in ["/", "/m.slice", "/m.slice/libpod-1.scope"] {
            assert!(is_open(&line(root, "cgroup2", ""), v2), "{root}");
        }
        for root in ["/m.slice/libpod-1.scope/container", "/m.slice/libpod-1.scope/container/x"] {
            assert!(!is_open(&line(root, "cgroup2", ""), v2), "{root}");
        }
        assert!(is_open(&line("/", "cgroup2", ""), "0::/\n"), "no cgroup of its own");
        assert!(is_open(&line("/../x", "cgroup2", ""), "0::/../x\n"), "outside our namespace");
        assert!(is_open(&line("/\u{fffd}", "cgroup2", ""), "0::/\u{fffd}\n"), "no text");
    }
}
