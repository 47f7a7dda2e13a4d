//! Facts for a decision that a spec alone does not hold: what its mounts are, in which IPC
//! namespace it will live, what the daemon has written about the node.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use mpsgate_api::{Engine, FILES_FORMAT, NodeSnapshot};
use mpsgate_config::{Config, Manage, paths};
use mpsgate_oci::argv::Invocation;
use mpsgate_oci::spec::{IpcNamespace, Mount, View};
use mpsgate_policy::{Cards, Ipc, Majors, MountFact, MountKind, Node, NodeCard};
use nix::fcntl::OFlag;

/// Directories of ours that no container may mount, with everything below them.
const OURS: [&str; 3] = [paths::RUN_DIR, paths::STATE_DIR, "/etc/mpsgate"];
/// Entries of ours that are looked at: 16 cards have about 160.
const ENTRIES_MAX: usize = 4096;
/// Largest snapshot, in bytes.
const SNAPSHOT_MAX: u64 = 1 << 20;

type Inode = (u64, u64);

fn inode(path: &Path) -> Option<Inode> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Which bind mounts touch our directories, by device and inode: names can be aliases.
pub(crate) fn mounts<'a>(mounts: impl Iterator<Item = Mount<'a>>) -> Vec<MountFact> {
    let mut facts = Vec::new();
    // One stat for each of our directories; a node without mpsgate's daemon has none.
    let ours: Vec<(&str, Inode)> =
        OURS.iter().filter_map(|dir| Some((*dir, inode(Path::new(dir))?))).collect();
    if ours.is_empty() {
        return facts;
    }
    let mut below: Vec<Option<HashSet<Inode>>> = vec![None; ours.len()];
    for mount in mounts.filter(|m| m.is_bind && !m.source.is_empty()) {
        let Some(source) = inode(Path::new(mount.source)) else { continue };
        let is_ours = ours.iter().zip(&mut below).any(|((dir, (dev, ino)), below)| {
            // What lies below has the directory's device; only then is the tree read.
            source.0 == *dev
                && (source.1 == *ino
                    || below.get_or_insert_with(|| tree(Path::new(dir))).contains(&source))
        });
        let kind = if is_ours {
            MountKind::Ours
        } else if is_ancestor(Path::new(mount.source), source, &ours) {
            MountKind::Ancestor
        } else {
            continue;
        };
        facts.push(MountFact {
            source: mount.source.to_owned(),
            destination: mount.destination.to_owned(),
            kind,
        });
    }
    facts
}

/// Everything below a directory of ours.
fn tree(root: &Path) -> HashSet<Inode> {
    let mut found = HashSet::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            found.insert((meta.dev(), meta.ino()));
            if meta.is_dir() && found.len() < ENTRIES_MAX {
                open.push(entry.path());
            }
        }
    }
    found
}

/// Whether a source holds one of our directories. Compared by inode with their few parents; a deep
/// source path cannot be one, which spares most mounts the stats.
fn is_ancestor(path: &Path, source: Inode, ours: &[(&str, Inode)]) -> bool {
    let deepest = OURS.iter().map(|dir| Path::new(dir).components().count()).max();
    if path.components().filter(|c| matches!(c, Component::Normal(_))).count()
        > deepest.unwrap_or(0)
    {
        return false;
    }
    ours.iter()
        .flat_map(|(dir, _)| Path::new(dir).ancestors().skip(1))
        .any(|parent| inode(parent) == Some(source))
}

/// The IPC namespace that a container of this spec will have.
pub(crate) fn ipc(view: View<'_>) -> Ipc {
    let path = match view.ipc_namespace() {
        IpcNamespace::New => return Ipc::New,
        IpcNamespace::Callers => "/proc/self/ns/ipc",
        IpcNamespace::At(path) => path,
    };
    match std::fs::metadata(path) {
        Ok(meta) => Ipc::Inode(meta.ino()),
        Err(error) => Ipc::Unreadable(format!("{path}: {error}")),
    }
}

/// What the daemon wrote about the node, and whether a kubelet runs there.
pub(crate) fn node(config: &Config) -> (Node, bool) {
    match snapshot() {
        Some(snapshot) => {
            let mut majors = Majors::default();
            for (name, major) in &snapshot.majors {
                majors.insert(name, *major);
            }
            let cards = snapshot.cards.into_iter().map(|card| NodeCard {
                uuid: card.uuid,
                index: card.index,
                minor: card.minor,
                managed: card.managed,
            });
            let node = Node {
                cards: Cards::Known(cards.collect()),
                majors,
                ipc_inode: Some(snapshot.ipc_inode),
                swarm_resources: snapshot.swarm_resources,
            };
            (node, snapshot.kubelet)
        }
        None => (without_daemon(config), false),
    }
}

/// A node whose daemon has not spoken since it booted. After installation no card is managed, and
/// then nothing may change for anybody; else every card counts as managed.
fn without_daemon(config: &Config) -> Node {
    let mut majors = Majors::default();
    for line in std::fs::read_to_string("/proc/devices").unwrap_or_default().lines() {
        if line.starts_with("Block") {
            break;
        }
        if let Some((major, name)) = line.trim().split_once(' ')
            && let Ok(major) = major.parse()
        {
            majors.insert(name, major);
        }
    }
    let enabled = std::fs::read(Path::new(paths::STATE_DIR).join("managed.json"));
    let never_enabled = match enabled {
        Ok(text) => !text.windows(4).any(|w| w == b"GPU-"),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    let none_configured = matches!(&config.gpus.manage, Manage::Uuids(uuids) if uuids.is_empty());
    let cards = if never_enabled && none_configured {
        Cards::Known(Vec::new())
    } else {
        Cards::AssumeManaged
    };
    Node { cards, majors, ..Node::unknown() }
}

fn snapshot() -> Option<NodeSnapshot> {
    let bytes = read_own(Path::new(paths::NODE_SNAPSHOT), SNAPSHOT_MAX)?;
    let snapshot: NodeSnapshot = serde_json::from_slice(&bytes).ok()?;
    (snapshot.format == FILES_FORMAT).then_some(snapshot)
}

/// Reads a file that only root could have written; `None` for any other.
pub(crate) fn read_own(path: &Path, limit: u64) -> Option<Vec<u8>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file: File = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).ok()?;
    let meta = file.metadata().ok()?;
    let own = nix::unistd::geteuid().as_raw();
    if !meta.is_file() || meta.mode() & 0o022 != 0 || (meta.uid() != 0 && meta.uid() != own) {
        return None;
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len().min(limit)).ok()? + 1);
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Whose words a request is, by what the engine itself sets: a kubelet's containerd keeps its
/// containers in the namespace `k8s.io`.
pub(crate) fn engine(invocation: &Invocation) -> Engine {
    let names_kubernetes = |path: &Option<PathBuf>| {
        path.as_deref().is_some_and(|p| p.components().any(|c| c.as_os_str() == "k8s.io"))
    };
    let cwd = invocation.bundle.is_none().then(|| std::env::current_dir().ok()).flatten();
    if names_kubernetes(&invocation.root)
        || names_kubernetes(&invocation.bundle)
        || names_kubernetes(&cwd)
    {
        Engine::Kubernetes
    } else {
        Engine::Local
    }
}

/// The runtime's state directory: `--root`, or what the runtime takes where there is none.
pub(crate) fn runtime_root(invocation: &Invocation, runtime: Option<&Path>) -> String {
    if let Some(root) = &invocation.root {
        // One directory, one key, however many slashes the caller wrote.
        let tidy: PathBuf = root.components().collect();
        return tidy.to_string_lossy().into_owned();
    }
    let name = runtime.and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    format!("/run/{}", if name.contains("crun") { "crun" } else { "runc" })
}

/// Inode of the IPC namespace that the daemon lives in, where it has said so.
pub(crate) fn ipc_of_daemon() -> Option<u64> {
    snapshot().map(|snapshot| snapshot.ipc_inode)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::ffi::OsString;

    use mpsgate_oci::argv;

    use super::*;

    fn invocation(line: &str) -> Invocation {
        argv::parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_engine_is_told_by_what_it_sets_itself() {
        for (line, engine) in [
            ("--root /run/containerd/runc/k8s.io create --bundle /b c", Engine::Kubernetes),
            (
                "create --bundle /run/containerd/io.containerd.runtime.v2.task/k8s.io/c c",
                Engine::Kubernetes,
            ),
            ("--root /var/run/docker/runtime-runc/moby create --bundle /b c", Engine::Local),
            ("create --bundle /tmp/not-k8s.io/b c", Engine::Local),
        ] {
            assert_eq!(super::engine(&invocation(line)), engine, "{line}");
        }
    }

    #[test]
    fn one_state_directory_is_one_key_however_it_is_written() {
        let root =
            |line: &str, runtime: &str| runtime_root(&invocation(line), Some(Path::new(runtime)));
        assert_eq!(root("--root /run/x/ create c", "/usr/bin/runc"), "/run/x");
        assert_eq!(root("--root=/run//x create c", "/usr/bin/runc"), "/run/x");
        assert_eq!(root("create c", "/usr/sbin/runc"), "/run/runc");
        assert_eq!(root("create c", "/usr/bin/crun"), "/run/crun");
    }

    #[test]
    fn only_a_parent_of_ours_is_an_ancestor() {
        let dir = tempfile::tempdir().unwrap();
        let ours: Vec<(&str, Inode)> = vec![(paths::RUN_DIR, (0, 0))];
        let is = |path: &str| is_ancestor(Path::new(path), inode(Path::new(path)).unwrap(), &ours);
        assert!(is("/") && is("/run"));
        assert!(!is("/proc") && !is(dir.path().to_str().unwrap()));
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
    fn a_file_that_others_can_write_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "x").unwrap();
        let mode = |mode| {
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))
                .unwrap()
        };
        mode(0o644);
        assert_eq!(read_own(&path, 9), Some(b"x".to_vec()));
        mode(0o666);
        assert_eq!(read_own(&path, 9), None);
        mode(0o644);
        let link = dir.path().join("l");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read_own(&link, 9), None, "nor a link");
    }
}
