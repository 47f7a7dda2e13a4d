//! Identifies the sources of bind mounts and the layers of overlays by device and inode, because
//! names can be aliases.
//!
//! A container without a bind costs nothing, one with binds a handful of system calls for each.

pub(crate) mod info;

use std::collections::HashSet;
use std::fs::{DirEntry, Metadata};
use std::path::{Component, Path, PathBuf};

use mpsgate_config::paths;
use mpsgate_host::exchange::Exchange;
use mpsgate_oci::spec::{Mount, MountEntry, Namespace, ReadOnly, View};
use mpsgate_policy::{MountFact, MountKind, ROOT, Reach};
use nix::sys::statfs::{
    CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, SYSFS_MAGIC, statfs,
};

use self::info::{Layer, Line, Own, WRITABLE_CONTROLLERS};
use crate::facts::{Inode, inode};

/// mpsgate's directories, which no container may mount, with everything below them.
pub(crate) const OURS: [&str; 3] = [paths::RUN_DIR, paths::STATE_DIR, "/etc/mpsgate"];
/// The most entries of them that are looked at: 16 cards with 60 grants each have about 4,100,
/// three for each door.
pub(crate) const ENTRIES_MAX: usize = 16_384;
/// Where the hierarchies of cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";
/// The kernel stacks at most this many overlays. Each has at most 500 layers.
const STACKED_MAX: usize = 2;

/// The bind mounts and layers that need a closer look, by their sources alone.
pub(crate) fn seen<'a>(binds: impl Iterator<Item = Mount<'a>>, bundle: &Path) -> Vec<MountFact> {
    let own = Own::default();
    let mut look = Look::new(&own);
    let binds: Vec<Mount<'a>> = binds.collect();
    let at_root = || binds.iter().filter(|mount| mount.destination == ROOT);
    let root = at_root().next().map(|root| root.source);
    let is_alone = at_root().count() == 1;
    let fact = |mount: &Mount<'_>| {
        let is_root = is_alone && mount.destination == ROOT;
        let kind = layer_candidates(mount.source, bundle, root).iter().find_map(|path| {
            let source = Source::at(path);
            look.of_source(&source, is_root)
                .or_else(|| look.cgroups(&source).map(MountKind::Cgroups))
                .or_else(|| look.card_files(&source))
                .or_else(|| look.can_exchange(path, mount.destination))
        })?;
        let (source, destination) = (mount.source.to_owned(), mount.destination.to_owned());
        Some(MountFact { source, destination, kind })
    };
    binds.iter().filter(|mount| !mount.source.is_empty()).filter_map(fact).collect()
}

/// The facts about a container's mounts.
pub(crate) fn facts(view: View<'_>, bundle: &Path, own: &Own) -> Vec<MountFact> {
    let mut look = Look::new(own);
    let mut facts = Vec::new();
    let mounts = view.mount_entries().map(|mount| (mount, false));
    for (mount, is_root) in mounts.chain(view.root().map(|root| (root, true))) {
        let mut add = |source: &str, kind| {
            facts.push(MountFact {
                source: source.to_owned(),
                destination: mount.destination.to_owned(),
                kind,
            });
        };
        if !mount.is_bind() {
            if shows_all_cgroups(&mount, view) {
                add(mount.source, MountKind::Cgroups(Reach::Itself));
            }
            // The kernel makes no writable layer of the file systems of cgroups.
            let layers = mount.layers();
            let root = view.root().map(|root| root.source);
            let candidates = layers.iter().flat_map(|layer| layer_candidates(layer, bundle, root));
            let candidates: Vec<PathBuf> = candidates.collect();
            let found = candidates
                .iter()
                .filter_map(|path| Some((path, look.of_source(&Source::at(path), is_root)?)));
            // Of several layers one of mpsgate's counts.
            if let Some((path, kind)) = found.max_by_key(|(_, kind)| *kind == MountKind::Ours) {
                add(&path.to_string_lossy(), kind);
            }
            if let Some(kind) = look.exchangeable(&candidates, mount.destination) {
                add(mount.source, kind);
            }
            continue;
        }
        if mount.source.is_empty() {
            continue;
        }
        let candidates = candidates(mount.source, bundle);
        let sources: Vec<Source<'_>> = candidates.iter().map(|path| Source::at(path)).collect();
        if let Some(kind) = sources.iter().find_map(|source| look.of_source(source, is_root)) {
            add(mount.source, kind);
        }
        if let Some(reach) = sources.iter().find_map(|source| look.writable(source, &mount)) {
            add(mount.source, MountKind::Cgroups(reach));
        }
        if candidates.iter().any(|path| look.shows_processes(path, &mount)) {
            add(mount.source, MountKind::Processes);
        }
        if let Some(kind) = look.exchangeable(&candidates, mount.destination) {
            add(mount.source, kind);
        }
    }
    facts
}

/// The first overlay in a container with a layer that counts, by the layers' names in their lines.
/// A layer that is gone, or has no whole name, does not count, with a request either: on a node
/// that is a container itself no layer of `/` is found. The overlay's content is compared as well.
pub(crate) fn with_layer<'a>(
    overlays: &[&'a Line],
    counts: impl Fn(MountKind) -> bool,
) -> Option<&'a Line> {
    let own = Own::default();
    let mut look = Look::new(&own);
    let mut has = |line: &Line| look.of_layers(line.layers(Path::new(""))).is_some_and(&counts);
    overlays.iter().copied().find(|line| has(line))
}

/// The paths that runtimes mount for a source. The kernel resolves an absolute path. A relative one
/// begins at the bundle; runc removes `..` from its text, and crun leaves that to the kernel.
pub(crate) fn candidates(source: &str, bundle: &Path) -> Vec<PathBuf> {
    let source = Path::new(source);
    if source.is_absolute() {
        return vec![source.to_owned()];
    }
    let joined = bundle.join(source);
    let mut cleaned = PathBuf::new();
    for part in joined.components() {
        match part {
            Component::ParentDir => {
                cleaned.pop();
            }
            Component::CurDir => {}
            other => cleaned.push(other),
        }
    }
    if cleaned == joined { vec![joined] } else { vec![joined, cleaned] }
}

/// The paths that a layer of an overlay may be. A relative one begins at the working directory of
/// the mount: the root file system in runc, the bundle in crun.
pub(crate) fn layer_candidates(layer: &str, bundle: &Path, root: Option<&str>) -> Vec<PathBuf> {
    let mut found = candidates(layer, bundle);
    if let Some(root) = root.filter(|_| Path::new(layer).is_relative()) {
        found.push(bundle.join(root).join(layer));
    }
    found
}

/// Whether a mount of type cgroup, not a bind, shows all cgroups. On v1 runtimes show the container
/// its own part, as does a cgroup namespace; without one v2 shows the node's.
fn shows_all_cgroups(mount: &MountEntry<'_>, view: View<'_>) -> bool {
    let unified = || is_on(Path::new(CGROUPS), CGROUP2_SUPER_MAGIC);
    let is_v2 = match mount.kind {
        "cgroup" => unified(),
        "cgroup2" => true,
        _ => return false,
    };
    is_v2 && mount.read_only() == ReadOnly::No && view.cgroup_namespace() != Namespace::New
}

fn is_on(path: &Path, magic: FsType) -> bool {
    fs_type(path) == Some(magic)
}

fn fs_type(path: &Path) -> Option<FsType> {
    statfs(path).ok().map(|found| found.filesystem_type())
}

/// The kernel's facts about a mount's source. They are read once for all checks of [`Look`],
/// because each bind of each container costs them.
struct Source<'a> {
    path: &'a Path,
    inode: Option<Inode>,
    fs_type: Option<FsType>,
}

impl<'a> Source<'a> {
    fn at(path: &'a Path) -> Self {
        Self { path, inode: inode(path), fs_type: fs_type(path) }
    }

    fn is_hierarchy(&self) -> bool {
        matches!(self.fs_type, Some(CGROUP_SUPER_MAGIC | CGROUP2_SUPER_MAGIC))
    }
}

/// The facts of the node, read for the first bind that needs them.
struct Look<'a> {
    ours: Vec<(&'static str, Inode)>,
    below: Vec<Option<HashSet<Inode>>>,
    parents: Option<Vec<Inode>>,
    /// The directory of the hierarchies, and those above it.
    cgroups: Option<Vec<Option<Inode>>>,
    own: &'a Own,
    exchange: Exchange,
}

impl<'a> Look<'a> {
    fn new(own: &'a Own) -> Self {
        // A node without mpsgate's daemon has none of them.
        let ours = OURS.iter().filter_map(|dir| Some((*dir, inode(Path::new(dir))?)));
        let ours: Vec<_> = ours.collect();
        Self {
            below: vec![None; ours.len()],
            ours,
            parents: None,
            cgroups: None,
            own,
            exchange: Exchange::default(),
        }
    }

    /// The kind of a source, and of the layers behind it if the node has an overlay there, as a
    /// volume's driver may. A root is not checked for layers: nearly every one is an overlay of its
    /// engine, and each container would cost a read of the node's table of mounts. The hook has
    /// that table and checks.
    fn of_source(&mut self, source: &Source<'_>, is_root: bool) -> Option<MountKind> {
        let found = self.of(source.path, source.inode);
        if found.is_some() || is_root {
            return found;
        }
        let layers = self.layers_at(source.path, source.fs_type);
        self.of_layers(layers)
    }

    /// The kind of an overlay's layers, and of the layers behind those that are on an overlay
    /// themselves. mpsgate's directories count before directories above them.
    fn of_layers(&mut self, mut layers: Vec<Layer>) -> Option<MountKind> {
        let mut found = None;
        for _ in 0..STACKED_MAX {
            let mut below = Vec::new();
            for layer in layers {
                match self.of_layer(&layer) {
                    Some(MountKind::Ours) => return Some(MountKind::Ours),
                    kind => found = found.or(kind),
                }
                let shown = layer.shown();
                below.extend(self.layers_at(&shown, fs_type(&shown)));
            }
            layers = below;
        }
        found
    }

    fn of_layer(&mut self, layer: &Layer) -> Option<MountKind> {
        let top = self.of(&layer.top, inode(&layer.top));
        // Everything shown of mpsgate's directories counts. Of a directory above it depends on the
        // part that is shown.
        if top == Some(MountKind::Ours) || layer.rest.as_os_str().is_empty() {
            return top;
        }
        let shown = layer.shown();
        self.of(&shown, inode(&shown)).filter(|_| layer.is_in_place())
    }

    /// The layers behind a path. The table of mounts is read only if the path is on an overlay.
    fn layers_at(&self, path: &Path, on: Option<FsType>) -> Vec<Layer> {
        match on == Some(OVERLAYFS_SUPER_MAGIC) {
            true => info::layers_at(path, self.own.lines()),
            false => Vec::new(),
        }
    }

    /// Whether the path is one of mpsgate's directories, or a directory above one, under whatever
    /// name. A missing path counts by its name: a bundle that is created again still names the door
    /// of its last grant.
    fn of(&mut self, path: &Path, source: Option<Inode>) -> Option<MountKind> {
        if source.is_none() && path.starts_with(paths::RUN_DIR) {
            return Some(MountKind::Ours);
        }
        let source = source.filter(|_| !self.ours.is_empty())?;
        let is_ours = self.ours.iter().zip(&mut self.below).any(|((dir, (dev, ino)), below)| {
            // Everything below has the directory's device; only then the tree is read.
            source.0 == *dev
                && (source.1 == *ino
                    || below.get_or_insert_with(|| tree(Path::new(dir))).contains(&source))
        });
        if is_ours {
            return Some(MountKind::Ours);
        }
        let ours = &self.ours;
        let parents = self.parents.get_or_insert_with(|| {
            let parents = ours.iter().flat_map(|(dir, _)| Path::new(dir).ancestors().skip(1));
            parents.filter_map(inode).collect()
        });
        parents.contains(&source).then_some(MountKind::Ancestor)
    }

    /// Whether a source can be made to lead elsewhere. Roots are not checked: an engine's root may
    /// be in a directory of its container's user, and then every container would get the hook. A
    /// container with a grant has the hook anyway.
    fn can_exchange(&mut self, path: &Path, destination: &str) -> Option<MountKind> {
        let can = destination != ROOT && self.exchange.can(path);
        can.then_some(MountKind::Exchangeable)
    }

    /// The same for several paths. A missing hook program would stop the container.
    fn exchangeable(&mut self, sources: &[PathBuf], destination: &str) -> Option<MountKind> {
        let kind = sources.iter().find_map(|path| self.can_exchange(path, destination));
        kind.filter(|_| Path::new(paths::HOOK).exists())
    }

    /// How a writable bind reaches the cgroups of others.
    fn writable(&mut self, source: &Source<'_>, mount: &MountEntry<'_>) -> Option<Reach> {
        match (self.cgroups(source)?, mount.read_only()) {
            (_, ReadOnly::All) => None,
            // A hierarchy itself has no hierarchy below.
            (Reach::Itself, ReadOnly::Top) if source.is_hierarchy() => None,
            (Reach::Itself, _) if source.is_hierarchy() => {
                self.controls(source).then_some(Reach::Itself)
            }
            _ if !mount.is_recursive() => None,
            (Reach::Itself, _) => Some(Reach::Itself),
            (_, ReadOnly::Top) => Some(Reach::BelowReadOnly),
            _ => Some(Reach::Below),
        }
    }

    /// Whether a bind shows the node's processes.
    fn shows_processes(&self, path: &Path, mount: &MountEntry<'_>) -> bool {
        info::procfs_mounts::are_shown(path, mount.is_recursive(), || self.own.lines())
    }

    /// Whether a source shows files of a GPU in sysfs, managed or not. A source with a sysfs below
    /// it matters only with a request.
    fn card_files(&self, source: &Source<'_>) -> Option<MountKind> {
        let any = || info::sysfs_mounts::of_gpus(|_| true);
        let shows = source.fs_type == Some(SYSFS_MAGIC)
            && info::sysfs_mounts::are_at(source.path, any, || self.own.lines());
        shows.then_some(MountKind::CardFiles { read_only: false })
    }

    /// Whether a source is on a hierarchy of cgroups, or above one. A named hierarchy of v1
    /// (systemd's) counts here.
    fn cgroups(&mut self, source: &Source<'_>) -> Option<Reach> {
        if source.is_hierarchy() {
            return Some(Reach::Itself);
        }
        let from_above =
            self.cgroups.get_or_insert_with(|| Path::new(CGROUPS).ancestors().map(inode).collect());
        match from_above.iter().position(|found| found.is_some() && *found == source.inode)? {
            0 => Some(Reach::Itself),
            _ => Some(Reach::Below),
        }
    }

    /// Whether the hierarchy of a path controls devices, memory or freezing. An unknown hierarchy
    /// counts as one that does.
    fn controls(&self, source: &Source<'_>) -> bool {
        let device = source.inode.map(|(dev, _)| dev);
        let line =
            self.own.lines().iter().find(|line| line.is_cgroup() && Some(line.device) == device);
        line.is_none_or(|line| line.fs_type == "cgroup2" || line.has_any(&WRITABLE_CONTROLLERS))
    }
}

/// Everything below one of mpsgate's directories.
fn tree(root: &Path) -> HashSet<Inode> {
    use std::os::unix::fs::MetadataExt;
    let mut found = HashSet::new();
    walk(root, |_, meta| {
        found.insert((meta.dev(), meta.ino()));
    });
    found
}

/// Calls `see` for everything below one of mpsgate's directories.
pub(crate) fn walk(root: &Path, mut see: impl FnMut(&DirEntry, &Metadata)) {
    let (mut open, mut seen) = (vec![root.to_owned()], 0);
    while let Some(directory) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            see(&entry, &meta);
            seen += 1;
            if meta.is_dir() && seen < ENTRIES_MAX {
                open.push(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_oci::spec::Shows;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_parent_of_ours_is_found_under_any_name_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b/c");
        std::fs::create_dir_all(&deep).unwrap();
        let alias = deep.join("link");
        std::os::unix::fs::symlink("/run", &alias).unwrap();
        let own = Own::default();
        let mut look = Look::new(&own);
        look.ours = vec![(paths::RUN_DIR, (0, 0))];
        look.below = vec![None];
        for path in ["/", "/run", "/proc/1/../../run/", alias.to_str().unwrap()] {
            let path = Path::new(path);
            assert_eq!(look.of(path, inode(path)), Some(MountKind::Ancestor), "{path:?}");
        }
        for path in ["/proc", deep.to_str().unwrap(), "/no/such"] {
            let path = Path::new(path);
            assert_eq!(look.of(path, inode(path)), None, "{path:?}");
        }
    }

    #[test]
    fn a_door_that_is_gone_is_ours_by_its_name() {
        let own = Own::default();
        let mut look = Look::new(&own);
        for (path, kind) in [
            ("/run/mpsgate/mps/99/clients/0123456789abcdef0123456789abcdef", Some(MountKind::Ours)),
            ("/run/mpsgate-other/mps/99", None),
            ("mpsgate/mps/99", None),
        ] {
            assert_eq!(look.of(Path::new(path), None), kind, "{path}");
        }
    }

    #[test]
    fn a_relative_source_begins_at_the_bundle() {
        let of = |source| candidates(source, Path::new("/run/b/x"));
        assert_eq!(of("/etc/../run"), [PathBuf::from("/etc/../run")], "the kernel's to resolve");
        assert_eq!(of("data"), [PathBuf::from("/run/b/x/data")]);
        let both = [PathBuf::from("/run/b/x/l/../../../m"), PathBuf::from("/run/m")];
        assert_eq!(of("l/../../../m"), both);
    }

    #[test]
    fn a_root_is_a_mount_with_all_below_under_whatever_name() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = dir.path().join("b");
        std::fs::create_dir_all(bundle.join("rootfs/etc")).unwrap();
        std::os::unix::fs::symlink("/", bundle.join("link")).unwrap();
        let kinds = |root: serde_json::Value| -> [Vec<MountKind>; 2] {
            let spec = json!({ "root": root });
            let view = View::new(&spec);
            let roots = view.root();
            let shown = roots.iter().map(|root| Mount {
                destination: root.destination,
                source: root.source,
                shows: Shows::Source,
            });
            [seen(shown, &bundle), facts(view, &bundle, &Own::default())]
                .map(|facts| facts.into_iter().map(|fact| fact.kind).collect())
        };
        // An engine's snapshot, and values that are not paths.
        for path in [json!("rootfs"), json!(bundle.join("rootfs")), json!(""), json!(7)] {
            assert_eq!(kinds(json!({ "path": path })), [vec![], vec![]], "{path}");
        }
        if !Path::new(CGROUPS).exists() {
            mpsgate_testing::skip!("needs cgroups");
        }
        for path in ["/sys", "link/sys", "../../../../../../../../sys"] {
            let [seen, facts] = kinds(json!({ "path": path }));
            assert_eq!(seen, [MountKind::Cgroups(Reach::Below)], "{path}");
            assert_eq!(facts, [MountKind::Cgroups(Reach::Below)], "{path}");
            let [_, facts] = kinds(json!({ "path": path, "readonly": true }));
            assert_eq!(facts, [MountKind::Cgroups(Reach::BelowReadOnly)], "{path}");
        }
    }

    #[test]
    fn the_layers_of_an_overlay_are_evaluated_as_binds_are() {
        let dir = tempfile::tempdir().unwrap();
        let bundle = dir.path().canonicalize().unwrap().join("b");
        std::fs::create_dir_all(bundle.join("rootfs/etc")).unwrap();
        let kinds = |kind: &str, options: &[String]| -> Vec<MountKind> {
            let mount =
                json!({"destination": "/x", "type": kind, "source": "overlay", "options": options});
            let spec = json!({ "root": { "path": "rootfs" }, "mounts": [mount] });
            let facts = facts(View::new(&spec), &bundle, &Own::default());
            let kinds = facts.into_iter().map(|fact| fact.kind);
            kinds.filter(|kind| *kind != MountKind::Exchangeable).collect()
        };
        let overlay = |option: &str| kinds("overlay", &[option.to_owned()]);
        let ours = vec![MountKind::Ours];
        // A missing path counts by its name.
        for option in [
            "lowerdir=/run/mpsgate/mps/99:/etc",
            "lowerdir=/etc:/run/mpsgate/mps/99",
            "lowerdir=/etc::/run/mpsgate/mps/99",
            "lowerdir=/etc,upperdir=/run/mpsgate/mps/99,workdir=/w",
            "lowerdir+=/run/mpsgate/mps/99",
            "datadir+=/run/mpsgate/mps/99",
            r"lowerdir=/etc:/run/mps\gate/mps/99",
        ] {
            assert_eq!(overlay(option), ours, "{option}");
        }
        let mut many: Vec<String> =
            (0..499).map(|number| format!("lowerdir+=/etc/{number}")).collect();
        many.push("lowerdir+=/run/mpsgate/mps/99".to_owned());
        assert_eq!(kinds("overlay", &many), ours);
        let below = |layer| layer_candidates(layer, Path::new("/b"), Some("rootfs"));
        assert_eq!(below("x"), [PathBuf::from("/b/x"), PathBuf::from("/b/rootfs/x")]);
        assert_eq!(below("/x"), [PathBuf::from("/x")]);
        for option in
            ["lowerdir=/usr:/usr/bin", "workdir=/run/mpsgate/mps/99", "lowerdir=/run/mpsgate2"]
        {
            assert_eq!(overlay(option), [], "{option}");
        }
        assert_eq!(kinds("tmpfs", &["lowerdir=/run/mpsgate/mps/99".to_owned()]), []);
    }

    #[test]
    fn an_overlay_in_a_container_is_what_its_layers_are() {
        let dir = tempfile::tempdir().unwrap();
        let low = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("/run", low.join("link")).unwrap();
        let of = |root: &str, options: &str| {
            let text = format!("9 8 0:90 {root} /b/rootfs/x rw - overlay overlay rw,{options}");
            let own = Own::default();
            let mut look = Look::new(&own);
            look.ours = vec![(paths::RUN_DIR, (0, 0))];
            look.below = vec![None];
            look.of_layers(Line::parse(&text).unwrap().layers(Path::new("")))
        };
        let linked = format!("lowerdir={}", low.display());
        let (ours, above) = (Some(MountKind::Ours), Some(MountKind::Ancestor));
        for (root, options, expected) in [
            // A missing path counts by its name.
            ("/", "lowerdir=/usr:/run/mpsgate/mps/99", ours),
            ("/", "lowerdir=/usr,upperdir=/run/mpsgate/mps/99,workdir=/w", ours),
            ("/", "lowerdir=/run:/run/mpsgate/mps/99", ours),
            ("/mpsgate/mps/99", "lowerdir=/usr:/run", ours),
            ("/mps/99", "lowerdir=/run/mpsgate", ours),
            ("/", "lowerdir=/usr:/run", above),
            ("/run", "lowerdir=/", above),
            // Another part of a directory above, and the target of a link in a layer.
            ("/no-such", "lowerdir=/run", None),
            ("/link", linked.as_str(), None),
            ("/", "lowerdir=/usr:/usr/bin,workdir=/run/mpsgate/mps/99", None),
            ("/", "lowerdir=/usr,upperdir=/run/mpsgate2", None),
            // An engine's layer, and layers without a place, gone, or cut off.
            ("/", "lowerdir=l/AB:l/CD,upperdir=x/diff", None),
            ("/", "lowerdir=/no/such/1/fs:/no/such/2/f", None),
        ] {
            assert_eq!(of(root, options), expected, "{root} {options}");
        }
    }

    #[test]
    fn the_tree_of_a_directory_knows_aliases_by_inode() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("mps/0/pipe");
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join("control"), "").unwrap();
        let alias = dir.path().join("alias");
        std::os::unix::fs::symlink(&deep, &alias).unwrap();
        let tree = tree(dir.path());
        assert!(tree.contains(&inode(&alias).unwrap()));
        assert!(tree.contains(&inode(&alias.join("control")).unwrap()));
        assert!(!tree.contains(&inode(Path::new("/")).unwrap()));
    }

    #[test]
    fn what_holds_the_cgroups_is_found_where_it_can_be_written() {
        if !Path::new(CGROUPS).exists() {
            mpsgate_testing::skip!("needs cgroups");
        }
        let reach = |source: &str, options: &[&str]| {
            let mount = json!({"destination": "/x", "source": source, "options": options});
            let spec = json!({ "mounts": [mount] });
            let facts = facts(View::new(&spec), Path::new("/"), &Own::default());
            facts.iter().find_map(|fact| match fact.kind {
                MountKind::Cgroups(reach) => Some(reach),
                _ => None,
            })
        };
        for above in ["/sys/fs", "/sys", "/", "/sys/fs/cgroup/../../."] {
            assert_eq!(reach(above, &["rbind"]), Some(Reach::Below), "{above}");
            assert_eq!(reach(above, &["rbind", "ro"]), Some(Reach::BelowReadOnly), "{above}");
            for none in [&["bind"][..], &["rbind", "rro"], &["bind", "ro"]] {
                assert_eq!(reach(above, none), None, "{above} {none:?}");
            }
        }
        assert_eq!(reach(CGROUPS, &["rbind", "rw"]), Some(Reach::Itself));
        assert_eq!(reach(CGROUPS, &["rbind", "rro"]), None);
        for other in ["/etc", "/sys/kernel", "/proc"] {
            assert_eq!(reach(other, &["rbind"]), None, "{other}");
        }
    }
}
