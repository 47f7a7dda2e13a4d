//! Facts for a decision that a spec alone does not hold: what its mounts are, in which IPC
//! namespace it will live, what the daemon has written about the node.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use mpsgate_api::NodeSnapshot;
use mpsgate_config::{Config, Manage, Trust, paths};
use mpsgate_oci::argv::Invocation;
use mpsgate_oci::spec::{Edit, IdRange, Mount, Namespace, View};
use mpsgate_policy::{
    Caller, Cards, Code, Ipc, Majors, MountFact, MountKind, Node, Refusal, Users,
};
use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};

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
        Namespace::New => return Ipc::New,
        Namespace::Callers => "/proc/self/ns/ipc",
        Namespace::At(path) => path,
    };
    match std::fs::metadata(path) {
        Ok(meta) => Ipc::Inode(meta.ino()),
        Err(error) => Ipc::Unreadable(format!("{path}: {error}")),
    }
}

/// Whether the container will see the host's processes: the engine's own namespace, by whatever name.
pub(crate) fn host_pids(view: View<'_>) -> bool {
    view.pid_namespace().is_callers(|path| {
        let own = inode(Path::new("/proc/self/ns/pid"));
        inode(Path::new(path)).is_none_or(|found| Some(found) == own)
    })
}

/// What the daemon wrote about the node, and whether a kubelet runs there.
pub(crate) fn node(config: &Config) -> (Node, bool) {
    match snapshot() {
        Some(snapshot) => {
            let kubelet = snapshot.kubelet;
            (snapshot.into(), kubelet)
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
    NodeSnapshot::parse(&bytes).ok()
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

/// The engine that calls, by what it sets itself.
pub(crate) fn caller(invocation: &Invocation, trust: &Trust, kubelet: bool) -> Caller {
    let bundle = invocation.bundle.as_deref().unwrap_or_else(|| Path::new("."));
    // Relative to where the engine started us, and without links.
    let bundle = std::fs::canonicalize(bundle).unwrap_or_else(|_| bundle.to_owned());
    Caller::of(invocation.root.as_deref(), &bundle, &trust.kubernetes_roots, kubelet)
}

/// The user namespace that a spec joins. Only a process in it shows its map, and only a path below `/proc`
/// names one.
pub(crate) fn users(view: View<'_>) -> Users {
    let Namespace::At(path) = view.user_namespace() else { return Users::OfSpec };
    let pid = path.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/ns/user"));
    let Some(pid) = pid.filter(|pid| pid.bytes().all(|b| b.is_ascii_digit())) else {
        return Users::Unreadable("only /proc/PID/ns/user shows its map".to_owned());
    };
    match std::fs::read_to_string(format!("/proc/{pid}/uid_map")) {
        Ok(text) => Users::Joined(text.lines().filter_map(id_range).collect()),
        Err(error) => Users::Unreadable(format!("/proc/{pid}/uid_map cannot be read: {error}")),
    }
}

/// Whether a process can have a uid of the host's in its user namespace. True where that cannot be read.
pub(crate) fn can_have_uid(pid: u32, uid: u32) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/uid_map")) else { return true };
    text.lines().filter_map(id_range).any(|range| range.inside_of(uid).is_some())
}

/// A line of user_namespaces(7)'s `uid_map`.
fn id_range(line: &str) -> Option<IdRange> {
    let mut numbers = line.split_ascii_whitespace().map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(IdRange { inside: next()?, outside: next()?, size: next()? })
}

/// In a user namespace runtimes cannot make device nodes: they bind the host's of the same path (runc
/// 1.1.5 `createDevices`, crun 1.21). One that is not there, or is another device.
pub(crate) fn node_to_bind(view: View<'_>, edits: &[Edit]) -> Result<(), Refusal> {
    if view.user_namespace() == Namespace::Callers {
        return Ok(());
    }
    let is_there = |path: &str, numbers: (u32, u32)| {
        std::fs::metadata(path).is_ok_and(|meta| {
            meta.file_type().is_char_device()
                && (major(meta.rdev()), minor(meta.rdev())) == (numbers.0.into(), numbers.1.into())
        })
    };
    let missing = edits.iter().find_map(|edit| match edit {
        Edit::AddDevice { path, major, minor, .. } if !is_there(path, (*major, *minor)) => {
            Some(format!("{path} ({major}:{minor})"))
        }
        _ => None,
    });
    missing.map_or(Ok(()), |node| {
        Err(Refusal::new(
            Code::Spec,
            format!("in its user namespace it can only be given device nodes of the host, and the host has no {node}"),
            "make it: nvidia-modprobe -c 0 -u, or nvidia-ctk system create-device-nodes --control-devices; \
             or do without the user namespace (docker run --userns=host)",
        ))
    })
}

/// The runtime's state directory: `--root`, or what the runtime takes where there is none.
pub(crate) fn runtime_root(invocation: &Invocation, runtime: Option<&Path>) -> String {
    if let Some(root) = &invocation.root {
        // One directory, one key, however many slashes the caller wrote.
        let tidy: PathBuf = root.components().collect();
        return tidy.to_string_lossy().into_owned();
    }
    default_root(runtime)
}

/// Where a runtime keeps its state without `--root`.
pub(crate) fn default_root(runtime: Option<&Path>) -> String {
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
    fn a_bundle_is_judged_by_where_it_really_is() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("k8s.io/c");
        std::fs::create_dir_all(&real).unwrap();
        let alias = dir.path().join("b");
        std::os::unix::fs::symlink(&real, &alias).unwrap();
        let of = |bundle: &Path| {
            let line = format!("create --bundle {} c", bundle.display());
            caller(&invocation(&line), &Trust::default(), false)
        };
        assert_eq!(of(&alias), Caller::Containerd);
        assert_eq!(of(dir.path()), Caller::Local);
        assert_eq!(of(Path::new("/no/such/k8s.io/c")), Caller::Containerd);
    }

    #[test]
    fn a_joined_user_namespace_shows_its_map_through_proc_alone() {
        let of = |path: &str| {
            let spec =
                serde_json::json!({"linux": {"namespaces": [{"type": "user", "path": path}]}});
            users(View::new(&spec))
        };
        let own = format!("/proc/{}/ns/user", std::process::id());
        assert!(matches!(of(&own), Users::Joined(ranges) if !ranges.is_empty()));
        for path in
            ["/run/userns/x", "/proc/self/ns/user", "/proc/1/../2/ns/user", "/proc/4194305/ns/user"]
        {
            assert!(matches!(of(path), Users::Unreadable(_)), "{path}");
        }
        assert_eq!(users(View::new(&serde_json::json!({}))), Users::OfSpec);
        assert!(can_have_uid(std::process::id(), nix::unistd::geteuid().as_raw()));
        let range = IdRange { inside: 0, outside: 100_000, size: 65_536 };
        assert_eq!(id_range("         0     100000      65536"), Some(range));
        assert_eq!((id_range("0 1"), id_range("0 -1 1"), id_range("")), (None, None, None));
    }

    #[test]
    fn a_node_is_bound_only_where_the_host_has_it() {
        let add =
            |path: &str, minor| Edit::AddDevice { path: path.to_owned(), major: 1, minor, uid: 0 };
        let spec = serde_json::json!({"linux": {"namespaces": [{"type": "user"}]}});
        let check = |edits: &[Edit]| node_to_bind(View::new(&spec), edits).map_err(|r| r.code);
        assert_eq!(check(&[add("/dev/null", 3)]), Ok(()));
        assert_eq!(check(&[add("/dev/null", 5)]), Err(Code::Spec), "another device");
        assert_eq!(check(&[add("/dev/null", 3), add("/no/such", 3)]), Err(Code::Spec));
        let plain = serde_json::json!({});
        assert!(node_to_bind(View::new(&plain), &[add("/no/such", 3)]).is_ok());
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
